// Vectors of numbers, by the compiler's own vector types, so that one source serves AVX-512, AVX2 and NEON. Intrinsics stand
// only where a compiler does not find the instruction by itself.
//
// No product is added without a word of it (`fused`): the flags forbid the compiler to contract, so a row has the same
// result whatever tile it is in.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define WITH_AVX512
static const int LANES = 16, REGISTERS = 32;
#elif defined(__AVX2__)
static const int LANES = 8, REGISTERS = 16;
#else
static const int LANES = 4, REGISTERS = 32;
#endif

// Whether one instruction multiplies and adds pairs of bfloat16 numbers.
#if defined(WITH_AVX512) && defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define WITH_PAIRS 1
#else
#define WITH_PAIRS 0
#endif

#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif
#define INLINE __attribute__((always_inline)) static inline
#define INLINE_MEMBER __attribute__((always_inline)) inline
#define INLINE_LAMBDA __attribute__((always_inline))

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

// The bits of a bfloat16: the upper half of a float.
struct bfloat16 {
    uint16_t bits;
};

// The bits of an IEEE half.
struct half {
    uint16_t bits;
};

// The bits of a number of 8 bits with a mantissa of 3, and of a power of two (OCP Microscaling Formats 1.0, section 5.4).
struct e4m3 {
    uint8_t bits;
};
struct e8m0 {
    uint8_t bits;
};

// ---- Memory ----

template <class Vector>
INLINE Vector read(const void* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof(vector));
    return vector;
}

template <class Vector>
INLINE void write(void* to, Vector vector) {
    std::memcpy(to, &vector, sizeof(vector));
}

INLINE int64_t within_lanes(int64_t count) {
    return count < 0 ? 0 : count < LANES ? count : LANES;
}

#ifdef WITH_AVX512
INLINE __mmask16 first_lanes(int64_t count) {
    return __mmask16((1u << within_lanes(count)) - 1);
}
#endif

// The first `count` elements; zeros behind them, whose memory is not touched.
template <class Vector>
INLINE Vector read(const void* from, int64_t count) {
    constexpr int SIZE = sizeof(Vector) / LANES;
#ifdef WITH_AVX512
    if constexpr (SIZE == 4) return (Vector)_mm512_maskz_loadu_epi32(first_lanes(count), from);
    else return (Vector)_mm256_maskz_loadu_epi16(first_lanes(count), from);
#else
    if (count >= LANES) return read<Vector>(from);
    Vector vector = {};
    std::memcpy(&vector, from, within_lanes(count) * SIZE);
    return vector;
#endif
}

template <class Vector>
INLINE void write(void* to, Vector vector, int64_t count) {
    constexpr int SIZE = sizeof(Vector) / LANES;
#ifdef WITH_AVX512
    if constexpr (SIZE == 4) _mm512_mask_storeu_epi32(to, first_lanes(count), (__m512i)vector);
    else _mm256_mask_storeu_epi16(to, first_lanes(count), (__m256i)vector);
#else
    if (count >= LANES) return write(to, vector);
    std::memcpy(to, &vector, within_lanes(count) * SIZE);
#endif
}

// Calls body(i, count) for numbers i up to i + count, vector by vector. All but the last call have LANES as a constant.
template <class Body>
INLINE void each_vector(int64_t size, const Body& body) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) body(i, LANES);
    if (i < size) body(i, size - i);
}

static const int64_t LINE = 64;  // bytes of a cache line

// Inline, because GCC drops calls of a function that only prefetches as without effect.
INLINE void prefetch(const void* address) {
    __builtin_prefetch(address, 0, 2);
}

// Writes past the caches, to an address aligned to the vector; `finish_streams` before another thread reads it.
INLINE void stream(void* to, Words words) {
#if defined(WITH_AVX512)
    _mm512_stream_si512((__m512i*)to, (__m512i)words);
#elif defined(__AVX2__)
    _mm256_stream_si256((__m256i*)to, (__m256i)words);
#else
    write(to, words);
#endif
}

INLINE void finish_streams() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

// ---- Arithmetic ----

INLINE Floats splat(float number) {
    return number - Floats{};
}

INLINE Words splat(uint32_t word) {
    return word - Words{};
}

INLINE Floats fused(Floats a, Floats b, Floats sum) {
#if defined(WITH_AVX512)
    return _mm512_fmadd_ps(a, b, sum);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, sum);
