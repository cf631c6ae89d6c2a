// Attention of single queries: a thread takes all heads of one tile and goes through its keys block by block. Each key has
// too few rows to pay for packing it, so keys and values are read in place. A shared tile is the same with several queries:
// they take turns at each block, which is in the first-level cache then, and its heads and queries are shared by threads.
//
// Memory is the bound. So the heads of a block come in the order in which a page stores them, and while a head computes,
// its vectors of the next block are prefetched.
#pragma once

#include "attention_words.h"
#include "online_softmax.h"

// Rows and keys whose scores are computed at a time; their sums stay in registers.
template <class Number>
static constexpr int SCORED_ROWS = REGISTERS == 16 || (LANES == 16 && PIECES<Number> == 2) ? 2 : 3;
static constexpr int scored_keys(int rows) {
    return rows == 1 || LANES == 4 ? LANES : LANES / 2;
}

// The same for rows and units of mixed values.
static const int MIXED_ROWS = 4;
static constexpr int mixed_units(int rows) {
    return std::min(4, REGISTERS / 2 / rows) / VECTORS_PER_UNIT;
}

// scores [ROWS][16] = queries [ROWS][dim] * 16 keys, each `offset` numbers behind where `keys` points.
template <int ROWS, class Number>
INLINE void score(const Number* queries, const Number* const* keys, int64_t offset, int64_t dim, float* scores,
                  int64_t stride) {
    constexpr int STORED = PER_WORD<Number>, KEYS = scored_keys(ROWS);
    for (int first = 0; first < UNIT; first += LANES) {
        Floats parts[ROWS][LANES / KEYS];
        for (int part = 0; part < LANES / KEYS; part++) {
            const Number* const* own = keys + first + part * KEYS;
            Floats sums[ROWS][KEYS];
            UNROLLED
            for (int r = 0; r < ROWS; r++)
                UNROLLED
                for (int i = 0; i < KEYS; i++) sums[r][i] = Floats{};
            for (int64_t d = 0; d < dim; d += LANES * STORED) {
                Words query[ROWS][PIECES<Number>];
                UNROLLED
                for (int r = 0; r < ROWS; r++)
                    UNROLLED
                    for (int p = 0; p < PIECES<Number>; p++)
                        query[r][p] = piece<Number>(stored_words(queries + r * dim + d, (dim - d) / STORED), p);
                UNROLLED
                for (int i = 0; i < KEYS; i++) {
                    const Words stored = stored_words(own[i] + offset + d, (dim - d) / STORED);
                    UNROLLED
                    for (int p = 0; p < PIECES<Number>; p++) {
                        const Words key = piece<Number>(stored, p);
                        UNROLLED
                        for (int r = 0; r < ROWS; r++)
                            sums[r][i] = multiply_add((const Factor<Number>*)0, query[r][p], key, sums[r][i]);
                    }
                }
            }
            UNROLLED
            for (int r = 0; r < ROWS; r++) parts[r][part] = fold<KEYS>(sums[r]);
        }
        UNROLLED
        for (int r = 0; r < ROWS; r++)
            write(scores + r * stride + first, KEYS == LANES ? parts[r][0] : fold_on(parts[r][0], parts[r][1]));
    }
}

// mixed [ROWS][UNITS * 16] += weights [ROWS][steps] * values, from `column` numbers behind where `values` points.
template <int ROWS, int UNITS, class Number>
INLINE void mix(const Factor<Number>* weights, int64_t weights_stride, const Number* const* values, int64_t column,
                int64_t steps, float* mixed, int64_t mixed_stride) {
    constexpr int PER = PER_WORD<Factor<Number>>, VECTORS = UNITS * VECTORS_PER_UNIT;
    Floats sums[ROWS][VECTORS];
    UNROLLED
    for (int r = 0; r < ROWS; r++)
        UNROLLED
        for (int v = 0; v < VECTORS; v++) sums[r][v] = read<Floats>(mixed + r * mixed_stride + v * LANES);
    for (int64_t step = 0; step < steps; step++) {
        Words words[VECTORS];
        value_words<UNITS>(values + step * PER, column, words);
        UNROLLED
        for (int r = 0; r < ROWS; r++) {
            const Words weight = splat(read_word(weights + r * weights_stride + step * PER));
            UNROLLED
            for (int v = 0; v < VECTORS; v++)
                sums[r][v] = multiply_add((const Factor<Number>*)0, weight, words[v], sums[r][v]);
        }
    }
    UNROLLED
    for (int r = 0; r < ROWS; r++)
        UNROLLED
        for (int v = 0; v < VECTORS; v++) write(mixed + r * mixed_stride + v * LANES, sums[r][v]);
}

