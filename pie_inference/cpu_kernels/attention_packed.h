// Attention of many queries: a thread takes one key-value head of one tile, goes through its keys block by block, and packs
// each block for products.
//
// A row is one query of one of the heads that share keys: query q and head g of the group are row q * group + g. So keys
// are read once for the whole group, and a tile of queries is one product.
#pragma once

#include "attention_words.h"
#include "online_softmax.h"
#include "tiles.h"

static const int64_t BLOCK_BYTES = 1 << 15;  // of packed keys and values; fits the first-level cache beside the rest
static const int64_t MOST_KEYS = 128;        // in a block
static const int TILE_ROWS = 6;              // that are multiplied at a time in vectors
static const int STRIPS_ROWS = 2 * STRIP;    // that are multiplied at a time in the processor's tiles

template <class Number>
static int64_t keys_per_block(int64_t head_dim) {
    const int64_t key_bytes = 2 * head_dim * sizeof(Factor<Number>), step = TILE_FEATURES;
    return std::clamp<int64_t>(BLOCK_BYTES / key_bytes / step * step, step, MOST_KEYS);
}

// Packs 16 keys as a unit [words][16].
template <class Number>
static void pack_keys(const Number* const* keys, int64_t head_dim, Word* unit) {
    constexpr int PER = PER_WORD<Factor<Number>>;
    const int64_t words = head_dim / PER;
    for (int64_t first = 0; first < words; first += LANES)
        for (int v = 0; v < VECTORS_PER_UNIT; v++) {
            Words block[LANES];
            UNROLLED
            for (int lane = 0; lane < LANES; lane++)
                block[lane] = factor_words(keys[v * LANES + lane] + first * PER, words - first);
            transpose(block);
            UNROLLED
            for (int i = 0; i < LANES; i++)
                if (first + i < words) write(unit + (first + i) * UNIT + v * LANES, block[i]);
        }
}

// Packs UNITS * 16 columns, from `column` on, of `steps` words of values each, as units [steps][16], `stride` words apart.
template <int UNITS, class Number>
INLINE void pack_values(const Number* const* values, int64_t column, int64_t steps, Word* units, int64_t stride) {
    for (int64_t step = 0; step < steps; step++) {
        Words words[UNITS * VECTORS_PER_UNIT];
        value_words<UNITS>(values + step * PER_WORD<Factor<Number>>, column, words);
        UNROLLED
        for (int v = 0; v < UNITS * VECTORS_PER_UNIT; v++)
            write(units + v / VECTORS_PER_UNIT * stride + step * UNIT + v % VECTORS_PER_UNIT * LANES, words[v]);
    }
}

// Attends with one key-value head of one tile.
template <class Number>
class PackedTask {
  public:
    PackedTask(const Batch& batch, const Cache& cache, const Layer<Number>& layer, const Tile& tile, int64_t window,
               int64_t head)
        : batch_(batch), cache_(cache), layer_(layer), tile_(tile), window_(window), head_(head),
          softmax_(layer, cache.head_dim) {
        dim_ = cache.head_dim;
        group_ = cache.group();
        rows_ = tile.num_queries * group_;
        most_keys_ = keys_per_block<Number>(dim_);
        in_tiles_ = std::is_same_v<Factor<Number>, bfloat16> && dim_ % TILE_FEATURES == 0 && can_use_tiles();
        num_queries_ = batch.q_indptr[tile.sequence + 1] - batch.q_indptr[tile.sequence];
        num_keys_ = batch.key_indptr[tile.sequence + 1] - batch.key_indptr[tile.sequence];
        take_memory();
    }

    void run() {
        copy_queries();
        const TileShapes shapes(in_tiles_ ? strip_rows() : 0);
        for (int64_t first = tile_.first_key; first < tile_.end_key; first += most_keys_)
            attend_block(first, std::min(most_keys_, tile_.end_key - first));
    }

    void store() {
        for (int64_t row = 0; row < rows_; row++) {
            const int64_t head = head_ * group_ + row % group_;
            softmax_.store(row, output_of(cache_, layer_, first_row_of_batch() + row / group_, head), layer_.sink(head));
        }
    }

    void store_partial(float* partial) { softmax_.store_partial(0, rows_, partial, 0, rows_); }

  private:
    // One block, and the masks that hide some of its keys from some queries.
    struct Block {
        int64_t first, count, units;  // a unit is 16 keys
        const uint16_t* masks;        // [queries or 1][units]; null: all keys are visible
        bool masks_differ;            // between queries
        int64_t first_row, end_row;

        int64_t width() const { return units * UNIT; }
    };

