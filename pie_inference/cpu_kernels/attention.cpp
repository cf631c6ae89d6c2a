// Attention over pages, directly on the cache, in one of two ways for each tile. Numbers are float or bfloat16. Sums, scores
// and results are float until they are stored; weights are rounded to the numbers' format for the product with values.

#include "attention_decode.h"
#include "attention_packed.h"
#include "parallel.h"

static const int64_t WRITTEN_BYTES = 1 << 16;  // least bytes of new keys and values for a chunk

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

// One call, and the data that its threads share.
template <class Number>
class Call {
  public:
    Call(const Batch& batch, const Cache& cache, const Tiles& tiles, const Layer<Number>& layer, float* partials)
        : batch_(batch), cache_(cache), tiles_(tiles), layer_(layer), partials_(partials) {}

    void run() {
        const int64_t rows = batch_.num_rows, bytes = rows * 2 * cache_.num_kv_heads * cache_.head_dim * sizeof(Number);
        const int64_t parts = std::max<int64_t>(std::min(bytes / WRITTEN_BYTES, rows), 1);
        parallel(tiles_.threads, parts, [&](int64_t n) { write_rows(batch_, cache_, layer_, share(rows, n, parts)); });
        attend_all_shared();
        const int64_t packed = (tiles_.count - tiles_.num_decodes) * cache_.num_kv_heads;
        parallel(tiles_.threads, packed + tiles_.num_decodes, [&](int64_t n) {
            // The last tiles first: in a prefill they are the largest.
            if (n < packed) attend_packed(tiles_.tiles[tiles_.count - 1 - n / cache_.num_kv_heads], n % cache_.num_kv_heads);
            else decode(n - packed);
        });
        if (!tiles_.partials) return;
        parallel(tiles_.threads, tiles_.count, [&](int64_t n) {
            const Tile& tile = tiles_.tiles[n];
            if (tile.split == 0 && tile.num_splits > 1) merge(tile);
        });
    }

  private:
    // Level by level: a tile goes on from the one before it. Threads share the heads of a tile, and its queries if there
    // are more threads than heads.
    void attend_all_shared() {
        const int64_t wanted = tiles_.threads == 1 ? 1 : TASKS_PER_THREAD * tiles_.threads;
        const int64_t head_parts = std::min(wanted, cache_.num_kv_heads), parts = (wanted + head_parts - 1) / head_parts;
        const int64_t tasks = head_parts * parts;  // of each tile
        for (int64_t first = 0, end = 0; first < tiles_.num_shared; first = end) {
            while (end < tiles_.num_shared && tiles_.shared[end].shared < first) end++;
            parallel(tiles_.threads, (end - first) * tasks, [&](int64_t n) {
                const Tile& tile = tiles_.shared[first + n / tasks];
                attend_shared(tile, share(cache_.num_kv_heads, n % head_parts, head_parts),
                              share(tile.num_queries, n % tasks / head_parts, parts));
            });
        }
    }

    void attend_shared(const Tile& tile, Range heads, Range queries) {
        if (queries.size() == 0) return;
        const int64_t group = cache_.group();
        DecodeTask<Number> task(batch_, cache_, layer_, tile, 0, heads, tiles_.shared_rows + tile.place + queries.begin,
                                queries.size());
        go_on(task, tile.shared, tile.place + queries.begin, heads);
        task.run(nullptr);
        for (int64_t head = heads.begin; head < heads.end; head++)
            task.store_partial(head, partial_of(tile, head), queries.begin * group, tile.num_queries * group);
    }

    // Begins a task, whose first query is at `place`, with what a shared tile found; -1: with nothing.
    void go_on(DecodeTask<Number>& task, int64_t shared, int64_t place, Range heads) const {
        if (shared < 0) return;
        const Tile& tile = tiles_.shared[shared];
        const int64_t group = cache_.group();
        for (int64_t head = heads.begin; head < heads.end; head++)
            task.add_partial(head, partial_of(tile, head), (place - tile.place) * group, tile.num_queries * group);
    }

    void attend_packed(const Tile& tile, int64_t head) {
        PackedTask<Number> task(batch_, cache_, layer_, tile, tiles_.window, head);
        task.run();
        if (tile.num_splits == 1) task.store();
        else task.store_partial(partial_of(tile, head));
    }

    void decode(int64_t n) {
        const Tile& tile = tiles_.tiles[n];
        const Tile* upcoming = n + 1 < tiles_.num_decodes ? &tile + 1 : nullptr;
        const Range heads = {0, cache_.num_kv_heads};
        const int32_t row = batch_.q_indptr[tile.sequence] + tile.first_query;
        DecodeTask<Number> task(batch_, cache_, layer_, tile, tiles_.window, heads, &row, 1);
        go_on(task, tile.shared, tile.place, heads);
        task.run(upcoming);
        for (int64_t head = 0; head < heads.end; head++) {
            if (tile.num_splits == 1) task.store(head);
            else task.store_partial(head, partial_of(tile, head), 0, cache_.group());
        }
    }

    float* partial_of(const Tile& tile, int64_t head) const {
        return partials_ + tile.partial + head * tile.num_queries * cache_.group() * (cache_.head_dim + 2);
    }

    // Merges the tiles of a split, given the first of them.
    void merge(const Tile& tile) {
        static thread_local Memory memory;
        OnlineSoftmax<Number> softmax(layer_, cache_.head_dim);
        memory.reset(softmax.bytes(1));
        softmax.start(memory, 1);
        int64_t group = cache_.group(), rows = tile.num_queries * group;
        int64_t stride = tile.num_queries * cache_.num_heads * (cache_.head_dim + 2);
        int64_t first = batch_.q_indptr[tile.sequence] + tile.first_query;
        for (int64_t head = 0; head < cache_.num_kv_heads; head++)
            for (int64_t row = 0; row < rows; row++) {
                softmax.merge(partial_of(tile, head), tile.num_splits, stride, row, rows);
                const int64_t query_head = head * group + row % group;
                softmax.store(0, output_of(cache_, layer_, first + row / group, query_head), layer_.sink(query_head));
            }
    }

    const Batch& batch_;
    const Cache& cache_;
    const Tiles& tiles_;
    const Layer<Number>& layer_;
    float* partials_;
};

template <class Number>
static void attend(const Batch& batch, const Cache& cache, const Tiles& tiles, const Layer<Number>& layer) {
    static thread_local Memory memory;
    memory.reset(tiles.partials * sizeof(float));
    Call<Number>(batch, cache, tiles, layer, memory.take<float>(tiles.partials)).run();
}

// Writes keys and values of all rows to their slots, then attends.
#define ATTEND(Number)                                                                                                    \
    extern "C" void attend_##Number(const Batch* batch, const Cache* cache, const Tiles* tiles, Number* layer,            \
                                    const Number* query, int64_t query_stride, const Number* key_value,                   \
                                    int64_t key_value_stride, Number* output, float scale, float soft_cap,                \
                                    const float* sinks) {                                                                 \
        attend<Number>(*batch, *cache, *tiles,                                                                            \
                       {layer, query, query_stride, key_value, key_value_stride, output, scale, soft_cap, sinks});        \
    }
ATTEND(float)
ATTEND(bfloat16)
