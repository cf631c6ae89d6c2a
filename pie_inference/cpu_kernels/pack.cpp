// Packs the weights of a linear layer into units (`products.h`), directly from the mapped checkpoint.

#include "parallel.h"

#include <algorithm>

// LANES words of a row of which `count` numbers follow, and zeros behind them.
template <class Source>
INLINE Words read_words(const Source* from, int64_t count, float) {
    return (Words)load(from, count);
}

template <class Source>
INLINE Words read_words(const Source* from, int64_t count, bfloat16) {
    return pairs_of(narrowed(load(from, count)), narrowed(load(from + LANES, count - LANES)));
}

INLINE Words read_words(const bfloat16* from, int64_t count, bfloat16) {
    return pairs_of(read<Halves>(from, count), read<Halves>(from + LANES, count - LANES));
}

// Packs LANES words of each of 16 rows, of which `count` exist, as words [LANES][16], of which the first `most` are written.
// The result bypasses the caches: it is not read soon.
template <class Source, class Number>
INLINE void pack_block(const Source* const* rows, int64_t count, int64_t first, int64_t numbers, Word* to, int64_t most) {
    for (int v = 0; v < VECTORS_PER_UNIT; v++) {
        Words block[LANES];
        UNROLLED
        for (int lane = 0; lane < LANES; lane++) {
            const int64_t row = v * LANES + lane;
            block[lane] = row < count ? read_words(rows[row] + first, numbers, Number{}) : Words{};
        }
        transpose(block);
        UNROLLED
        for (int step = 0; step < LANES; step++)
            if (step < most) stream(to + step * UNIT + v * LANES, block[step]);
    }
}

template <class Source, class Number>
static void pack_unit(const Source* const* rows, int64_t count, int64_t ins, Word* unit) {
    constexpr int64_t NUMBERS = LANES * PER_WORD<Number>;
    int64_t first = 0;
    for (; first + NUMBERS <= ins; first += NUMBERS, unit += LANES * UNIT)
        pack_block<Source, Number>(rows, count, first, NUMBERS, unit, LANES);
    const int64_t left = ins - first;
    if (left) pack_block<Source, Number>(rows, count, first, left, unit, (left + PER_WORD<Number> - 1) / PER_WORD<Number>);
}

// rows: addresses of `outs` rows of `ins` numbers each. packed: 64-byte aligned, for outs rounded up to 16.
template <class Source, class Number>
static void pack(const Source* const* rows, int64_t outs, int64_t ins, Word* packed, int64_t threads) {
    const int64_t steps = (ins + PER_WORD<Number> - 1) / PER_WORD<Number>;
    parallel(threads, (outs + UNIT - 1) / UNIT, [=](int64_t unit) {
        const int64_t first = unit * UNIT, count = std::min<int64_t>(outs - first, UNIT);
        pack_unit<Source, Number>(rows + first, count, ins, packed + first * steps);
        finish_streams();
    });
}

#define EXPORT(Source, Number)                                                                                      \
    extern "C" void pack_##Source##_##Number(const Source* const* rows, int64_t outs, int64_t ins, float* packed,  \
                                             int64_t threads) {                                                    \
        pack<Source, Number>(rows, outs, ins, (Word*)packed, threads);                                             \
    }

EXPORT(float, float)
EXPORT(half, float)
EXPORT(bfloat16, float)
EXPORT(float, bfloat16)
EXPORT(half, bfloat16)
EXPORT(bfloat16, bfloat16)
