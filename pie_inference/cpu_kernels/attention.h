// A `Forward` batch for the attention kernels. `attention/cpu/pages.py` has the same structures.
#pragma once

#include "vectors.h"

#include <algorithm>

// N sequences of T rows, with K keys in all. A key's rank is its index among the keys of its sequence.
struct Batch {
    int64_t num_sequences, num_rows;
    const int32_t *q_indptr, *q_slots, *q_positions;
    const int32_t *kv_indptr, *kv_pages, *kv_begins, *kv_ends;
    const int64_t* mask_indptr;  // null: no sequence has an explicit mask
    const uint8_t* mask_bits;
    int32_t* slot_positions;  // of all slots of the cache
    int64_t* key_indptr;      // [N + 1]
    uint32_t* key_rows;       // [K], see `Cache`
    int32_t* key_positions;   // [K]; null: no layer has a window
};

// A layer is [pages, 2 * num_kv_heads, page_size, head_dim], keys before values. A slot's row is the index of its vector for
// the first head; the vector of head h is h * page_size further, and values are num_kv_heads * page_size behind keys.
struct Cache {
    int64_t num_heads, num_kv_heads, head_dim, page_size, number_bytes;

    int64_t group() const { return num_heads / num_kv_heads; }
    uint32_t row(int64_t page, int64_t offset) const { return uint32_t(page * 2 * num_kv_heads * page_size + offset); }
};

// Queries of one sequence and the keys, by rank, that they may see. If few tiles have most of the keys, these are split
// among several tiles with the same queries, whose results are merged.
struct Tile {
    int64_t sequence, first_query, num_queries, first_key, end_key;
    int64_t split, num_splits;
    int64_t partial;  // offset of its partial result, in numbers
    int64_t shared;   // the last of the shared tiles that have the keys before `first_key`; -1: there are none
    int64_t place;    // in `Tiles::shared_rows`
};

// A *decode* is a tile of one query without an explicit mask. A *shared* tile has the queries of several decodes, and keys
// that all of them see. Its queries are the rows of the batch from `shared_rows[place]` on, its `sequence` is one of theirs.
// Decodes, and shared tiles of some of them, go on from its partial result with the keys behind its own. It stands before
// these shared tiles.
struct Tiles {
    Tile *tiles, *shared;
    int32_t* shared_rows;
    int64_t count, num_decodes;  // the first ones are decodes
    int64_t num_shared;
    int64_t threads;   // that are worth starting for the work
    int64_t partials;  // numbers in all partial results
    int64_t window;    // a query at position p sees keys at positions above p - window; 0: all
};

static const int64_t TASKS_PER_THREAD = 2;
static const int64_t DECODE_BLOCK_BYTES = 1 << 17;  // of keys and values in a block; the second-level cache holds a few blocks
static const int64_t MOST_DECODE_KEYS = 32;         // in a block

// Keys that a decode goes through at a time.
static inline int64_t decode_block(const Cache& cache) {
    const int64_t key_bytes = 2 * cache.num_kv_heads * cache.head_dim * cache.number_bytes;
    return std::clamp<int64_t>(DECODE_BLOCK_BYTES / key_bytes / 16 * 16, 16, MOST_DECODE_KEYS);
}

static inline bool has_mask(const Batch& batch, int64_t sequence) {
    return batch.mask_indptr && batch.mask_indptr[sequence] < batch.mask_indptr[sequence + 1];
}

// The arguments of one layer's call.
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
    const float* sinks;  // [num_heads]; null: none

    const float* sink(int64_t head) const { return sinks ? sinks + head : nullptr; }
};

template <class Number>
static inline Number* output_of(const Cache& cache, const Layer<Number>& layer, int64_t row, int64_t head) {
    return layer.output + (row * cache.num_heads + head) * cache.head_dim;
}

// ---- Masks: a bit for each of 16 keys ----

// The first `count` keys.
static inline uint16_t first_keys(int64_t count) {
    return uint16_t((1u << std::clamp<int64_t>(count, 0, 16)) - 1);
}

// Those of `count` keys that are at positions above `hidden`.
static inline uint16_t keys_above(const int32_t* positions, int64_t count, int64_t hidden) {
    uint32_t bits = 0;
    for (int first = 0; first < 16; first += LANES)
        bits |= bits_of(read<Ints>(positions + first, count - first) > int32_t(hidden)) << first;
    return bits & first_keys(count);
}
