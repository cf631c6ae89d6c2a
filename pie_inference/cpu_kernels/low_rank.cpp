// Adds to each row of a layer's results what its own adapter gives: the product of the layer's input with two narrow
// matrices. A tile is a few rows of one adapter; `hidden` is what is between the two products.

#include "parallel.h"

#include <algorithm>

// Below this many multiplications a second thread costs more than it saves.
static const int64_t PRODUCTS_PER_THREAD = 1 << 18;
static const int64_t PARTS_PER_THREAD = 4;  // so that threads that begin late get fewer
static const int64_t FEATURES = 16;         // of `hidden` in a block of work
static const int64_t COLUMNS = 4 * LANES;   // of results in a block
// Rows that are multiplied at a time, with four vectors of sums each, which stay in registers.
static const int ROWS_AT_ONCE = REGISTERS == 32 && LANES == 16 ? 4 : 2;

struct Tile {
    int32_t slot, begin, end;
};

// An adapter at this layer: down [features, ins], up [features, outs].
struct Adapter {
    const float *down, *up;
    int64_t features;
};

template <class Number>
struct LowRank {
    Number* results;
    int64_t results_stride;
    const Number* inputs;
    int64_t inputs_stride, ins, outs;
    const int32_t* rows;
    const Tile* tiles;
    int64_t num_tiles;
    const int64_t* table;  // [3, slots]
    int64_t slots;
    float* hidden;  // [rows, most_features]
    int64_t most_features;

    Adapter adapter(const Tile& tile) const {
        const int64_t* column = table + tile.slot;
        return {(const float*)column[0], (const float*)column[slots], column[2 * slots]};
    }

    // hidden[row, feature] for ROWS rows and four features, each sum in the same order whatever is beside it.
    template <int ROWS>
    void shrink(int64_t row, const Adapter& own, int64_t feature) const {
        const Number* from[ROWS];
        for (int r = 0; r < ROWS; r++) from[r] = inputs + rows[row + r] * inputs_stride;
        const float* down[4];
        for (int f = 0; f < 4; f++) down[f] = own.down + std::min(feature + f, own.features - 1) * ins;
        Floats sums[ROWS][4];
        UNROLLED
        for (int r = 0; r < ROWS; r++)
            UNROLLED
            for (int f = 0; f < 4; f++) sums[r][f] = Floats{};
        each_vector(ins, [&](int64_t i, int64_t count) INLINE_LAMBDA {
            Floats weights[4];
            UNROLLED
            for (int f = 0; f < 4; f++) weights[f] = load(down[f] + i, count);
            UNROLLED
            for (int r = 0; r < ROWS; r++) {
                const Floats numbers = load(from[r] + i, count);
                UNROLLED
                for (int f = 0; f < 4; f++) sums[r][f] = fused(numbers, weights[f], sums[r][f]);
            }
        });
        UNROLLED
        for (int r = 0; r < ROWS; r++)
            UNROLLED
            for (int f = 0; f < 4; f++)
                if (feature + f < own.features) hidden[(row + r) * most_features + feature + f] = sum_of(sums[r][f]);
    }

    // Adds hidden * up to `count` columns, at most COLUMNS, of ROWS rows. Inline, for a constant `count`.
    template <int ROWS>
    INLINE_MEMBER void expand(int64_t row, const Adapter& own, int64_t column, int64_t count) const {
        Floats sums[ROWS][4];
        UNROLLED
        for (int r = 0; r < ROWS; r++)
            UNROLLED
            for (int c = 0; c < 4; c++) sums[r][c] = Floats{};
        for (int64_t f = 0; f < own.features; f++) {
            Floats weights[4];
            UNROLLED
            for (int c = 0; c < 4; c++) weights[c] = load(own.up + f * outs + column + c * LANES, count - c * LANES);
            UNROLLED
            for (int r = 0; r < ROWS; r++) {
                const Floats number = splat(hidden[(row + r) * most_features + f]);
                UNROLLED
                for (int c = 0; c < 4; c++) sums[r][c] = fused(number, weights[c], sums[r][c]);
            }
        }
        UNROLLED
        for (int r = 0; r < ROWS; r++) {
            Number* to = results + rows[row + r] * results_stride + column;
            UNROLLED
            for (int c = 0; c < 4; c++) {
                const int64_t left = count - c * LANES;
                store(to + c * LANES, load(to + c * LANES, left) + sums[r][c], left);
            }
        }
    }

    void shrink_tile(const Tile& tile, const Adapter& own, int64_t first) const {
        by_rows<ROWS_AT_ONCE>(tile.end - tile.begin, [&](int64_t row, auto rows) {
            for (int64_t feature = first; feature < std::min(first + FEATURES, own.features); feature += 4)
                shrink<rows.value>(tile.begin + row, own, feature);
        });
    }

    void expand_tile(const Tile& tile, const Adapter& own, int64_t column) const {
        by_rows<ROWS_AT_ONCE>(tile.end - tile.begin, [&](int64_t row, auto rows) {
            if (outs - column >= COLUMNS) expand<rows.value>(tile.begin + row, own, column, COLUMNS);
            else expand<rows.value>(tile.begin + row, own, column, outs - column);
        });
    }

    // Calls body(tile, adapter, block) for `blocks` blocks of each tile.
    template <class Body>
    void each_block(int64_t threads, int64_t blocks, const Body& body) const {
        const int64_t count = num_tiles * blocks, parts = std::min(count, threads * PARTS_PER_THREAD);
        parallel(threads, parts, [&](int64_t part) {
            const Range mine = share(count, part, parts);
            for (int64_t n = mine.begin; n < mine.end; n++) {
                const Tile& tile = tiles[n / blocks];
                if (tile.begin < tile.end) body(tile, adapter(tile), n % blocks);
            }
        });
    }

    void run(int64_t most_threads) const {
        const int64_t threads = useful_threads(most_threads);
        each_block(threads, (most_features + FEATURES - 1) / FEATURES, [&](const Tile& tile, const Adapter& own, int64_t n) {
            shrink_tile(tile, own, n * FEATURES);
        });
        each_block(threads, (outs + COLUMNS - 1) / COLUMNS, [&](const Tile& tile, const Adapter& own, int64_t n) {
            if (own.features) expand_tile(tile, own, n * COLUMNS);
        });
    }

    int64_t useful_threads(int64_t most) const {
        int64_t count = 0;
        for (int64_t n = 0; n < num_tiles; n++)
            if (tiles[n].begin < tiles[n].end)
                count += (tiles[n].end - tiles[n].begin) * adapter(tiles[n]).features * (ins + outs);
        return std::clamp<int64_t>(count / PRODUCTS_PER_THREAD, 1, most);
    }
};

#define EXPORT(Number)                                                                                                \
    extern "C" void add_low_rank_##Number(Number* results, int64_t results_stride, const Number* inputs,              \
                                          int64_t inputs_stride, int64_t ins, int64_t outs, const int32_t* rows,      \
                                          const Tile* tiles, int64_t num_tiles, const int64_t* table, int64_t slots,  \
                                          float* hidden, int64_t most_features, int64_t threads) {                    \
        LowRank<Number> all{results, results_stride, inputs, inputs_stride, ins,    outs,          rows,              \
                            tiles,   num_tiles,      table,  slots,         hidden, most_features};                   \
        all.run(threads);                                                                                             \
    }

EXPORT(float)
EXPORT(bfloat16)
