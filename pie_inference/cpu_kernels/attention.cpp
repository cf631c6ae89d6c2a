// Attention over pages, straight from the cache: a thread takes one key-value head of one tile, goes through its keys
// block by block, and keeps a running maximum and total for each row of scores (online softmax).
//
// A row is one query of one of the heads that share keys: query q and head g of the group are row q * group + g. So keys
// are read once for the whole group, and a tile of queries is one product. Numbers are float or bfloat16; sums, scores
// and results are float until they are stored, weights are rounded to the numbers' format for the product with values.

#include "attention.h"

#include "parallel.h"
#include "tiles.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

static const float LOG2_E = 1.44269504f;
static const float LOWEST = -std::numeric_limits<float>::infinity();
static const int64_t BLOCK_BYTES = 1 << 15;  // of packed keys and values, in the first-level cache beside the rest
static const int64_t MOST_KEYS = 128;        // in a block

// What one layer's call brings.
template <class Number>
struct Layer {
    Number* cache;
    const Number* query;  // [T, num_heads, head_dim], a row has query_stride
    int64_t query_stride;
    const Number* key_value;  // [T, 2 * num_kv_heads, head_dim], a row has key_value_stride
    int64_t key_value_stride;
    Number* output;  // [T, num_heads, head_dim]
    float scale;
    float soft_cap;  // 0: none
};

// 2 to the power of each number, to about 1e-7 of it; 0 for minus infinity.
static inline __m512 power_of_two(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-200.0f));
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(0.0013390863f);
    const float coefficients[] = {0.009676032f, 0.055503570f, 0.24022107f, 0.69314718f, 1.0000001f};
    for (float c : coefficients) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    return _mm512_scalef_ps(p, n);
}

static inline __m512 tanh(__m512 x) {
    __m512 e = power_of_two(_mm512_mul_ps(_mm512_min_ps(x, _mm512_set1_ps(20.0f)), _mm512_set1_ps(2 * LOG2_E)));
    __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(_mm512_sub_ps(e, one), _mm512_add_ps(e, one));
}

// Memory of one thread, which grows and stays. What does not fit its type is not constructed.
class Memory {
  public:
    ~Memory() { std::free(bytes_); }

    // Forgets what was taken, and has room for `size` bytes.
    void reset(int64_t size) {
        used_ = 0;
        if (size <= size_) return;
        std::free(bytes_);
        size_ = (size + 4095) / 4096 * 4096;
        bytes_ = (char*)std::aligned_alloc(4096, size_);
    }

    template <class T>
    T* take(int64_t count) {
        T* taken = (T*)(bytes_ + used_);
        used_ += (count * (int64_t)sizeof(T) + 63) / 64 * 64;
        return taken;
    }

  private:
    char* bytes_ = nullptr;
    int64_t size_ = 0, used_ = 0;
};

template <class Number>
static int64_t keys_per_block(int64_t head_dim) {
    return std::clamp<int64_t>(BLOCK_BYTES / (2 * head_dim * (int64_t)sizeof(Number)) / 16 * 16, 16, MOST_KEYS);
}

// One key-value head of one tile.
template <class Number>
class Task {
  public:
    Task(const Batch& batch, const Cache& cache, const Layer<Number>& layer, const Tile& tile, int64_t window, int64_t head)
        : batch_(batch), cache_(cache), layer_(layer), tile_(tile), window_(window), head_(head) {
        dim_ = cache.head_dim;
        group_ = cache.group();
        rows_ = tile.num_queries * group_;
        most_keys_ = keys_per_block<Number>(dim_);
        num_queries_ = batch.q_indptr[tile.sequence + 1] - batch.q_indptr[tile.sequence];
        num_keys_ = batch.key_indptr[tile.sequence + 1] - batch.key_indptr[tile.sequence];
        take_memory();
    }

    void run() {
        copy_queries();
        std::fill(peaks_, peaks_ + rows_, LOWEST);
        std::fill(totals_, totals_ + rows_, 0.0f);
        std::memset(mixed_, 0, rows_ * dim_ * sizeof(float));
        for (int64_t first = tile_.first_key; first < tile_.end_key; first += most_keys_)
            attend_block(first, std::min(most_keys_, tile_.end_key - first));
    }

