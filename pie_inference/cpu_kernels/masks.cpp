// The most probable of the tokens that may come, for which the first that is NaN is taken. Where few may, few logits are
// read.

#include "parallel.h"

#include <algorithm>
#include <cmath>
#include <cstring>

// Below this many logits a second thread costs more than it saves.
static const int64_t LOGITS_PER_THREAD = 1 << 18;
static const int64_t BITS = 64, LANES_OF_WORD = 16;

// The largest of 64 logits whose bit is set, lowest bit first; minus infinity if there is none, NaN if one of them is.
static inline float largest_of_word(const float* logits, uint64_t bits) {
    float largest[LANES_OF_WORD];
    uint32_t unknown[LANES_OF_WORD] = {};
    for (float& one : largest) one = -INFINITY;
    for (int64_t first = 0; first < BITS; first += LANES_OF_WORD) {
        const uint32_t some = bits >> first & 0xffff;
        for (int lane = 0; lane < LANES_OF_WORD; lane++) {
            const float logit = some >> lane & 1 ? logits[first + lane] : -INFINITY;
            largest[lane] = logit > largest[lane] ? logit : largest[lane];
            unknown[lane] |= logit != logit;
        }
    }
    float found = -INFINITY;
    uint32_t any = 0;
    for (float one : largest) found = one > found ? one : found;
    for (uint32_t one : unknown) any |= one;
    return any ? NAN : found;
}

static int64_t most_probable_of_row(const float* logits, const uint8_t* allowed, int64_t size) {
    int64_t best = -1;
    float largest = -INFINITY;
    for (int64_t first = 0; first < size; first += BITS) {
        uint64_t bits = 0;
        memcpy(&bits, allowed + first / 8, std::min<int64_t>(sizeof(bits), (size - first + 7) / 8));
        const bool whole = first + BITS <= size;
        if (!whole) bits &= ((uint64_t)1 << (size - first)) - 1;
        if (bits == 0 || (whole && best >= 0 && largest_of_word(logits + first, bits) <= largest)) continue;
        for (; bits; bits &= bits - 1) {
            const int64_t token = first + __builtin_ctzll(bits);
            if (std::isnan(logits[token])) return token;
            if (best < 0 || logits[token] > largest) best = token, largest = logits[token];
        }
    }
    return best;
}

// logits [any, size] and allowed [count, ceil(size / 8)], with strides of rows; rows and tokens [count].
extern "C" void most_probable_allowed(const float* logits, int64_t stride, const int64_t* rows, const uint8_t* allowed,
                                      int64_t allowed_stride, int64_t* tokens, int64_t count, int64_t size,
                                      int64_t threads) {
    const int64_t useful = std::clamp<int64_t>(count * size / LOGITS_PER_THREAD, 1, threads);
    parallel(useful, count, [=](int64_t row) {
        tokens[row] = most_probable_of_row(logits + rows[row] * stride, allowed + row * allowed_stride, size);
    });
}