    void take_memory() {
        static thread_local Memory memory;
        const int64_t packed = most_keys_ * dim_ * sizeof(Factor<Number>), scores = rows_at_once() * most_keys_;
        const int64_t rows = rows_ + (in_tiles_ ? strip_rows() : 0);  // a strip begins anywhere
        memory.reset(2 * packed + rows * dim_ * sizeof(Factor<Number>) + softmax_.bytes(rows) +
                     scores * (4 + sizeof(Factor<Number>)) + (tile_.num_queries + 1) * most_keys_ / 8 +
                     most_keys_ * 16 + 64 * 16);
        packed_keys_ = memory.take<Word>(packed / 4);
        packed_values_ = memory.take<Word>(packed / 4);
        queries_ = memory.take<Factor<Number>>(rows * dim_);
        softmax_.start(memory, rows);
        scores_ = memory.take<float>(scores);
        weights_ = memory.take<Factor<Number>>(scores);
        masks_ = memory.take<uint16_t>((tile_.num_queries + 1) * most_keys_ / 16);
        keys_ = memory.take<const Number*>(most_keys_);
        values_ = memory.take<const Number*>(most_keys_);
    }

    int64_t first_row_of_batch() const { return batch_.q_indptr[tile_.sequence] + tile_.first_query; }

    void copy_queries() {
        const Number* from = layer_.query + first_row_of_batch() * layer_.query_stride + head_ * group_ * dim_;
        for (int64_t q = 0; q < tile_.num_queries; q++)
            copy_factors(from + q * layer_.query_stride, group_ * dim_, queries_ + q * group_ * dim_);
    }

    static void copy_factors(const Number* from, int64_t count, Factor<Number>* to) {
        if constexpr (PIECES<Number> == 1) std::memcpy(to, from, count * sizeof(Number));
        else
            for (int64_t i = 0; i < count; i += LANES) ::store(to + i, load(from + i));
    }

    void attend_block(int64_t first, int64_t count) {
        const int64_t step = in_tiles_ ? TILE_FEATURES : UNIT;
        Block block = {first, count, (count + step - 1) / step * step / UNIT, masks_, false, 0, rows_};
        hide(block);
        if (block.first_row >= block.end_row) return;
        pack(block);
        int64_t rows = block.end_row - block.first_row, parts = (rows + rows_at_once() - 1) / rows_at_once();
        for (int64_t part = 0; part < parts; part++) {
            Range range = share(rows, part, parts);
            attend_rows(block, block.first_row + range.begin, range.size());
        }
    }