    void store() {
        for (int64_t row = 0; row < rows_; row++) store_row(row, mixed_ + row * dim_, totals_[row]);
    }

    // [rows][head_dim] of sums, then peaks and totals.
    void store_partial(float* partial) {
        std::memcpy(partial, mixed_, rows_ * dim_ * sizeof(float));
        std::memcpy(partial + rows_ * dim_, peaks_, rows_ * sizeof(float));
        std::memcpy(partial + rows_ * (dim_ + 1), totals_, rows_ * sizeof(float));
    }

    // Adds up what `store_partial` has stored of `count` splits, `stride` apart, and stores the result.
    void merge(const float* partials, int64_t count, int64_t stride) {
        for (int64_t row = 0; row < rows_; row++) {
            float peak = LOWEST, total = 0;
            for (int64_t n = 0; n < count; n++) peak = std::max(peak, partials[n * stride + rows_ * dim_ + row]);
            std::memset(mixed_, 0, dim_ * sizeof(float));
            for (int64_t n = 0; n < count; n++) {
                const float* partial = partials + n * stride;
                float own = partial[rows_ * dim_ + row];
                if (own == LOWEST) continue;
                float factor = std::exp2(own - peak);
                total += factor * partial[rows_ * (dim_ + 1) + row];
                for (int64_t d = 0; d < dim_; d++) mixed_[d] += factor * partial[row * dim_ + d];
            }
            store_row(row, mixed_, total);
        }
    }

  private:
    // The vectors of one block, and what hides some of its keys from some queries.
    struct Block {
        int64_t first, count, vectors;
        const uint16_t* masks;  // of 16 keys each: [queries or 1][vectors]
        bool masks_differ;      // between queries
        int64_t first_row, end_row;
    };

    void take_memory() {
        static thread_local Memory memory;
        int64_t packed = most_keys_ * dim_ * sizeof(Number), scores = MOST_ROWS * most_keys_;
        memory.reset(2 * packed + rows_ * dim_ * (sizeof(Number) + 4) + rows_ * 8 + scores * (4 + sizeof(Number)) +
                     (tile_.num_queries + 1) * most_keys_ / 8 + most_keys_ * 32 + 64 * 16);
        packed_keys_ = memory.take<Word>(packed / 4);
        packed_values_ = memory.take<Word>(packed / 4);
        queries_ = memory.take<Number>(rows_ * dim_);
        mixed_ = memory.take<float>(rows_ * dim_);
        peaks_ = memory.take<float>(rows_);
        totals_ = memory.take<float>(rows_);
        scores_ = memory.take<float>(scores);
        weights_ = memory.take<Number>(scores);
        masks_ = memory.take<uint16_t>((tile_.num_queries + 1) * most_keys_ / 16);
        keys_ = memory.take<const Number*>(most_keys_);
        values_ = memory.take<const Number*>(most_keys_);
    }

    int64_t first_row_of_batch() const { return batch_.q_indptr[tile_.sequence] + tile_.first_query; }

    void copy_queries() {
        const Number* from = layer_.query + first_row_of_batch() * layer_.query_stride + head_ * group_ * dim_;
        for (int64_t q = 0; q < tile_.num_queries; q++)
            std::memcpy(queries_ + q * group_ * dim_, from + q * layer_.query_stride, group_ * dim_ * sizeof(Number));
    }

    void attend_block(int64_t first, int64_t count) {
        Block block = {first, count, (count + 15) / 16, masks_, false, 0, rows_};
        hide(block);
        if (block.first_row >= block.end_row) return;
        pack(block);
        int64_t rows = block.end_row - block.first_row, parts = (rows + MOST_ROWS - 1) / MOST_ROWS;
        for (int64_t part = 0; part < parts; part++) {
            Range range = share(rows, part, parts);
            attend_rows(block, block.first_row + range.begin, range.end - range.begin);
        }
    }