#elif defined(__ARM_NEON)
    return vfmaq_f32(sum, a, b);
#else
    return a * b + sum;
#endif
}

INLINE Floats largest(Floats a, Floats b) {
    return a > b ? a : b;
}

INLINE Floats smallest(Floats a, Floats b) {
    return a < b ? a : b;
}

// ---- Lanes ----

#if defined(__clang__) || __GNUC__ >= 12
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

#if defined(WITH_AVX512)
#define EVEN_LANES 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD_LANES 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define LOWER_ZIPPED 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define UPPER_ZIPPED 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX2__)
#define EVEN_LANES 0, 2, 4, 6, 8, 10, 12, 14
#define ODD_LANES 1, 3, 5, 7, 9, 11, 13, 15
#define LOWER_ZIPPED 0, 8, 1, 9, 2, 10, 3, 11
#define UPPER_ZIPPED 4, 12, 5, 13, 6, 14, 7, 15
#else
#define EVEN_LANES 0, 2, 4, 6
#define ODD_LANES 1, 3, 5, 7
#define LOWER_ZIPPED 0, 4, 1, 5
#define UPPER_ZIPPED 2, 6, 3, 7
#endif

// Sums of neighbouring lanes, of `a` and then of `b`.
INLINE Floats folded(Floats a, Floats b) {
    return PICK(a, b, EVEN_LANES) + PICK(a, b, ODD_LANES);
}

#if defined(WITH_AVX512)
#define LOWER_QUADS_ZIPPED 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define UPPER_QUADS_ZIPPED 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define EVEN_QUADS 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define ODD_QUADS 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#elif defined(__AVX2__)
#define LOWER_QUADS_ZIPPED 0, 8, 1, 9, 4, 12, 5, 13
#define UPPER_QUADS_ZIPPED 2, 10, 3, 11, 6, 14, 7, 15
#define EVEN_QUADS 0, 1, 2, 3, 8, 9, 10, 11
#define ODD_QUADS 4, 5, 6, 7, 12, 13, 14, 15
#else
#define LOWER_QUADS_ZIPPED 0, 4, 1, 5
#define UPPER_QUADS_ZIPPED 2, 6, 3, 7
#define EVEN_QUADS 0, 1, 2, 3
#define ODD_QUADS 4, 5, 6, 7
#endif

// Within each four lanes, sums of two of a and of two of b, by turns.
INLINE Floats quads_folded(Floats a, Floats b) {
    return PICK(a, b, LOWER_QUADS_ZIPPED) + PICK(a, b, UPPER_QUADS_ZIPPED);
}

// Makes one vector of two results of `fold`, for twice as many vectors.
INLINE Floats fold_on(Floats a, Floats b) {
    return PICK(a, b, EVEN_QUADS) + PICK(a, b, ODD_QUADS);
}

// Folds COUNT vectors, a power of two from 4 to LANES, into one: with COUNT = LANES, lane i is the sum of vector i's lanes.
template <int COUNT>
INLINE Floats fold(const Floats* x) {
    if constexpr (COUNT == 4) return quads_folded(quads_folded(x[0], x[2]), quads_folded(x[1], x[3]));
    else return fold_on(fold<COUNT / 2>(x), fold<COUNT / 2>(x + COUNT / 2));
}

INLINE float sum_of(Floats x) {
    for (int width = LANES; width > 1; width /= 2) x = folded(x, x);
    return x[0];
}

INLINE float largest_of(Floats x) {
    for (int width = LANES; width > 1; width /= 2) x = largest(PICK(x, x, EVEN_LANES), PICK(x, x, ODD_LANES));
    return x[0];
}

// Lanes of all ones where a bit is set, of zeros elsewhere.
INLINE Ints lanes_of(uint32_t bits) {
#ifdef WITH_AVX512
    return (Ints)_mm512_movm_epi32(__mmask16(bits));
#else
    Words places;
    for (int lane = 0; lane < LANES; lane++) places[lane] = 1u << lane;
    return (splat(bits) & places) != 0;
#endif
}

// The inverse: a bit for each lane of all ones.
INLINE uint32_t bits_of(Ints lanes) {
#if defined(WITH_AVX512)
    return _mm512_movepi32_mask((__m512i)lanes);
#elif defined(__AVX2__)
    return uint32_t(_mm256_movemask_ps((__m256)lanes));
#else
    uint32_t bits = 0;
    for (int lane = 0; lane < LANES; lane++) bits |= uint32_t(lanes[lane] & 1) << lane;
    return bits;
#endif
}

