// Small matrix products in registers, and packing of their right-hand sides.
//
// A *word* is 32 bits: a float or a pair of bfloat16 numbers, which one instruction multiplies and adds. A right-hand side is
// packed as words [steps][width], so that a row of words is a row of vectors. A left-hand side is not packed; each of its
// words is broadcast.
#pragma once

#include "vectors.h"

#include <cstdint>

using Word = uint32_t;

template <class Number>
static constexpr int64_t NUMBERS_PER_WORD = 4 / sizeof(Number);

static inline __m512 multiply_add(const float*, __m512i a, __m512i b, __m512 sum) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
}

static inline __m512 multiply_add(const bfloat16*, __m512i a, __m512i b, __m512 sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

struct Product {
    const Word* left;
    int64_t left_stride;
    const Word* right;
    int64_t right_stride;
    float* sums;
    int64_t sums_stride;
    int64_t steps;
};

// sums [ROWS][16 * VECTORS] = or += left [ROWS][steps] * right [steps][16 * VECTORS]
template <class Number, int ROWS, int VECTORS, bool ADD>
static void multiply(const Product& p) {
    __m512 sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            sums[r][v] = ADD ? _mm512_loadu_ps(p.sums + r * p.sums_stride + 16 * v) : _mm512_setzero_ps();
    for (int64_t step = 0; step < p.steps; step++) {
        __m512i right[VECTORS];
        for (int v = 0; v < VECTORS; v++) right[v] = _mm512_loadu_si512(p.right + step * p.right_stride + 16 * v);
        for (int r = 0; r < ROWS; r++) {
            __m512i left = _mm512_set1_epi32((int)p.left[r * p.left_stride + step]);
            for (int v = 0; v < VECTORS; v++) sums[r][v] = multiply_add((Number*)0, left, right[v], sums[r][v]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) _mm512_storeu_ps(p.sums + r * p.sums_stride + 16 * v, sums[r][v]);
}

static const int MOST_ROWS = 6;  // with 4 vectors of sums each, and 4 of the right-hand side: 28 of 32 registers
static const int MOST_VECTORS = 4;

template <class Number, bool ADD, int ROWS>
static void multiply_columns(Product p, int64_t width) {
    for (; width >= 16 * MOST_VECTORS; width -= 16 * MOST_VECTORS) {
        multiply<Number, ROWS, MOST_VECTORS, ADD>(p);
        p.right += 16 * MOST_VECTORS;
        p.sums += 16 * MOST_VECTORS;
    }
    switch (width / 16) {
        case 1: return multiply<Number, ROWS, 1, ADD>(p);
        case 2: return multiply<Number, ROWS, 2, ADD>(p);
        case 3: return multiply<Number, ROWS, 3, ADD>(p);
    }
}

// Like `multiply`, for at most MOST_ROWS rows and any multiple of 16 columns.
template <class Number, bool ADD>
static void multiply_rows(const Product& p, int64_t rows, int64_t width) {
    switch (rows) {
        case 1: return multiply_columns<Number, ADD, 1>(p, width);
        case 2: return multiply_columns<Number, ADD, 2>(p, width);
        case 3: return multiply_columns<Number, ADD, 3>(p, width);
        case 4: return multiply_columns<Number, ADD, 4>(p, width);
        case 5: return multiply_columns<Number, ADD, 5>(p, width);
        case 6: return multiply_columns<Number, ADD, 6>(p, width);
    }
}

// Exchanges rows and columns of 16 x 16 words.
static inline void transpose(__m512i x[16]) {
    __m512i y[16];
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + j + 2]);
            x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + j + 2]);
        }
    // Now lane l of x[4 * i + c] has words 4 * i ... 4 * i + 3 of column 4 * l + c.
    for (int c = 0; c < 4; c++) {
        __m512i low01 = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88), high01 = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xdd);
        __m512i low23 = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88);
        __m512i high23 = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xdd);
        y[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
        y[8 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
        y[4 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
        y[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
    }
    for (int i = 0; i < 16; i++) x[i] = y[i];
}

// Packs `count` <= 16 vectors of `words` words as columns of packed [words][stride]; other columns up to 16 become 0.
static inline void pack_columns(const Word* const* vectors, int64_t count, int64_t words, Word* packed, int64_t stride) {
    for (int64_t first = 0; first < words; first += 16) {
        __mmask16 mask = first_lanes(words - first);
        __m512i block[16];
        for (int i = 0; i < 16; i++) block[i] = _mm512_maskz_loadu_epi32(i < count ? mask : 0, vectors[i] + first);
        transpose(block);
        for (int i = 0; i < 16 && i < words - first; i++) _mm512_storeu_si512(packed + (first + i) * stride, block[i]);
    }
}

// Packs `count` vectors of `size` numbers, a multiple of 16, as rows of packed [count][size].
static inline void pack_rows(const float* const* vectors, int64_t count, int64_t size, Word* packed) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t d = 0; d < size; d += 16)
            _mm512_storeu_si512(packed + i * size + d, _mm512_loadu_si512(vectors[i] + d));
}

// Pairs of the first 16 bfloat16 numbers of a and b.
static inline __m512i zip_lower(__m512i a, __m512i b) {
    const __m512i zip = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5,
                                         36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    return _mm512_permutex2var_epi16(a, zip, b);
}

// Pairs of the last 16 bfloat16 numbers of a and b.
static inline __m512i zip_upper(__m512i a, __m512i b) {
    const __m512i zip = _mm512_set_epi16(63, 31, 62, 30, 61, 29, 60, 28, 59, 27, 58, 26, 57, 25, 56, 24, 55, 23, 54, 22, 53, 21,
                                         52, 20, 51, 19, 50, 18, 49, 17, 48, 16);
    return _mm512_permutex2var_epi16(a, zip, b);
}

// The same for bfloat16, with pairs of vectors in one row: packed [ceil(count / 2)][size].
static inline void pack_rows(const bfloat16* const* vectors, int64_t count, int64_t size, Word* packed) {
    for (int64_t i = 0; i < count; i += 2)
        for (int64_t d = 0; d < size; d += 32) {
            __mmask32 mask = size - d >= 32 ? 0xffffffff : 0xffff;
            __m512i a = _mm512_maskz_loadu_epi16(mask, vectors[i] + d);
            __m512i b = i + 1 < count ? _mm512_maskz_loadu_epi16(mask, vectors[i + 1] + d) : _mm512_setzero_si512();
            Word* to = packed + i / 2 * size + d;
            _mm512_storeu_si512(to, zip_lower(a, b));
            if (size - d >= 32) _mm512_storeu_si512(to + 16, zip_upper(a, b));
        }
}
