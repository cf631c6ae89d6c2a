// Attention of single queries: a thread takes all heads of one tile and goes through its keys block by block. Each key has
// too few rows to pay for packing it, so keys and values are read in place.
//
// Memory is the bound. So the heads of a block come in the order in which a page stores them, and while a head computes,
// its vectors of the next block are prefetched.
#pragma once

#include "online_softmax.h"
#include "parallel.h"
#include "tiles.h"

#include <type_traits>

static const int64_t DECODE_BLOCK_BYTES = 1 << 17;  // of keys and values in a block; the second-level cache holds a few blocks
static const int64_t MOST_DECODE_KEYS = 32;         // in a block

// Calls body(first, constant) for `count` rows in nearly equal parts of at most MOST rows; the constant is their number.
template <int MOST, class Body>
static inline void by_rows(int64_t count, const Body& body) {
    int64_t parts = (count + MOST - 1) / MOST;
    for (int64_t part = 0; part < parts; part++) {
        Range rows = share(count, part, parts);
        switch (rows.end - rows.begin) {
            case 1: body(rows.begin, std::integral_constant<int, 1>()); break;
            case 2: if constexpr (MOST >= 2) body(rows.begin, std::integral_constant<int, 2>()); break;
            case 3: if constexpr (MOST >= 3) body(rows.begin, std::integral_constant<int, 3>()); break;
            case 4: if constexpr (MOST >= 4) body(rows.begin, std::integral_constant<int, 4>()); break;
        }
    }
}

static inline __m512 add_halves(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

static inline __m512 add_quarters(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}

// Sums the numbers of each of 8 vectors, in two parts; vector i belongs to key i % 4 * 4 + i / 4. `join_sums` completes the
// sums, together with those of the keys 2 further on.
static inline __m512 partial_sums(const __m512 x[8]) {
    __m512 even = add_halves(add_halves(x[0], x[1]), add_halves(x[2], x[3]));
    __m512 odd = add_halves(add_halves(x[4], x[5]), add_halves(x[6], x[7]));
    return add_quarters(even, odd);
}

static inline __m512 join_sums(__m512 a, __m512 b) {
    __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}

// scores [ROWS][16] = queries [ROWS][words] * 16 keys, each `offset` words behind where `keys` points.
template <class Number, int ROWS>
static inline void score(const Word* queries, const Word* const* keys, int64_t offset, int64_t words, float* scores,
                         int64_t stride) {
    __m512 parts[2][ROWS];
    for (int half = 0; half < 2; half++) {
        __m512 sums[ROWS][8];
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < 8; i++) sums[r][i] = _mm512_setzero_ps();
        for (int64_t word = 0; word < words; word += 16) {
            __mmask16 mask = first_lanes(words - word);
            __m512i query[ROWS];
            for (int r = 0; r < ROWS; r++) query[r] = _mm512_maskz_loadu_epi32(mask, queries + r * words + word);
            for (int i = 0; i < 8; i++) {
                __m512i key = _mm512_maskz_loadu_epi32(mask, keys[i % 4 * 4 + i / 4 + 2 * half] + offset + word);
                for (int r = 0; r < ROWS; r++) sums[r][i] = multiply_add((Number*)0, query[r], key, sums[r][i]);
            }
        }
        for (int r = 0; r < ROWS; r++) parts[half][r] = partial_sums(sums[r]);
    }
    for (int r = 0; r < ROWS; r++) _mm512_storeu_ps(scores + r * stride, join_sums(parts[0][r], parts[1][r]));
}

// VECTORS vectors of words of one step's values.
template <int VECTORS>
static inline void load_values(const float* const* values, int64_t offset, __m512i* words) {
    for (int v = 0; v < VECTORS; v++) words[v] = _mm512_loadu_si512(values[0] + offset + 16 * v);
}

template <int VECTORS>
static inline void load_values(const bfloat16* const* values, int64_t offset, __m512i* words) {
    for (int v = 0; v < VECTORS; v += 2) {
        __mmask32 mask = VECTORS - v >= 2 ? 0xffffffff : 0xffff;
        __m512i a = _mm512_maskz_loadu_epi16(mask, values[0] + offset + 16 * v);
        __m512i b = _mm512_maskz_loadu_epi16(mask, values[1] + offset + 16 * v);
        words[v] = zip_lower(a, b);
        if (v + 1 < VECTORS) words[v + 1] = zip_upper(a, b);
    }
}

