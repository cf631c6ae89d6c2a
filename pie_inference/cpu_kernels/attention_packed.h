// Attention of many queries: a thread takes one key-value head of one tile, goes through its keys block by block, and packs
// each block for products.
//
// A row is one query of one of the heads that share keys: query q and head g of the group are row q * group + g. So keys
// are read once for the whole group, and a tile of queries is one product.
#pragma once

#include "online_softmax.h"
#include "parallel.h"
#include "tiles.h"

static const int64_t BLOCK_BYTES = 1 << 15;  // of packed keys and values; fits the first-level cache beside the rest
static const int64_t MOST_KEYS = 128;        // in a block

template <class Number>
static int64_t keys_per_block(int64_t head_dim) {
    return std::clamp<int64_t>(BLOCK_BYTES / (2 * head_dim * (int64_t)sizeof(Number)) / 16 * 16, 16, MOST_KEYS);
}

// Attends with one key-value head of one tile.
template <class Number>
class PackedTask {
  public:
    PackedTask(const Batch& batch, const Cache& cache, const Layer<Number>& layer, const Tile& tile, int64_t window, int64_t head)
        : batch_(batch), cache_(cache), layer_(layer), tile_(tile), window_(window), head_(head), softmax_(layer, cache.head_dim) {
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
        for (int64_t first = tile_.first_key; first < tile_.end_key; first += most_keys_)
            attend_block(first, std::min(most_keys_, tile_.end_key - first));
    }

    void store() {
        for (int64_t row = 0; row < rows_; row++)
            softmax_.store(row, output_of(cache_, layer_, first_row_of_batch() + row / group_, head_ * group_ + row % group_));
    }

    void store_partial(float* partial) { softmax_.store_partial(0, rows_, partial); }

  private:
    // The vectors of one block, and the masks that hide some of its keys from some queries.
    struct Block {
        int64_t first, count, vectors;
        const uint16_t* masks;  // of 16 keys each: [queries or 1][vectors]
        bool masks_differ;      // between queries
        int64_t first_row, end_row;
    };

    void take_memory() {
        static thread_local Memory memory;
        int64_t packed = most_keys_ * dim_ * sizeof(Number), scores = MOST_ROWS * most_keys_;
        memory.reset(2 * packed + rows_ * dim_ * sizeof(Number) + softmax_.bytes(rows_) + scores * (4 + sizeof(Number)) +
                     (tile_.num_queries + 1) * most_keys_ / 8 + most_keys_ * 32 + 64 * 16);
        packed_keys_ = memory.take<Word>(packed / 4);
        packed_values_ = memory.take<Word>(packed / 4);
        queries_ = memory.take<Number>(rows_ * dim_);
        softmax_.start(memory, rows_);
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

    // Meanwhile the vectors of the next block are prefetched: they are too scattered for the processor to predict, and
    // waiting for them would take several times as long as computing.
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

    // Inline, because GCC drops calls of a function that only prefetches as without effect.
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
            softmax_.weigh(row, scores_ + n * width, weights_ + n * width, masks, block.vectors);
        }
        int64_t steps = width / NUMBERS_PER_WORD<Number>;
        const Word* weights = (const Word*)weights_;
        multiply_rows<Number, true>({weights, steps, packed_values_, dim_, softmax_.mixed(first), dim_, steps}, count, dim_);
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
    float* scores_;
    OnlineSoftmax<Number> softmax_;
    uint16_t* masks_;
    const Number **keys_, **values_;
};