// Attends with some key-value heads of one tile, and with `count` queries, in these rows of the batch. As in `PackedTask`, a
// row of a head is one query of one of the heads that share keys.
template <class Number>
class DecodeTask {
  public:
    DecodeTask(const Batch& batch, const Cache& cache, const Layer<Number>& layer, const Tile& tile, int64_t window,
               Range heads, const int32_t* rows, int64_t count)
        : batch_(batch), cache_(cache), layer_(layer), tile_(tile), window_(window), heads_(heads), row_(rows[0]),
          softmax_(layer, cache.head_dim) {
        dim_ = cache.head_dim;
        group_ = cache.group();
        rows_ = count * group_;
        values_offset_ = cache.num_kv_heads * cache.page_size * dim_;
        most_keys_ = decode_block(cache);
        const int64_t all = heads.size() * rows_;
        static thread_local Memory memory;
        memory.reset(softmax_.bytes(all) + rows_ * MOST_DECODE_KEYS * (4 + sizeof(Factor<Number>)) +
                     all * dim_ * sizeof(Number) + 3 * 64);
        softmax_.start(memory, all);
        scores_ = memory.take<float>(rows_ * MOST_DECODE_KEYS);
        weights_ = memory.take<Factor<Number>>(rows_ * MOST_DECODE_KEYS);
        queries_ = count == 1 ? query_of(row_, heads.begin) : gather(rows, count, memory.take<Number>(all * dim_));
    }

    // Goes on from rows `first` .. of a partial result with `rows` rows, of one head.
    void add_partial(int64_t head, const float* partial, int64_t first, int64_t rows) {
        for (int64_t row = 0; row < rows_; row++) softmax_.add_partial(row_of(head) + row, partial, first + row, rows);
    }

    // `upcoming` is the tile that this thread is likely to take next, or null.
    void run(const Tile* upcoming) {
        for (int64_t first = tile_.first_key; first < tile_.end_key; first += most_keys_) {
            Block block = {first, std::min(most_keys_, tile_.end_key - first)};
            const int64_t end = first + block.count;
            const bool last = end == tile_.end_key;
            if (const Tile* next = last ? upcoming : &tile_) {
                const int64_t from = last ? next->first_key : end;
                block.num_fetched = std::min(most_keys_, next->end_key - from);
                block.fetched = batch_.key_rows + batch_.key_indptr[next->sequence] + from;
            }
            attend_block(block);
        }
    }

    void store(int64_t head) const {
        for (int64_t row = head * group_; row < (head + 1) * group_; row++)
            softmax_.store(row, output_of(cache_, layer_, row_, row), layer_.sink(row));
    }

    // As rows `to` .. of a partial result with `rows` rows.
    void store_partial(int64_t head, float* partial, int64_t to, int64_t rows) const {
        softmax_.store_partial(row_of(head), rows_, partial, to, rows);
    }

  private:
    struct Block {
        int64_t first, count;
        int64_t num_fetched = 0;
        const uint32_t* fetched = nullptr;  // rows of the keys to fetch meanwhile

        int64_t units() const { return (count + UNIT - 1) / UNIT; }
    };

    int64_t row_of(int64_t head) const { return (head - heads_.begin) * rows_; }  // the first one of a head

    const Number* query_of(int64_t row, int64_t head) const {
        return layer_.query + row * layer_.query_stride + head * group_ * dim_;
    }

    // Copies queries to [heads][rows][head_dim].
    const Number* gather(const int32_t* rows, int64_t count, Number* queries) const {
        Number* to = queries;
        for (int64_t head = heads_.begin; head < heads_.end; head++)
            for (int64_t n = 0; n < count; n++, to += group_ * dim_)
                std::memcpy(to, query_of(rows[n], head), group_ * dim_ * sizeof(Number));
        return queries;
    }