    // Decides which keys of the block which queries see.
    void hide(Block& block) {
        for (int64_t v = 0; v < block.vectors; v++) masks_[v] = first_lanes(block.count - 16 * v);
        if (all_visible(block)) return;
        block.masks_differ = true;
        block.masks = masks_ + block.vectors;
        int64_t first = tile_.num_queries, end = 0;
        for (int64_t q = 0; q < tile_.num_queries; q++) {
            uint16_t* masks = masks_ + (q + 1) * block.vectors;
            uint16_t any = 0;
            for (int64_t v = 0; v < block.vectors; v++) any |= masks[v] = masks_[v] & visible(q, block.first + 16 * v, masks_[v]);
            if (!any) continue;
            first = std::min(first, q);
            end = q + 1;
        }
        block.first_row = first * group_;
        block.end_row = end * group_;
    }

    bool all_visible(const Block& block) const {
        if (has_mask(batch_, tile_.sequence)) return false;
        if (block.first + block.count - 1 > last_visible(0)) return false;
        if (!window_) return true;
        const int32_t* queries = batch_.q_positions + first_row_of_batch();
        int64_t hidden = *std::max_element(queries, queries + tile_.num_queries) - window_;
        const int32_t* keys = batch_.key_positions + batch_.key_indptr[tile_.sequence] + block.first;
        return *std::min_element(keys, keys + block.count) > hidden;
    }

    // Rank of the last key that the causal rule shows to query `q` of the tile.
    int64_t last_visible(int64_t q) const { return num_keys_ - num_queries_ + tile_.first_query + q; }

    // Which of 16 keys, of which `present` exist, query `q` of the tile sees.
    __mmask16 visible(int64_t q, int64_t key, __mmask16 present) const {
        __mmask16 seen = present;
        if (has_mask(batch_, tile_.sequence))
            seen &= explicit_bits((tile_.first_query + q) * num_keys_ + key);
        else
            seen &= first_lanes(std::max<int64_t>(last_visible(q) + 1 - key, 0));
        if (window_) {
            const int32_t* positions = batch_.key_positions + batch_.key_indptr[tile_.sequence] + key;
            __m512i hidden = _mm512_set1_epi32(int32_t(batch_.q_positions[first_row_of_batch() + q] - window_));
            seen &= _mm512_cmpgt_epi32_mask(_mm512_maskz_loadu_epi32(present, positions), hidden);
        }
        return seen;
    }

    // 16 bits of the sequence's mask.
    uint32_t explicit_bits(int64_t bit) const {
        const uint8_t* end = batch_.mask_bits + batch_.mask_indptr[tile_.sequence + 1];
        const uint8_t* at = batch_.mask_bits + batch_.mask_indptr[tile_.sequence] + bit / 8;
        uint32_t bits = 0;
        std::memcpy(&bits, at, std::min<int64_t>(end - at, 4));
        return bits >> bit % 8 & 0xffff;
    }

    // Meanwhile the next block's vectors are fetched: found by one index, they are too scattered for the processor to
    // foresee, and waiting for them would take several times as long as computing.
    void pack(const Block& block) {
        find(block.first, block.count);
        int64_t width = 16 * block.vectors;
        const uint32_t* next = batch_.key_rows + batch_.key_indptr[tile_.sequence] + block.first + block.count;
        int64_t fetched = std::clamp<int64_t>(tile_.end_key - block.first - block.count, 0, most_keys_);
        for (int64_t n = 0; n < block.count; n += 16) {
            for (int64_t i = n; i < std::min(n + 16, fetched); i++) prefetch(next[i]);
            pack_columns((const Word* const*)keys_ + n, std::min<int64_t>(block.count - n, 16), words(), packed_keys_ + n, width);
        }
        pack_rows(values_, block.count, dim_, packed_values_);
        int64_t filled = (block.count + NUMBERS_PER_WORD<Number> - 1) / NUMBERS_PER_WORD<Number>;
        int64_t steps = width / NUMBERS_PER_WORD<Number>;
        std::memset(packed_values_ + filled * dim_, 0, (steps - filled) * dim_ * sizeof(Word));
    }

