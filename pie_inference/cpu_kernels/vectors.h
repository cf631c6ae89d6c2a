// Vectors of 16 numbers: loads and stores of float and bfloat16, and functions that the standard library lacks.
#pragma once

#include <immintrin.h>

#include <cstdint>

// The bits of a bfloat16: the upper half of a float.
struct bfloat16 {
    uint16_t bits;
};

// The first `count` of 16 lanes.
static inline __mmask16 first_lanes(int64_t count) {
    return count >= 16 ? __mmask16(0xffff) : __mmask16((1u << count) - 1);
}

static inline __m512 load(const float* from, __mmask16 mask = 0xffff) {
    return _mm512_maskz_loadu_ps(mask, from);
}

static inline __m512 load(const bfloat16* from, __mmask16 mask = 0xffff) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static inline void store(float* to, __m512 numbers, __mmask16 mask = 0xffff) {
    _mm512_mask_storeu_ps(to, mask, numbers);
}

static inline void store(bfloat16* to, __m512 numbers, __mmask16 mask = 0xffff) {
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(numbers));
}

// The value of a number after it is stored and read again.
static inline __m512 rounded(const float*, __m512 numbers) {
    return numbers;
}

static inline __m512 rounded(const bfloat16*, __m512 numbers) {
    __m512i wide = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(numbers));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// e to the power of each number, with a relative error of about 1e-7; 0 or infinity outside the range of a float. It is 2^n
// times the Taylor series of the rest, which is at most ln(2) / 2.
static inline __m512 exp(__m512 x) {
    x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(104.0f)), _mm512_set1_ps(-103.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.0f / 5040);
    const float coefficients[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    for (float c : coefficients) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    return _mm512_scalef_ps(p, n);
}

static inline __m512 sigmoid(__m512 x) {
    __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(one, _mm512_add_ps(one, exp(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}