// Exchanges rows and columns of LANES x LANES words.
INLINE void transpose(Words (&x)[LANES]) {
    for (int width = 1; width < LANES; width *= 2) {
        Words y[LANES];
        UNROLLED
        for (int i = 0; i < LANES / 2; i++) {
            y[2 * i] = PICK(x[i], x[i + LANES / 2], LOWER_ZIPPED);
            y[2 * i + 1] = PICK(x[i], x[i + LANES / 2], UPPER_ZIPPED);
        }
        UNROLLED
        for (int i = 0; i < LANES; i++) x[i] = y[i];
    }
}

// ---- Formats ----

INLINE Words words_of(Halves halves) {
#if defined(WITH_AVX512)
    return (Words)_mm512_cvtepu16_epi32((__m256i)halves);
#elif defined(__AVX2__)
    return (Words)_mm256_cvtepu16_epi32((__m128i)halves);
#elif defined(__ARM_NEON)
    return (Words)vmovl_u16((uint16x4_t)halves);
#else
    return __builtin_convertvector(halves, Words);
#endif
}

// Neighbours as words, those of `first` in the lower lanes.
INLINE Words pairs_of(Halves first, Halves second) {
#if defined(WITH_AVX512)
    return (Words)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)first), (__m256i)second, 1);
#elif defined(__AVX2__)
    return (Words)_mm256_set_m128i((__m128i)second, (__m128i)first);
#else
    Words words;
    std::memcpy(&words, &first, sizeof(first));
    std::memcpy((char*)&words + sizeof(first), &second, sizeof(second));
    return words;
#endif
}

// LANES bytes, without sign.
INLINE Words words_of(const uint8_t* bytes) {
#if defined(WITH_AVX512)
    return (Words)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)bytes));
#elif defined(__AVX2__)
    return (Words)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)bytes));
#elif defined(__ARM_NEON)
    uint32_t four;
    std::memcpy(&four, bytes, 4);
    return (Words)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
#else
    Words words;
    for (int lane = 0; lane < LANES; lane++) words[lane] = bytes[lane];
    return words;
#endif
}

// The same bytes with a sign.
INLINE Ints ints_of(const uint8_t* bytes) {
#if defined(WITH_AVX512)
    return (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)bytes));
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)bytes));
#else
    return (Ints)(words_of(bytes) << 24) >> 24;
#endif
}

INLINE Floats floats_of(Ints ints) {
    return __builtin_convertvector(ints, Floats);
}

INLINE Floats widened(Halves bits) {
    return (Floats)(words_of(bits) << 16);
}

#if !defined(WITH_AVX512) || !defined(__AVX512BF16__)
// Words whose upper halves are the nearest bfloat16 numbers, ties to even.
INLINE Words nearest_bfloat16(Floats x) {
    const Words bits = (Words)x;
    return x == x ? bits + 0x7fff + (bits >> 16 & 1) : splat(0x7fc00000u);
}
#endif

INLINE Halves narrowed(Floats x) {
#if defined(WITH_AVX512) && defined(__AVX512BF16__)
    return (Halves)_mm512_cvtneps_pbh(x);
#else
    const Words result = nearest_bfloat16(x) >> 16;
#if defined(WITH_AVX512)
    return (Halves)_mm512_cvtepi32_epi16((__m512i)result);
#elif defined(__AVX2__)
    __m256i packed = _mm256_packus_epi32((__m256i)result, (__m256i)result);
    return (Halves)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#elif defined(__ARM_NEON)
    return (Halves)vmovn_u32((uint32x4_t)result);
#else
    return __builtin_convertvector(result, Halves);
#endif
#endif
}

INLINE Floats widened_half(Halves bits) {
#if defined(WITH_AVX512)
    return _mm512_cvtph_ps((__m256i)bits);
#elif defined(__F16C__)
    return _mm256_cvtph_ps((__m128i)bits);
#else
    Words words = words_of(bits);
    Words magnitude = words & 0x7fff;
    // The exponent moves by a product, which also makes subnormal numbers right.
    Floats number = (Floats)(magnitude << 13) * splat(0x1p112f);
    number = magnitude >= 0x7c00 ? (Floats)(magnitude << 13 | 0x7f800000) : number;
    return (Floats)((Words)number | (words & 0x8000) << 16);
#endif
}

