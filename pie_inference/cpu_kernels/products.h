// Products of a few rows with matrices in units, with all sums of a tile in registers.
//
// A *word* is 32 bits: a float, or a pair of bfloat16 numbers where one instruction multiplies and adds pairs. Factors of
// both sides are words of one *feature* (float) or of two. A *unit* is 16 columns of the right-hand side, [features][16], so
// whatever the vectors' length, units are the same. A *form* says how words come from what a unit stores (`forms.h`).
//
// Each sum goes through the features in their order, whatever tile it is in: so results do not depend on what is beside a
// row.
#pragma once

#include "vectors.h"

#include <type_traits>

using Word = uint32_t;

static const int UNIT = 16;
static const int VECTORS_PER_UNIT = UNIT / LANES;
static const int64_t STREAM_AHEAD = 4096;  // bytes; 1024 and 16384 were measured to be slower

// How numbers are multiplied: as they are, or as floats.
template <bool PAIRS, class Number>
struct FactorOf {
    using Type = float;
};
template <>
struct FactorOf<true, bfloat16> {
    using Type = bfloat16;
};
template <class Number>
using Factor = typename FactorOf<WITH_PAIRS, Number>::Type;

template <class Number>
static constexpr int PER_WORD = 4 / sizeof(Number);

// Unaligned, and of whatever type.
INLINE Word read_word(const void* from) {
    Word word;
    std::memcpy(&word, from, sizeof(word));
    return word;
}

INLINE Floats multiply_add(const float*, Words a, Words b, Floats sum) {
    return fused((Floats)a, (Floats)b, sum);
}

#if WITH_PAIRS
INLINE Floats multiply_add(const bfloat16*, Words a, Words b, Floats sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
#endif

// Units whose words are stored as they are multiplied.
template <class Number>
struct Plain {
    using Factor = Number;
    static constexpr int FEATURES = PER_WORD<Number>;       // that are stored side by side
    static constexpr int PARTS = 1;                         // in which `decode` makes words of these
    static constexpr int BYTES = UNIT * sizeof(Number);     // of a feature in a unit
    static constexpr int MOST_DIRECT = 8;                   // rows for which it pays to decode while multiplying
    static constexpr int CONSTANTS = 0;                     // registers

    // words [FEATURES / PARTS / PER_WORD][VECTORS_PER_UNIT]
    INLINE_MEMBER void decode(const char* from, int, Words* words) const {
        UNROLLED
        for (int v = 0; v < VECTORS_PER_UNIT; v++) words[v] = read<Words>(from + v * sizeof(Words));
    }
};

template <class Form>
static constexpr bool IS_PLAIN = std::is_same_v<Form, Plain<typename Form::Factor>>;

// Words of a lane that `decode` makes at a time.
template <class Form>
static constexpr int WORDS_OF = Form::FEATURES / Form::PARTS / PER_WORD<typename Form::Factor>;

// The left-hand side. Row r's word s is at r * stride + s; or, interleaved, at s * ROWS + r for a tile of ROWS rows.
struct Left {
    const Word* words;
    int64_t stride;
    int64_t first = 0;  // word of each row
};

// The right-hand side: units of `features` features, a multiple of the form's.
struct Right {
    const char* from;
    int64_t unit_stride;  // bytes
    int64_t units;
    int64_t features;
};

// sums [ROWS][UNITS * UNIT] = or += left [ROWS][features] * right [UNITS][features][UNIT]
template <class Form, bool INTERLEAVED, bool ADD, bool STREAM, int ROWS, int UNITS>
static void multiply_tile(const Form& shared, const Left& left, const Right& right, float* sums, int64_t sums_stride) {
    using Number = typename Form::Factor;
    constexpr int WORDS = WORDS_OF<Form>, VECTORS = UNITS * VECTORS_PER_UNIT;
    const Form form = shared;  // a copy of one's own, so that its constants stay in registers
    Floats tile[ROWS][VECTORS];
    UNROLLED
    for (int r = 0; r < ROWS; r++)
        UNROLLED
        for (int v = 0; v < VECTORS; v++) tile[r][v] = ADD ? read<Floats>(sums + r * sums_stride + v * LANES) : Floats{};
    const Word* row = left.words;
    const int64_t bytes = right.features * Form::BYTES;
    for (int64_t offset = 0; offset < bytes; offset += Form::FEATURES * Form::BYTES) {
        UNROLLED
        for (int part = 0; part < Form::PARTS; part++) {
            Words words[UNITS][WORDS * VECTORS_PER_UNIT];
            UNROLLED
            for (int u = 0; u < UNITS; u++) {
                const char* from = right.from + u * right.unit_stride + offset;
                const bool begins_line = Form::FEATURES * Form::BYTES >= LINE || offset % LINE == 0;
                if (STREAM && part == 0 && begins_line) prefetch(from + STREAM_AHEAD);
                form.decode(from, part, words[u]);
            }
            UNROLLED
            for (int w = 0; w < WORDS; w++) {
                UNROLLED
                for (int r = 0; r < ROWS; r++) {
                    const Words factor = splat(INTERLEAVED ? row[r] : row[r * left.stride]);
                    UNROLLED
                    for (int v = 0; v < VECTORS; v++) {
                        const Words other = words[v / VECTORS_PER_UNIT][w * VECTORS_PER_UNIT + v % VECTORS_PER_UNIT];
                        tile[r][v] = multiply_add((const Number*)0, factor, other, tile[r][v]);
                    }
                }
                row += INTERLEAVED ? ROWS : 1;
            }
        }
    }
    UNROLLED
    for (int r = 0; r < ROWS; r++)
        UNROLLED
        for (int v = 0; v < VECTORS; v++) write(sums + r * sums_stride + v * LANES, tile[r][v]);
}

// Units whose sums stay in registers beside their words, for a tile of `rows` rows.
template <class Form>
static constexpr int most_units(int rows) {
    int units = (REGISTERS - 3 - Form::CONSTANTS) / (rows + WORDS_OF<Form>) / VECTORS_PER_UNIT;
    return units < 1 ? 1 : units > 4 ? 4 : units;
}

template <class Form, bool INTERLEAVED, bool ADD, bool STREAM, int ROWS>
static void multiply_units(const Form& form, const Left& left, Right right, float* sums, int64_t sums_stride) {
    constexpr int UNITS = most_units<Form>(ROWS);
    for (; right.units >= UNITS; right.units -= UNITS) {
        multiply_tile<Form, INTERLEAVED, ADD, STREAM, ROWS, UNITS>(form, left, right, sums, sums_stride);
        right.from += UNITS * right.unit_stride;
        sums += UNITS * UNIT;
    }
    for (; right.units > 0; right.units--) {
        multiply_tile<Form, INTERLEAVED, ADD, STREAM, ROWS, 1>(form, left, right, sums, sums_stride);
        right.from += right.unit_stride;
        sums += UNIT;
    }
}

static const int MOST_ROWS = REGISTERS == 32 && LANES == 16 ? 8 : 6;  // of a tile

template <class Form, bool INTERLEAVED, bool ADD, bool STREAM, int ROWS>
static void multiply_rows(int64_t rows, const Form& form, const Left& left, const Right& right, float* sums, int64_t stride) {
    if (rows == ROWS) return multiply_units<Form, INTERLEAVED, ADD, STREAM, ROWS>(form, left, right, sums, stride);
    if constexpr (ROWS > 1) multiply_rows<Form, INTERLEAVED, ADD, STREAM, ROWS - 1>(rows, form, left, right, sums, stride);
}

struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};