    void attend_block(const Block& block) {
        find(block);
        const uint16_t* masks = window_ || block.count % UNIT ? masks_ : nullptr;
        for (int64_t u = 0; masks && u < block.units(); u++) masks_[u] = visible(block, u * UNIT);
        for (int64_t head = heads_.begin; head < heads_.end; head++) {
            score_block(block, head);
            for (int64_t row = 0; row < rows_; row++)
                softmax_.weigh(row_of(head) + row, scores_ + row * MOST_DECODE_KEYS, weights_ + row * MOST_DECODE_KEYS,
                               masks, block.units());
            for (int64_t n = 0; n < block.num_fetched; n += UNIT) fetch(block, n, head_offset(head) + values_offset_);
            mix_block(block, head);
        }
    }

    // Addresses of the first head's keys and values; whole units, the last ones repeated.
    void find(const Block& block) {
        const uint32_t* rows = batch_.key_rows + batch_.key_indptr[tile_.sequence] + block.first;
        for (int64_t n = 0; n < UNIT * block.units(); n++) {
            keys_[n] = layer_.cache + rows[std::min(n, block.count - 1)] * dim_;
            values_[n] = keys_[n] + values_offset_;
        }
    }

    // Which of 16 keys of the block are visible.
    uint16_t visible(const Block& block, int64_t offset) const {
        const int64_t count = block.count - offset;
        if (!window_) return first_keys(count);
        const int32_t* positions = batch_.key_positions + batch_.key_indptr[tile_.sequence] + block.first + offset;
        return keys_above(positions, count, batch_.q_positions[row_] - window_);
    }

    int64_t head_offset(int64_t head) const { return head * cache_.page_size * dim_; }

    void score_block(const Block& block, int64_t head) {
        const Number* queries = queries_ + row_of(head) * dim_;
        for (int64_t n = 0; n < block.count; n += UNIT) {
            fetch(block, n, head_offset(head));
            by_rows<SCORED_ROWS<Number>>(rows_, [&](int64_t row, auto rows) {
                score<rows.value>(queries + row * dim_, keys_ + n, head_offset(head), dim_,
                                  scores_ + row * MOST_DECODE_KEYS + n, MOST_DECODE_KEYS);
            });
        }
    }

    void mix_block(const Block& block, int64_t head) {
        constexpr int PER = PER_WORD<Factor<Number>>;
        const int64_t steps = (block.count + PER - 1) / PER;
        by_rows<MIXED_ROWS>(rows_, [&](int64_t row, auto rows) {
            constexpr int UNITS = mixed_units(rows.value);
            const Factor<Number>* weights = weights_ + row * MOST_DECODE_KEYS;
            float* mixed = softmax_.mixed(row_of(head) + row);
            for (int64_t d = 0; d < dim_; d += UNITS * UNIT)
                with_constant<UNITS>(std::min<int64_t>((dim_ - d) / UNIT, UNITS), [&](auto units) {
                    mix<rows.value, units.value>(weights, MOST_DECODE_KEYS, values_, head_offset(head) + d, steps,
                                                 mixed + d, dim_);
                });
        });
    }

    // Prefetches 16 keys, or values, of the next block. Keys come apart from values, because long pieces of memory come at
    // twice the rate of short ones.
    INLINE_MEMBER void fetch(const Block& block, int64_t first, int64_t offset) const {
        for (int64_t n = first; n < std::min(first + UNIT, block.num_fetched); n++) {
            const Number* vector = layer_.cache + block.fetched[n] * dim_ + offset;
            for (int64_t d = 0; d < dim_; d += LINE / sizeof(Number)) prefetch(vector + d);
        }
    }

    const Batch& batch_;
    const Cache& cache_;
    const Layer<Number>& layer_;
    const Tile& tile_;
    int64_t window_;
    Range heads_;
    int64_t row_;  // of the first query
    int64_t dim_, group_, rows_, values_offset_, most_keys_;
    OnlineSoftmax<Number> softmax_;
    const Number* queries_;
    float* scores_;
    Factor<Number>* weights_;
    const Number *keys_[MOST_DECODE_KEYS], *values_[MOST_DECODE_KEYS];
    uint16_t masks_[MOST_DECODE_KEYS / UNIT];
};