// The exponent moves by a product, which also makes subnormal numbers right.
INLINE Floats load(const e4m3* from) {
    const Words codes = words_of(&from->bits);
    const Floats magnitude = (Floats)((codes & 0x7f) << 20) * splat(0x1p120f);
    return (Floats)((Words)magnitude | (codes & 0x80) << 24);
}
INLINE Floats load(const e8m0* from) {
    const Words codes = words_of(&from->bits);
    return (Floats)(codes == 0 ? splat(0x00400000u) : codes << 23);
}
INLINE Floats load(const float* from) {
    return read<Floats>(from);
}
INLINE Floats load(const bfloat16* from) {
    return widened(read<Halves>(from));
}
INLINE Floats load(const half* from) {
    return widened_half(read<Halves>(from));
}
// The first `count` numbers, and zeros.
INLINE Floats load(const float* from, int64_t count) {
    return read<Floats>(from, count);
}
INLINE Floats load(const bfloat16* from, int64_t count) {
    return widened(read<Halves>(from, count));
}
INLINE Floats load(const half* from, int64_t count) {
    return widened_half(read<Halves>(from, count));
}

INLINE void store(float* to, Floats numbers) {
    write(to, numbers);
}
INLINE void store(bfloat16* to, Floats numbers) {
    write(to, narrowed(numbers));
}
INLINE void store(float* to, Floats numbers, int64_t count) {
    write(to, numbers, count);
}
INLINE void store(bfloat16* to, Floats numbers, int64_t count) {
    write(to, narrowed(numbers), count);
}

// The value of a number after it is stored and read again.
INLINE Floats rounded(const float*, Floats numbers) {
    return numbers;
}
INLINE Floats rounded(const bfloat16*, Floats numbers) {
#if defined(WITH_AVX512) && defined(__AVX512BF16__)
    return widened(narrowed(numbers));
#else
    return (Floats)(nearest_bfloat16(numbers) & 0xffff0000);
#endif
}

// ---- Functions ----

// The nearest whole number of one below 2^22.
INLINE Floats nearest(Floats x) {
#if defined(WITH_AVX512)
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
#else
    const Floats magic = splat(0x1.8p23f);
    return (x + magic) - magic;
#endif
}

// p * 2^n, for p between 1/2 and 2 and whole n; 0 and infinity outside the normal numbers.
INLINE Floats scaled(Floats p, Floats n) {
#if defined(WITH_AVX512)
    return _mm512_scalef_ps(p, n);
#else
    Ints exponent = __builtin_convertvector(n, Ints);
    Floats result = (Floats)((Ints)p + (exponent << 23));
    result = exponent < -125 ? Floats{} : result;
    return exponent > 127 ? splat(__builtin_inff()) : result;
#endif
}

// A polynomial, the coefficient of the highest power first.
template <int COUNT>
INLINE Floats polynomial(const float (&coefficients)[COUNT], Floats x) {
    Floats sum = splat(coefficients[0]);
    UNROLLED
    for (int i = 1; i < COUNT; i++) sum = fused(sum, x, splat(coefficients[i]));
    return sum;
}

static const float LOG2_E = 1.44269504f;

// 2 to the power of each number, to about 1e-7 of it; 0 for minus infinity.
INLINE Floats power_of_two(Floats x) {
    x = largest(x, splat(-200.0f));
    Floats n = nearest(x);
    return scaled(polynomial({0.0013390863f, 0.009676032f, 0.055503570f, 0.24022107f, 0.69314718f, 1.0000001f}, x - n), n);
}

// e to the power of each number, with a relative error of about 1e-7; 0 or infinity outside the range of a float. It is 2^n
// times the Taylor series of the rest, which is at most ln(2) / 2.
INLINE Floats exp(Floats x) {
    x = largest(smallest(x, splat(104.0f)), splat(-104.0f));
    Floats n = nearest(x * splat(LOG2_E));
    Floats r = fused(n, splat(-0.693359375f), x);
    r = fused(n, splat(2.12194440e-4f), r);
    return scaled(polynomial({1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}, r), n);
}

INLINE Floats sigmoid(Floats x) {
    const Floats one = splat(1.0f);
    return one / (one + exp(-x));
}

INLINE Floats tanh(Floats x) {
    const Floats one = splat(1.0f);
    Floats e = power_of_two(smallest(x, splat(20.0f)) * splat(2 * LOG2_E));
    return (e - one) / (e + one);
}