// One of `parts` nearly equal parts of `count` items.
INLINE Range share(int64_t count, int64_t part, int64_t parts) {
    return {count * part / parts, count * (part + 1) / parts};
}

// Tiles of interleaved rows. Few registers suit tiles of four where decoding takes some of them, as it does for few rows.
INLINE int64_t tiles_of(int64_t rows) {
    const int64_t most = REGISTERS == 16 && rows <= 8 ? 4 : MOST_ROWS;
    return (rows + most - 1) / most;
}

// sums [rows][units * UNIT] = or += left [rows][features] * right. Rows that are not interleaved are in tiles of at most MOST.
template <class Form, bool INTERLEAVED, bool ADD, bool STREAM = false, int MOST = MOST_ROWS>
static void multiply(const Form& form, const Left& left, int64_t rows, const Right& right, float* sums, int64_t sums_stride) {
    const int64_t tiles = INTERLEAVED ? tiles_of(rows) : (rows + MOST - 1) / MOST;
    for (int64_t n = 0; n < tiles; n++) {
        const Range tile = share(rows, n, tiles);
        const int64_t first = left.first * (INTERLEAVED ? tile.size() : 1);
        const Left part = {left.words + tile.begin * left.stride + first, left.stride};
        multiply_rows<Form, INTERLEAVED, ADD, STREAM, MOST>(tile.size(), form, part, right, sums + tile.begin * sums_stride,
                                                            sums_stride);
    }
}

// Calls body(constant) with `number`, from 1 to MOST, as a std::integral_constant.
template <int MOST, class Body>
INLINE void with_constant(int64_t number, const Body& body) {
    if (number == MOST) return body(std::integral_constant<int, MOST>());
    if constexpr (MOST > 1) with_constant<MOST - 1>(number, body);
}

// Calls body(first, constant) for `count` rows in nearly equal tiles of at most MOST rows; the constant is their number.
template <int MOST, class Body>
INLINE void by_rows(int64_t count, const Body& body) {
    const int64_t tiles = (count + MOST - 1) / MOST;
    for (int64_t n = 0; n < tiles; n++) {
        const Range tile = share(count, n, tiles);
        with_constant<MOST>(tile.size(), [&](auto rows) { body(tile.begin, rows); });
    }
}