// sums [ROWS][16 * VECTORS] += weights [ROWS][steps] * values, each `offset` numbers behind where `values` points.
template <class Number, int ROWS, int VECTORS>
static inline void mix(const Word* weights, int64_t weights_stride, const Number* const* values, int64_t offset, int64_t steps,
                       float* mixed, int64_t dim) {
    __m512 sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = _mm512_loadu_ps(mixed + r * dim + 16 * v);
    for (int64_t step = 0; step < steps; step++) {
        __m512i words[VECTORS];
        load_values<VECTORS>(values + step * NUMBERS_PER_WORD<Number>, offset, words);
        for (int r = 0; r < ROWS; r++) {
            __m512i weight = _mm512_set1_epi32((int)weights[r * weights_stride + step]);
            for (int v = 0; v < VECTORS; v++) sums[r][v] = multiply_add((Number*)0, weight, words[v], sums[r][v]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) _mm512_storeu_ps(mixed + r * dim + 16 * v, sums[r][v]);
}

// Attends with all heads of one tile of one query.
template <class Number>
class DecodeTask {
  public:
    DecodeTask(const Batch& batch, const Cache& cache, const Layer<Number>& layer, const Tile& tile, int64_t window)
        : batch_(batch), cache_(cache), layer_(layer), tile_(tile), window_(window), softmax_(layer, cache.head_dim) {
        dim_ = cache.head_dim;
        group_ = cache.group();
        row_ = batch.q_indptr[tile.sequence] + tile.first_query;
        values_offset_ = cache.num_kv_heads * cache.page_size * dim_;
        int64_t key_bytes = 2 * cache.num_kv_heads * dim_ * (int64_t)sizeof(Number);
        most_keys_ = std::clamp<int64_t>(DECODE_BLOCK_BYTES / key_bytes / 16 * 16, 16, MOST_DECODE_KEYS);
        static thread_local Memory memory;
        memory.reset(softmax_.bytes(cache.num_heads) + group_ * MOST_DECODE_KEYS * (4 + sizeof(Number)) + 2 * 64);
        softmax_.start(memory, cache.num_heads);
        scores_ = memory.take<float>(group_ * MOST_DECODE_KEYS);
        weights_ = memory.take<Number>(group_ * MOST_DECODE_KEYS);
    }

    // `upcoming()` is the tile that this thread may take next, or null.
    template <class Upcoming>
    void run(const Upcoming& upcoming) {
        for (int64_t first = tile_.first_key; first < tile_.end_key; first += most_keys_) {
            Block block = {first, std::min(most_keys_, tile_.end_key - first)};
            const Tile* next = &tile_;
            int64_t following = first + block.count;
            if (following == tile_.end_key && (next = upcoming())) following = next->first_key;
            block.num_fetched = next ? std::min(most_keys_, next->end_key - following) : 0;
            if (next) block.fetched = batch_.key_rows + batch_.key_indptr[next->sequence] + following;
            attend_block(block);
        }
    }

    void store(int64_t head) const {
        for (int64_t row = head * group_; row < (head + 1) * group_; row++)
            softmax_.store(row, output_of(cache_, layer_, row_, row));
    }

    void store_partial(int64_t head, float* partial) const { softmax_.store_partial(head * group_, group_, partial); }

  private:
    struct Block {
        int64_t first, count;
        int64_t num_fetched = 0;
        const uint32_t* fetched = nullptr;  // rows of the keys to fetch meanwhile

        int64_t vectors() const { return (count + 15) / 16; }
    };

    void attend_block(const Block& block) {
        find(block);
        for (int64_t v = 0; v < block.vectors(); v++) masks_[v] = visible(block, v);
        for (int64_t head = 0; head < cache_.num_kv_heads; head++) {
            score_block(block, head);
            for (int64_t row = 0; row < group_; row++)
                softmax_.weigh(head * group_ + row, scores_ + row * MOST_DECODE_KEYS, weights_ + row * MOST_DECODE_KEYS,
                               masks_, block.vectors());
            for (int64_t n = 0; n < block.num_fetched; n += 16) fetch(block, n, head_offset(head) + values_offset_);
            mix_block(block, head);
        }
    }

    // Addresses of the first head's keys and values; a multiple of 16, the last ones repeated.
    void find(const Block& block) {
        const uint32_t* rows = batch_.key_rows + batch_.key_indptr[tile_.sequence] + block.first;
        for (int64_t n = 0; n < 16 * block.vectors(); n++) {
            keys_[n] = layer_.cache + rows[std::min(n, block.count - 1)] * dim_;
            values_[n] = keys_[n] + values_offset_;
        }
    }

    __mmask16 visible(const Block& block, int64_t vector) const {
        __mmask16 present = first_lanes(block.count - 16 * vector);
        if (!window_) return present;
        const int32_t* positions = batch_.key_positions + batch_.key_indptr[tile_.sequence] + block.first + 16 * vector;
        __m512i hidden = _mm512_set1_epi32(int32_t(batch_.q_positions[row_] - window_));
        return _mm512_mask_cmpgt_epi32_mask(present, _mm512_maskz_loadu_epi32(present, positions), hidden);
    }

    int64_t head_offset(int64_t head) const { return head * cache_.page_size * dim_; }

    void score_block(const Block& block, int64_t head) {
        int64_t words = dim_ / NUMBERS_PER_WORD<Number>, offset = head_offset(head) / NUMBERS_PER_WORD<Number>;
        const Number* queries = layer_.query + row_ * layer_.query_stride + head * group_ * dim_;
        for (int64_t n = 0; n < block.count; n += 16) {
            fetch(block, n, head_offset(head));
            by_rows<3>(group_, [&](int64_t row, auto rows) {
                score<Number, rows.value>((const Word*)(queries + row * dim_), (const Word* const*)keys_ + n, offset, words,
                                          scores_ + row * MOST_DECODE_KEYS + n, MOST_DECODE_KEYS);
            });
        }
    }

    void mix_block(const Block& block, int64_t head) {
        int64_t steps = (block.count + NUMBERS_PER_WORD<Number> - 1) / NUMBERS_PER_WORD<Number>;
        by_rows<4>(group_, [&](int64_t row, auto rows) {
            const Word* weights = (const Word*)(weights_ + row * MOST_DECODE_KEYS);
            float* mixed = softmax_.mixed(head * group_ + row);
            for (int64_t d = 0; d < dim_; d += 64) {
                auto columns = [&](auto vectors) {
                    mix<Number, rows.value, vectors.value>(weights, MOST_DECODE_KEYS / NUMBERS_PER_WORD<Number>, values_,
                                                           head_offset(head) + d, steps, mixed + d, dim_);
                };
                switch (std::min<int64_t>(dim_ - d, 64) / 16) {
                    case 1: columns(std::integral_constant<int, 1>()); break;
                    case 2: columns(std::integral_constant<int, 2>()); break;
                    case 3: columns(std::integral_constant<int, 3>()); break;
                    case 4: columns(std::integral_constant<int, 4>()); break;
                }
            }
        });
    }

    // Prefetches 16 keys, or values, of the next block. Keys come apart from values, because long pieces of memory come at
    // twice the rate of short ones. Inline, because GCC drops calls of a function that only prefetches as without effect.
    __attribute__((always_inline)) inline void fetch(const Block& block, int64_t first, int64_t offset) const {
        for (int64_t n = first; n < std::min(first + 16, block.num_fetched); n++) {
            const Number* vector = layer_.cache + block.fetched[n] * dim_ + offset;
            for (int64_t d = 0; d < dim_; d += 64 / sizeof(Number)) _mm_prefetch((const char*)(vector + d), _MM_HINT_T1);
        }
    }

    const Batch& batch_;
    const Cache& cache_;
    const Layer<Number>& layer_;
    const Tile& tile_;
    int64_t window_;
    int64_t dim_, group_, row_, values_offset_, most_keys_;
    OnlineSoftmax<Number> softmax_;
    float* scores_;
    Number* weights_;
    const Number *keys_[MOST_DECODE_KEYS], *values_[MOST_DECODE_KEYS];
    uint16_t masks_[MOST_DECODE_KEYS / 16];
};
