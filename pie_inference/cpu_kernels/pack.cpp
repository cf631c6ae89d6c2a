// Packs the weights of a linear layer into the order of linear.cpp, directly from the mapped checkpoint.

#include <algorithm>

#include "parallel.h"
#include "tiles.h"
#include "vectors.h"

static const int LANES = 16, WIDTH = 48;  // as in linear.cpp

// The bits of an IEEE half.
struct half {
    uint16_t bits;
};

static inline __m512 load(const half* from, __mmask16 mask) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from));
}

// 16 steps of a row, with `count` valid numbers.
template <class Source>
static inline __m512i read_steps(const Source* from, int64_t count, float) {
    return _mm512_castps_si512(load(from, first_lanes(count)));
}

template <class Source>
static inline __m512i read_steps(const Source* from, int64_t count, bfloat16) {
    __m512 low = load(from, first_lanes(count));
    __m512 high = count > LANES ? load(from + LANES, first_lanes(count - LANES)) : _mm512_setzero_ps();
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

static inline __m512i read_steps(const bfloat16* from, int64_t count, bfloat16) {
    return _mm512_maskz_loadu_epi16(count >= 32 ? __mmask32(-1) : __mmask32((1u << count) - 1), from);
}

// Packs 16 rows of K numbers into [steps][16] of a panel of `width`. The result bypasses the caches: it is not read soon.
template <class Source, class Number>
static void pack_vector(const Source* const* rows, int64_t count, int64_t ins, float* panel, int64_t width) {
    const int64_t per_step = 4 / sizeof(Number);
    for (int64_t k = 0; k < ins; k += LANES * per_step) {
        __m512i block[16];
        for (int row = 0; row < LANES; row++)
            block[row] = row < count ? read_steps(rows[row] + k, ins - k, Number{}) : _mm512_setzero_si512();
        transpose(block);
        int64_t steps = (std::min(ins - k, LANES * per_step) + per_step - 1) / per_step;
        for (int64_t step = 0; step < steps; step++)
            _mm512_stream_si512((__m512i*)(panel + (k / per_step + step) * width), block[step]);
    }
}

// rows: addresses of `outs` rows of `ins` numbers each. packed: 64-byte aligned, for outs rounded up to 16.
template <class Source, class Number>
static void pack(const Source* const* rows, int64_t outs, int64_t ins, float* packed, int64_t num_threads) {
    const int64_t per_step = 4 / sizeof(Number), steps = (ins + per_step - 1) / per_step;
    parallel(num_threads, [=](int64_t thread, int64_t threads) {
        Range mine = share((outs + LANES - 1) / LANES, thread, threads);
        for (int64_t out = mine.begin * LANES; out < mine.end * LANES; out += LANES) {
            int64_t first = out / WIDTH * WIDTH, width = std::min<int64_t>((outs - first + LANES - 1) / LANES * LANES, WIDTH);
            pack_vector<Source, Number>(rows + out, outs - out, ins, packed + first * steps + (out - first), width);
        }
        _mm_sfence();
    });
}

#define EXPORT(Source, Number)                                                                                      \
    extern "C" void pack_##Source##_##Number(const Source* const* rows, int64_t outs, int64_t ins, float* packed,  \
                                             int64_t threads) {                                                    \
        pack<Source, Number>(rows, outs, ins, packed, threads);                                                    \
    }

EXPORT(float, float)
EXPORT(half, float)
EXPORT(bfloat16, float)
EXPORT(float, bfloat16)
EXPORT(half, bfloat16)
EXPORT(bfloat16, bfloat16)