    // Inline, for GCC takes a function that only prefetches for one without effect, and drops its calls.
    __attribute__((always_inline)) inline void prefetch(uint32_t row) const {
        const char* key = (const char*)(layer_.cache + (row + head_ * cache_.page_size) * dim_);
        int64_t behind = cache_.num_kv_heads * cache_.page_size * dim_ * sizeof(Number);
        for (int64_t i = 0; i < dim_ * (int64_t)sizeof(Number); i += 64) {
            _mm_prefetch(key + i, _MM_HINT_T1);
            _mm_prefetch(key + behind + i, _MM_HINT_T1);
        }
    }

    int64_t words() const { return dim_ / NUMBERS_PER_WORD<Number>; }

    // Addresses of keys and values; a multiple of 16, the last ones repeated.
    void find(int64_t first, int64_t count) {
        const uint32_t* rows = batch_.key_rows + batch_.key_indptr[tile_.sequence] + first;
        const Number* keys = layer_.cache + head_ * cache_.page_size * dim_;
        int64_t behind = cache_.num_kv_heads * cache_.page_size * dim_;
        for (int64_t n = 0; n < (count + 15) / 16 * 16; n++) {
            keys_[n] = keys + rows[std::min(n, count - 1)] * dim_;
            values_[n] = keys_[n] + behind;
        }
    }

    // `count` <= MOST_ROWS rows against one block.
    void attend_rows(const Block& block, int64_t first, int64_t count) {
        int64_t width = 16 * block.vectors;
        const Word* queries = (const Word*)(queries_ + first * dim_);
        multiply_rows<Number, false>({queries, words(), packed_keys_, width, scores_, width, words()}, count, width);
        for (int64_t n = 0; n < count; n++) {
            int64_t row = first + n;
            const uint16_t* masks = block.masks + (block.masks_differ ? row / group_ * block.vectors : 0);
            weigh(row, scores_ + n * width, weights_ + n * width, masks, block.vectors);
        }
        int64_t steps = width / NUMBERS_PER_WORD<Number>;
        const Word* weights = (const Word*)weights_;
        multiply_rows<Number, true>({weights, steps, packed_values_, dim_, mixed_ + first * dim_, dim_, steps}, count, dim_);
    }

    // Scores to weights, relative to the row's peak, which may rise.
    void weigh(int64_t row, float* scores, Number* weights, const uint16_t* masks, int64_t vectors) {
        float factor = layer_.soft_cap ? layer_.soft_cap * LOG2_E : layer_.scale * LOG2_E;
        __m512 highest = _mm512_set1_ps(LOWEST);
        for (int64_t v = 0; v < vectors; v++) {
            __m512 score = capped(_mm512_loadu_ps(scores + 16 * v));
            score = _mm512_mask_blend_ps(masks[v], _mm512_set1_ps(LOWEST), score);
            _mm512_storeu_ps(scores + 16 * v, score);
            highest = _mm512_max_ps(highest, score);
        }
        float peak = raise(row, _mm512_reduce_max_ps(highest) * factor);
        __m512 sum = _mm512_setzero_ps();
        for (int64_t v = 0; v < vectors; v++) {
            __m512 score = _mm512_loadu_ps(scores + 16 * v);
            __m512 weight = power_of_two(_mm512_fmsub_ps(score, _mm512_set1_ps(factor), _mm512_set1_ps(peak)));
            ::store(weights + 16 * v, weight);
            sum = _mm512_add_ps(sum, weight);
        }
        totals_[row] += _mm512_reduce_add_ps(sum);
    }

    __m512 capped(__m512 score) const {
        if (!layer_.soft_cap) return score;
        return tanh(_mm512_mul_ps(score, _mm512_set1_ps(layer_.scale / layer_.soft_cap)));
    }

    // Raises the row's peak if `highest` is above it, and scales what was added up below it. A finite peak.
    float raise(int64_t row, float highest) {
        float old = peaks_[row];
        if (highest <= old) return old == LOWEST ? 0.0f : old;
        peaks_[row] = highest;
        if (old == LOWEST) return highest;
        float factor = std::exp2(old - highest);
        totals_[row] *= factor;
        for (int64_t d = 0; d < dim_; d += 16) {
            float* mixed = mixed_ + row * dim_ + d;
            _mm512_storeu_ps(mixed, _mm512_mul_ps(_mm512_loadu_ps(mixed), _mm512_set1_ps(factor)));
        }
        return highest;
    }

