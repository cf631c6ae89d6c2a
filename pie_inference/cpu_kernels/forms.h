// How words come from what a unit stores: numbers of 16 bits, integers of 8 or 4 bits, and floating-point numbers of 8 bits.
// The values are exact; the caller multiplies sums with scales.
#pragma once

#include "products.h"

#include <type_traits>

// To each integer of 4 bits, which becomes the upper part of the mantissa of 16.
static constexpr float FOUR_BITS_ADDED = 16;

// The magnitudes of floating-point numbers of 4 bits (e2m1).
static constexpr float E2M1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// Pairs of bfloat16 numbers, as floats.
struct Pairs {
    using Factor = float;
    static constexpr int FEATURES = 2, PARTS = 1, BYTES = UNIT * 2, MOST_DIRECT = LANES == 16 ? 16 : 8, CONSTANTS = 1;

    INLINE_MEMBER void decode(const char* from, int, Words* words) const {
        UNROLLED
        for (int v = 0; v < VECTORS_PER_UNIT; v++) {
            Words pair = read<Words>(from + v * sizeof(Words));
            words[v] = pair << 16;
            words[VECTORS_PER_UNIT + v] = pair & 0xffff0000;
        }
    }
};

#if WITH_PAIRS

// The upper and the lower bytes of the bfloat16 numbers of 128 magnitudes.
class Table {
  public:
    explicit Table(const uint16_t* numbers) {
        uint8_t lower[128], upper[128];
        for (int i = 0; i < 128; i++) lower[i] = uint8_t(numbers[i]), upper[i] = uint8_t(numbers[i] >> 8);
        for (int i = 0; i < 2; i++) {
            lower_[i] = _mm512_loadu_si512(lower + 64 * i);
            upper_[i] = _mm512_loadu_si512(upper + 64 * i);
        }
    }

    // The bytes of 64 codes' numbers; `signs` has the sign in the upper bit of each byte.
    INLINE_MEMBER void look_up(__m512i codes, __m512i signs, __m512i& lower, __m512i& upper) const {
        lower = _mm512_permutex2var_epi8(lower_[0], codes, lower_[1]);
        upper = _mm512_permutex2var_epi8(upper_[0], codes, upper_[1]);
        upper = _mm512_ternarylogic_epi32(upper, signs, _mm512_set1_epi8((char)0x80), 0xf8);  // upper | (signs & 0x80)
    }

  private:
    __m512i lower_[2], upper_[2];
};

// Bytes [features][UNIT]: integers above -128, or signs and magnitudes.
template <bool INTEGER>
struct EightBits {
    using Factor = bfloat16;
    static constexpr int FEATURES = 4, PARTS = 1, BYTES = UNIT, MOST_DIRECT = 4, CONSTANTS = 6;
    Table table;

    explicit EightBits(const uint16_t* codes) : table(codes) {}

    INLINE_MEMBER void decode(const char* from, int, Words* words) const {
        // Puts the two bytes of each word side by side, those of the second word in the upper half of each quarter.
        const __m512i order = _mm512_set_epi8(
            63, 47, 62, 46, 61, 45, 60, 44, 31, 15, 30, 14, 29, 13, 28, 12, 59, 43, 58, 42, 57, 41, 56, 40, 27, 11, 26, 10, 25, 9, 24,
            8, 55, 39, 54, 38, 53, 37, 52, 36, 23, 7, 22, 6, 21, 5, 20, 4, 51, 35, 50, 34, 49, 33, 48, 32, 19, 3, 18, 2, 17, 1, 16, 0);
        __m512i codes = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(from)), lower, upper;
        table.look_up(INTEGER ? _mm512_abs_epi8(codes) : codes, codes, lower, upper);
        words[0] = (Words)_mm512_unpacklo_epi8(lower, upper);
        words[1] = (Words)_mm512_unpackhi_epi8(lower, upper);
    }
};

// Bytes [features][UNIT]: all integers of 8 bits, decoded as a half more. Half a number beside each magnitude, with a sign, are
// as many as there are integers; `codes` has them.
struct AllBytes : EightBits<false> {
    using EightBits<false>::EightBits;
};

// Integers of 0 to 15, eight features to a word: words [features / 8][UNIT]. Each half of a word has four integers, the lowest
// bits first: the lower half those of the even features, the upper half those of the odd ones.
struct FourBits {
    using Factor = bfloat16;
    static constexpr int FEATURES = 8, PARTS = 1, BYTES = UNIT / 2, MOST_DIRECT = 4, CONSTANTS = 2;

    explicit FourBits(const uint16_t*) {}

    INLINE_MEMBER void decode(const char* from, int, Words* words) const {
        const Words packed = read<Words>(from);
        words[0] = number(packed << 3);
        words[1] = number(packed >> 1);
        words[2] = number(packed >> 5);
        words[3] = number(packed >> 9);
    }

    INLINE_MEMBER Words number(Words shifted) const {
        const __m512i mantissa = _mm512_set1_epi32(0x00780078), sixteen = _mm512_set1_epi32(0x41804180);
        return (Words)_mm512_ternarylogic_epi32((__m512i)shifted, mantissa, sixteen, 0xea);  // shifted & mantissa | sixteen
    }
};

