// Finds the keys, once per batch, and cuts the work into tiles, once per batch and window.

#include "attention_sharing.h"

// Least multiplications for one more thread: about 20 microseconds of work.
static const int64_t WORK_PER_THREAD = 1 << 21;
// The cost of a bfloat16 key, in rows: it comes from memory and may be packed.
static const int64_t ROWS_PER_KEY = 8;
static const int64_t FEWEST_KEYS = 256;  // in a split

// Fills key_indptr, key_rows and key_positions; records the positions of new keys.
extern "C" void list_keys(const Batch* batch, const Cache* cache) {
    for (int64_t row = 0; row < batch->num_rows; row++)
        batch->slot_positions[batch->q_slots[row]] = batch->q_positions[row];
    int64_t key = 0;
    for (int64_t n = 0; n < batch->num_sequences; n++) {
        batch->key_indptr[n] = key;
        for (int64_t run = batch->kv_indptr[n]; run < batch->kv_indptr[n + 1]; run++) {
            int64_t page = batch->kv_pages[run];
            const int32_t* positions = batch->slot_positions + page * cache->page_size;
            for (int64_t offset = batch->kv_begins[run]; offset < batch->kv_ends[run]; offset++, key++) {
                batch->key_rows[key] = cache->row(page, offset);
                if (batch->key_positions) batch->key_positions[key] = positions[offset];
            }
        }
    }
    batch->key_indptr[batch->num_sequences] = key;
}

// Narrows the keys of a tile to those between the first and the last that its window shows to any of its queries.
static void look_through_window(const Batch& batch, int64_t window, Tile& tile) {
    const int32_t* queries = batch.q_positions + batch.q_indptr[tile.sequence] + tile.first_query;
    const int32_t* keys = batch.key_positions + batch.key_indptr[tile.sequence];
    int64_t hidden = *std::min_element(queries, queries + tile.num_queries) - window;
    while (tile.first_key < tile.end_key && keys[tile.first_key] <= hidden) tile.first_key++;
    while (tile.first_key < tile.end_key && keys[tile.end_key - 1] <= hidden) tile.end_key--;
}

static Tile make_tile(const Batch& batch, int64_t window, int64_t sequence, int64_t first, int64_t most) {
    int64_t num_queries = batch.q_indptr[sequence + 1] - batch.q_indptr[sequence];
    int64_t num_keys = batch.key_indptr[sequence + 1] - batch.key_indptr[sequence];
    int64_t count = std::min(most, num_queries - first);
    int64_t end = has_mask(batch, sequence) ? num_keys : num_keys - num_queries + first + count;
    Tile tile = {sequence, first, count, 0, end, 0, 1, 0, -1, 0};
    if (window) look_through_window(batch, window, tile);
    return tile;
}

// The work of a tile for one head, in multiplications.
static int64_t work(const Cache& cache, const Tile& tile) {
    int64_t rows = tile.num_queries * cache.group() + ROWS_PER_KEY * cache.number_bytes / 2;
    return (tile.end_key - tile.first_key) * rows * cache.head_dim;
}

static bool is_decode(const Batch& batch, const Tile& tile) {
    return tile.num_queries == 1 && !has_mask(batch, tile.sequence);
}

static int64_t round_up(int64_t number, int64_t unit) {
    return (number + unit - 1) / unit * unit;
}

// Cuts a tile into several by its keys if its work for `heads` heads is beyond `limit`. Writes before `end`, backwards.
static Tile* split(const Cache& cache, const Tile& tile, int64_t heads, int64_t limit, Tiles* tiles, Tile* end) {
    int64_t keys = tile.end_key - tile.first_key;
    int64_t wanted = std::min((work(cache, tile) * heads + limit - 1) / limit, keys / FEWEST_KEYS);
    int64_t size = wanted > 1 ? round_up((keys + wanted - 1) / wanted, 16) : std::max<int64_t>(keys, 1);
    int64_t count = std::max<int64_t>((keys + size - 1) / size, 1);
    int64_t partial = cache.num_heads * tile.num_queries * (cache.head_dim + 2);
    for (int64_t n = count - 1; n >= 0; n--) {
        Tile part = tile;
        part.first_key = tile.first_key + n * size;
        part.end_key = std::min(tile.end_key, part.first_key + size);
        part.split = n;
        part.shared = n ? -1 : tile.shared;
        part.num_splits = count;
        part.partial = tiles->partials + n * partial;
        *--end = part;
    }
    if (count > 1) tiles->partials += count * partial;
    return end;
}

// Fills tiles->tiles, which has room for `capacity` tiles; N + T / most_queries + TASKS_PER_THREAD * threads are enough. So
// has tiles->shared, and tiles->shared_rows for N rows.
extern "C" void list_tiles(const Batch* batch, const Cache* cache, int64_t most_queries, int64_t threads, Tiles* tiles,
                           int64_t capacity) {
    int64_t whole = 0, total = 0;
    tiles->partials = 0;
    Sharing sharing(*batch, decode_block(*cache), *tiles);
    if (!tiles->window) sharing.find();
    for (int64_t n = 0; n < tiles->num_shared; n++) {
        Tile& tile = tiles->shared[n];
        tile.partial = tiles->partials;
        tiles->partials += cache->num_heads * tile.num_queries * (cache->head_dim + 2);
        total += work(*cache, tile) * cache->num_kv_heads;
    }
    for (int64_t n = 0; n < batch->num_sequences; n++) {
        int64_t num_queries = batch->q_indptr[n + 1] - batch->q_indptr[n];
        for (int64_t first = 0; first < num_queries; first += most_queries) {
            tiles->tiles[whole] = sharing.without_shared(make_tile(*batch, tiles->window, n, first, most_queries));
            total += work(*cache, tiles->tiles[whole++]) * cache->num_kv_heads;
        }
    }
    tiles->threads = std::clamp<int64_t>(total / WORK_PER_THREAD, 1, threads);
    int64_t limit = tiles->threads == 1 ? INT64_MAX / 2 : std::max<int64_t>(total / (tiles->threads * TASKS_PER_THREAD), 1);
    // From the end, so that tiles are not overwritten before they are read; then moved to the front.
    Tile *end = tiles->tiles + capacity, *begin = end;
    for (int64_t n = whole - 1; n >= 0; n--) {
        Tile tile = tiles->tiles[n];
        begin = split(*cache, tile, is_decode(*batch, tile) ? cache->num_kv_heads : 1, limit, tiles, begin);
    }
    tiles->count = end - begin;
    std::copy(begin, end, tiles->tiles);
    auto decode = [&](const Tile& tile) { return is_decode(*batch, tile); };
    tiles->num_decodes = std::stable_partition(tiles->tiles, tiles->tiles + tiles->count, decode) - tiles->tiles;
}