    // A row that has seen nothing becomes zeros.
    void store_row(int64_t row, const float* mixed, float total) {
        int64_t in_batch = first_row_of_batch() + row / group_, head = head_ * group_ + row % group_;
        Number* output = layer_.output + (in_batch * cache_.num_heads + head) * dim_;
        __m512 factor = _mm512_set1_ps(total > 0 ? 1 / total : 0.0f);
        for (int64_t d = 0; d < dim_; d += 16) ::store(output + d, _mm512_mul_ps(_mm512_loadu_ps(mixed + d), factor));
    }

    const Batch& batch_;
    const Cache& cache_;
    const Layer<Number>& layer_;
    const Tile& tile_;
    int64_t window_, head_;
    int64_t dim_, group_, rows_, most_keys_;
    int64_t num_queries_, num_keys_;  // of the sequence
    Word *packed_keys_, *packed_values_;
    Number *queries_, *weights_;
    float *mixed_, *peaks_, *totals_, *scores_;
    uint16_t* masks_;
    const Number **keys_, **values_;
};

template <class Number>
static void write_rows(const Batch& batch, const Cache& cache, const Layer<Number>& layer, Range rows) {
    int64_t dim = cache.head_dim, page_size = cache.page_size;
    for (int64_t row = rows.begin; row < rows.end; row++) {
        int64_t slot = batch.q_slots[row];
        Number* to = layer.cache + int64_t(cache.row(slot / page_size, slot % page_size)) * dim;
        const Number* from = layer.key_value + row * layer.key_value_stride;
        for (int64_t head = 0; head < 2 * cache.num_kv_heads; head++)
            std::memcpy(to + head * page_size * dim, from + head * dim, dim * sizeof(Number));
    }
}

template <class Number>
static void attend(const Batch& batch, const Cache& cache, const Tiles& tiles, const Layer<Number>& layer) {
    static thread_local Memory memory;
    memory.reset(tiles.partials * sizeof(float));
    float* partials = memory.take<float>(tiles.partials);
    int64_t heads = cache.num_kv_heads;
    std::atomic<int64_t> next{0}, next_merge{0};
    parallel(tiles.threads, [&](int64_t thread, int64_t threads) {
        write_rows(batch, cache, layer, share(batch.num_rows, thread, threads));
        barrier(threads);
        auto partial_of = [&](const Tile& tile, int64_t head) {
            return partials + tile.partial + head * tile.num_queries * cache.group() * (cache.head_dim + 2);
        };
        // The last tiles first: of a prefill they are the largest.
        for (int64_t n; (n = next++) < tiles.count * heads;) {
            const Tile& tile = tiles.tiles[tiles.count - 1 - n / heads];
            Task<Number> task(batch, cache, layer, tile, tiles.window, n % heads);
            task.run();
            if (tile.num_splits == 1) task.store();
            else task.store_partial(partial_of(tile, n % heads));
        }
        if (!tiles.partials) return;
        barrier(threads);
        for (int64_t n; (n = next_merge++) < tiles.count * heads;) {
            const Tile& tile = tiles.tiles[n / heads];
            if (tile.split || tile.num_splits == 1) continue;
            int64_t stride = tile.num_queries * cache.num_heads * (cache.head_dim + 2);
            Task<Number>(batch, cache, layer, tile, tiles.window, n % heads).merge(partial_of(tile, n % heads), tile.num_splits, stride);
        }
    });
}

// Writes keys and values of all rows to their slots, then attends.
#define ATTEND(Number)                                                                                                    \
    extern "C" void attend_##Number(const Batch* batch, const Cache* cache, const Tiles* tiles, Number* layer,            \
                                    const Number* query, int64_t query_stride, const Number* key_value,                   \
                                    int64_t key_value_stride, Number* output, float scale, float soft_cap) {              \
        attend<Number>(*batch, *cache, *tiles,                                                                            \
                       {layer, query, query_stride, key_value, key_value_stride, output, scale, soft_cap});               \
    }
ATTEND(float)
ATTEND(bfloat16)