// Floating-point numbers of 4 bits (e2m1), in words as those of `FourBits`.
struct FourBitFloats {
    using Factor = bfloat16;
    static constexpr int FEATURES = 8, PARTS = 1, BYTES = UNIT / 2, MOST_DIRECT = 4, CONSTANTS = 1;
    __m512i numbers;  // of all codes, twice, since a look-up reads five bits

    explicit FourBitFloats(const uint16_t*) {
        uint16_t bits[32];
        for (int code = 0; code < 32; code++) {
            const Word magnitude = read_word(E2M1 + (code & 7));
            bits[code] = uint16_t(magnitude >> 16 | (code & 8) << 12);
        }
        numbers = _mm512_loadu_si512(bits);
    }

    INLINE_MEMBER void decode(const char* from, int, Words* words) const {
        const Words packed = read<Words>(from);
        UNROLLED
        for (int w = 0; w < 4; w++) words[w] = (Words)_mm512_permutexvar_epi16((__m512i)(packed >> 4 * w), numbers);
    }
};

template <class Number>
using Stored = Plain<Number>;

#else

template <bool INTEGER>
struct EightBits {
    using Factor = float;
    static constexpr int FEATURES = 1, PARTS = 1, BYTES = UNIT, MOST_DIRECT = 8, CONSTANTS = INTEGER ? 0 : 3;

    explicit EightBits(const uint16_t*) {}

    INLINE_MEMBER void decode(const char* from, int, Words* words) const {
        UNROLLED
        for (int v = 0; v < VECTORS_PER_UNIT; v++) words[v] = (Words)numbers((const uint8_t*)from + v * LANES);
    }

    INLINE_MEMBER Floats numbers(const uint8_t* from) const {
        if constexpr (INTEGER) return floats_of(ints_of(from));
        return load((const e4m3*)from);
    }
};

// Bytes [features][UNIT]: all integers of 8 bits, as signs and magnitudes, decoded as a half more.
struct AllBytes {
    using Factor = float;
    static constexpr int FEATURES = 1, PARTS = 1, BYTES = UNIT, MOST_DIRECT = 8, CONSTANTS = 2;

    explicit AllBytes(const uint16_t*) {}

    INLINE_MEMBER void decode(const char* from, int, Words* words) const {
        UNROLLED
        for (int v = 0; v < VECTORS_PER_UNIT; v++) {
            const Words codes = words_of((const uint8_t*)from + v * LANES);
            words[v] = (Words)(floats_of((Ints)(codes & 0x7f)) + splat(0.5f)) | (codes & 0x80) << 24;
        }
    }
};

struct FourBits {
    using Factor = float;
    static constexpr int FEATURES = 8, PARTS = 4, BYTES = UNIT / 2, MOST_DIRECT = 8, CONSTANTS = 1;

    explicit FourBits(const uint16_t*) {}

    INLINE_MEMBER void decode(const char* from, int part, Words* words) const {
        UNROLLED
        for (int v = 0; v < VECTORS_PER_UNIT; v++) {
            const Words packed = read<Words>(from + v * sizeof(Words));
            words[v] = number(packed << (19 - 4 * part));
            words[VECTORS_PER_UNIT + v] = number(part ? packed >> (4 * part - 3) : packed << 3);
        }
    }

    INLINE_MEMBER Words number(Words shifted) const { return (shifted & 0x00780000) | 0x41800000; }
};

struct FourBitFloats {
    using Factor = float;
    static constexpr int FEATURES = 8, PARTS = 4, BYTES = UNIT / 2, MOST_DIRECT = 8, CONSTANTS = 2;
    Floats magnitudes;  // by the lower three bits; all of a vector are used

    explicit FourBitFloats(const uint16_t*) {
        for (int lane = 0; lane < LANES; lane++) magnitudes[lane] = E2M1[lane & 7];
    }

    INLINE_MEMBER void decode(const char* from, int part, Words* words) const {
        UNROLLED
        for (int v = 0; v < VECTORS_PER_UNIT; v++) {
            const Words packed = read<Words>(from + v * sizeof(Words));
            words[v] = number(packed >> (4 * part), packed << (28 - 4 * part));
            words[VECTORS_PER_UNIT + v] = number(packed >> (4 * part + 16), packed << (12 - 4 * part));
        }
    }

    // A magnitude by the lowest three bits of `codes`, with the highest bit of `signs`.
    INLINE_MEMBER Words number(Words codes, Words signs) const {
        return (Words)magnitude(codes) | (signs & 0x80000000);
    }

    INLINE_MEMBER Floats magnitude(Words codes) const {
#if defined(WITH_AVX512)
        return _mm512_permutexvar_ps((__m512i)(codes & 7), magnitudes);
#elif defined(__AVX2__)
        return _mm256_permutevar8x32_ps(magnitudes, (__m256i)codes);
#else
        return (Floats)((codes & 7) << 22) * splat(0x1p126f);
#endif
    }
};

template <class Number>
using Stored = std::conditional_t<std::is_same_v<Number, bfloat16>, Pairs, Plain<Number>>;

#endif

// By how much a decoded integer exceeds the stored one, and by how much that exceeds the one that a scale without zero is for.
template <class Form>
static constexpr float ADDED = 0;
template <class Form>
static constexpr float MIDDLE = 0;
template <>
constexpr float ADDED<FourBits> = FOUR_BITS_ADDED;
template <>
constexpr float ADDED<AllBytes> = 0.5;
template <>
constexpr float MIDDLE<FourBits> = 8;