    // Decides which keys of the block which queries see.
    void hide(Block& block) {
        if (all_visible(block) && block.count == block.width()) {
            block.masks = nullptr;
            return;
        }
        for (int64_t u = 0; u < block.units; u++) masks_[u] = first_keys(block.count - u * UNIT);
        if (all_visible(block)) return;
        block.masks_differ = true;
        block.masks = masks_ + block.units;
        int64_t first = tile_.num_queries, end = 0;
        for (int64_t q = 0; q < tile_.num_queries; q++) {
            uint16_t* masks = masks_ + (q + 1) * block.units;
            uint16_t any = 0;
            for (int64_t u = 0; u < block.units; u++)
                any |= masks[u] = masks_[u] ? masks_[u] & visible(block, q, u * UNIT) : 0;
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

    // Which of 16 keys of the block query `q` of the tile sees, among those that exist.
    uint16_t visible(const Block& block, int64_t q, int64_t offset) const {
        const int64_t key = block.first + offset;
        uint16_t seen = has_mask(batch_, tile_.sequence) ? explicit_bits((tile_.first_query + q) * num_keys_ + key)
                                                         : first_keys(last_visible(q) + 1 - key);
        if (window_) {
            const int32_t* positions = batch_.key_positions + batch_.key_indptr[tile_.sequence] + key;
            const int64_t hidden = batch_.q_positions[first_row_of_batch() + q] - window_;
            seen &= keys_above(positions, block.count - offset, hidden);
        }
        return seen;
    }

    // 16 bits of the sequence's mask.
    uint16_t explicit_bits(int64_t bit) const {
        const uint8_t* end = batch_.mask_bits + batch_.mask_indptr[tile_.sequence + 1];
        const uint8_t* at = batch_.mask_bits + batch_.mask_indptr[tile_.sequence] + bit / 8;
        uint32_t bits = 0;
        std::memcpy(&bits, at, std::clamp<int64_t>(end - at, 0, 4));
        return uint16_t(bits >> bit % 8);
    }

    // Meanwhile the vectors of the next block are prefetched: they are too scattered for the processor to predict, and
    // waiting for them would take several times as long as computing.
    void pack(const Block& block) {
        find(block);
        const uint32_t* next = batch_.key_rows + batch_.key_indptr[tile_.sequence] + block.first + block.count;
        int64_t fetched = std::clamp<int64_t>(tile_.end_key - block.first - block.count, 0, most_keys_);
        for (int64_t n = 0; n < block.width(); n += UNIT) {
            for (int64_t i = n; i < std::min(n + UNIT, fetched); i++) fetch(next[i]);
            pack_keys(keys_ + n, dim_, packed_keys_ + n * words());
        }
        const int64_t stride = value_unit_words(block);
        for (int64_t d = 0; d < dim_; d += 2 * UNIT) {
            Word* units = packed_values_ + d / UNIT * stride;
            if (d + UNIT < dim_) pack_values<2>(values_, d, value_steps(block), units, stride);
            else pack_values<1>(values_, d, value_steps(block), units, stride);
        }
    }

    INLINE_MEMBER void fetch(uint32_t row) const {
        const char* key = (const char*)(layer_.cache + (row + head_ * cache_.page_size) * dim_);
        int64_t behind = cache_.num_kv_heads * cache_.page_size * dim_ * sizeof(Number);
        for (int64_t i = 0; i < dim_ * (int64_t)sizeof(Number); i += LINE) {
            prefetch(key + i);
            prefetch(key + behind + i);
        }
    }

    static constexpr int PER = PER_WORD<Factor<Number>>;

    int64_t words() const { return dim_ / PER; }  // of a key
    int64_t value_steps(const Block& block) const { return ((in_tiles_ ? block.width() : block.count) + PER - 1) / PER; }
    int64_t value_unit_words(const Block& block) const { return block.width() / PER * UNIT; }

    // Addresses of keys and values; whole units, the last ones repeated.
    void find(const Block& block) {
        const uint32_t* rows = batch_.key_rows + batch_.key_indptr[tile_.sequence] + block.first;
        const Number* keys = layer_.cache + head_ * cache_.page_size * dim_;
        int64_t behind = cache_.num_kv_heads * cache_.page_size * dim_;
        for (int64_t n = 0; n < block.width(); n++) {
            keys_[n] = keys + rows[std::min(n, block.count - 1)] * dim_;
            values_[n] = keys_[n] + behind;
        }
    }

    int64_t strip_rows() const { return std::min<int64_t>(rows_, STRIP); }
    int64_t rows_at_once() const { return in_tiles_ ? STRIPS_ROWS : TILE_ROWS; }

    // `count` <= rows_at_once() rows against one block.
    void attend_rows(const Block& block, int64_t first, int64_t count) {
        const int64_t width = block.width();
        const Right keys = {(const char*)packed_keys_, words() * UNIT * (int64_t)sizeof(Word), block.units, dim_};
        multiply_block<false>(queries_ + first * dim_, dim_, count, keys, scores_, width);
        for (int64_t n = 0; n < count; n++) {
            const uint16_t* masks = block.masks;
            if (block.masks_differ) masks += (first + n) / group_ * block.units;
            softmax_.weigh(first + n, scores_ + n * width, weights_ + n * width, masks, block.units);
        }
        if (in_tiles_) std::memset(weights_ + count * width, 0, (rows_at_once() - count) * width * sizeof(Factor<Number>));
        const Right values = {(const char*)packed_values_, value_unit_words(block) * (int64_t)sizeof(Word), dim_ / UNIT,
                              value_steps(block) * PER};
        multiply_block<true>(weights_, width, count, values, softmax_.mixed(first), dim_);
    }

    // sums [rows][stride] = or += left [rows][width] * right. In tiles, rows that fill a strip are multiplied too.
    template <bool ADD>
    void multiply_block(const Factor<Number>* left, int64_t width, int64_t rows, const Right& right, float* sums, int64_t stride) {
#if WITH_TILES
        if constexpr (std::is_same_v<Factor<Number>, bfloat16>)
            if (in_tiles_) {
                const int64_t row_bytes = width * (int64_t)sizeof(bfloat16), strips = (rows + strip_rows() - 1) / strip_rows();
                const int64_t tile_bytes = TILE_FEATURES * (int64_t)sizeof(bfloat16);
                const Strips all = {(const char*)left, strips, strip_rows(), strip_rows() * row_bytes, tile_bytes, row_bytes};
                return multiply(Plain<bfloat16>(), all, right, false, ADD, sums, stride);
            }
#endif
        multiply_in_vectors<ADD>({(const Word*)left, width / PER}, rows, right, sums, stride);
    }

    // Like `multiply`, but in tiles of as many units as there are: head dimensions are often a few units.
    template <bool ADD>
    static void multiply_in_vectors(const Left& left, int64_t rows, Right right, float* sums, int64_t stride) {
        using Form = Plain<Factor<Number>>;
        with_constant<TILE_ROWS>(rows, [&](auto count) {
            constexpr int ROWS = count.value, UNITS = most_units<Form>(ROWS);
            for (; right.units > 0; right.units -= UNITS, right.from += UNITS * right.unit_stride, sums += UNITS * UNIT)
                with_constant<UNITS>(std::min<int64_t>(right.units, UNITS), [&](auto units) {
                    multiply_tile<Form, false, ADD, false, ROWS, units.value>(Form(), left, right, sums, stride);
                });
        });
    }

    const Batch& batch_;
    const Cache& cache_;
    const Layer<Number>& layer_;
    const Tile& tile_;
    int64_t window_, head_;
    int64_t dim_, group_, rows_, most_keys_;
    bool in_tiles_;
    int64_t num_queries_, num_keys_;  // of the sequence
    Word *packed_keys_, *packed_values_;
    Factor<Number> *queries_, *weights_;
    float* scores_;
    OnlineSoftmax<Number> softmax_;
    uint16_t* masks_;
    const Number **keys_, **values_;
};
