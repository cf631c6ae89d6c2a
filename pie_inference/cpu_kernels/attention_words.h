// Keys and values in the words that are multiplied (`products.h`). A head's vector is a multiple of 16 numbers.
#pragma once

#include "products.h"

// LANES words of a query or a key as it is stored, of which `count` are left.
template <class Number>
INLINE Words stored_words(const Number* from, int64_t count) {
    return sizeof(Words) > 16 * sizeof(Number) ? read<Words>(from, count) : read<Words>(from);
}

// Words of factors in a stored word: two if bfloat16 numbers are multiplied as floats.
template <class Number>
static constexpr int PIECES = sizeof(Factor<Number>) / sizeof(Number);

template <class Number>
INLINE Words piece(Words stored, int n) {
    if constexpr (PIECES<Number> == 1) return stored;
    else return n == 0 ? stored << 16 : stored & 0xffff0000;
}

// LANES words of factors, of which `count` are left.
INLINE Words factor_words(const float* from, int64_t) {
    return read<Words>(from);
}

#if WITH_PAIRS
INLINE Words factor_words(const bfloat16* from, int64_t count) {
    return read<Words>(from, count);
}
#else
INLINE Words factor_words(const bfloat16* from, int64_t) {
    return (Words)load(from);
}
#endif

// UNITS * 16 columns, from `column` on, of as many values as a word has factors.
template <int UNITS, class Number>
INLINE void value_words(const Number* const* values, int64_t column, Words* words) {
    UNROLLED
    for (int v = 0; v < UNITS * VECTORS_PER_UNIT; v++) words[v] = (Words)load(values[0] + column + v * LANES);
}

#if WITH_PAIRS
// Pairs of the first 16 numbers of a and b.
INLINE Words zip_lower(__m512i a, __m512i b) {
    const __m512i zip = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36,
                                         4, 35, 3, 34, 2, 33, 1, 32, 0);
    return (Words)_mm512_permutex2var_epi16(a, zip, b);
}

// Pairs of the last 16 numbers of a and b.
INLINE Words zip_upper(__m512i a, __m512i b) {
    const __m512i zip = _mm512_set_epi16(63, 31, 62, 30, 61, 29, 60, 28, 59, 27, 58, 26, 57, 25, 56, 24, 55, 23, 54, 22, 53, 21,
                                         52, 20, 51, 19, 50, 18, 49, 17, 48, 16);
    return (Words)_mm512_permutex2var_epi16(a, zip, b);
}

template <int UNITS>
INLINE void value_words(const bfloat16* const* values, int64_t column, Words* words) {
    UNROLLED
    for (int u = 0; u < UNITS; u += 2) {
        const __mmask32 mask = UNITS - u >= 2 ? 0xffffffff : 0xffff;
        const __m512i a = _mm512_maskz_loadu_epi16(mask, values[0] + column + u * UNIT);
        const __m512i b = _mm512_maskz_loadu_epi16(mask, values[1] + column + u * UNIT);
        words[u] = zip_lower(a, b);
        if (u + 1 < UNITS) words[u + 1] = zip_upper(a, b);
    }
}
#endif
