// Adds to each row of a layer's results what its own adapter gives: the product of the layer's input with two narrow
// matrices. A tile is a few rows of one adapter; `hidden` is what is between the two products.

#include "parallel.h"
#include "vectors.h"

// Below this many multiplications a second thread costs more than it saves.
static const int64_t PRODUCTS_PER_THREAD = 1 << 18;
static const int64_t FEATURES = 16, COLUMNS = 64;  // that a thread does at a time

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
        for (int f = 0; f < 4; f++)
            down[f] = own.down + (feature + f < own.features ? feature + f : own.features - 1) * ins;
        __m512 sums[ROWS][4] = {};
        for (int64_t i = 0; i < ins; i += 16) {
            __mmask16 mask = first_lanes(ins - i);
            __m512 weights[4];
            for (int f = 0; f < 4; f++) weights[f] = load(down[f] + i, mask);
            for (int r = 0; r < ROWS; r++) {
                __m512 numbers = load(from[r] + i, mask);
                for (int f = 0; f < 4; f++) sums[r][f] = _mm512_fmadd_ps(numbers, weights[f], sums[r][f]);
            }
        }
        for (int r = 0; r < ROWS; r++)
            for (int f = 0; f < 4 && feature + f < own.features; f++)
                hidden[(row + r) * most_features + feature + f] = _mm512_reduce_add_ps(sums[r][f]);
    }

    // Adds hidden * up to COLUMNS columns of ROWS rows.
    template <int ROWS>
    void expand(int64_t row, const Adapter& own, int64_t column) const {
        __mmask16 masks[4];
        for (int c = 0; c < 4; c++) masks[c] = column + 16 * c < outs ? first_lanes(outs - column - 16 * c) : 0;
        __m512 sums[ROWS][4] = {};
        for (int64_t f = 0; f < own.features; f++) {
            __m512 weights[4];
            for (int c = 0; c < 4; c++) weights[c] = load(own.up + f * outs + column + 16 * c, masks[c]);
            for (int r = 0; r < ROWS; r++) {
                __m512 number = _mm512_set1_ps(hidden[(row + r) * most_features + f]);
                for (int c = 0; c < 4; c++) sums[r][c] = _mm512_fmadd_ps(number, weights[c], sums[r][c]);
            }
        }
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < 4; c++) {
                Number* to = results + rows[row + r] * results_stride + column + 16 * c;
                store(to, _mm512_add_ps(load(to, masks[c]), sums[r][c]), masks[c]);
            }
    }

    template <int ROWS>
    void shrink_features(int64_t row, const Adapter& own, int64_t first) const {
        int64_t last = first + FEATURES < own.features ? first + FEATURES : own.features;
        for (int64_t feature = first; feature < last; feature += 4) shrink<ROWS>(row, own, feature);
    }

    // Calls body.of<n>(row) for all rows of a tile, n rows at a time.
    template <class Body>
    static void each_rows(const Tile& tile, const Body& body) {
        int64_t row = tile.begin;
        for (; row + 4 <= tile.end; row += 4) body.template of<4>(row);
        if (tile.end - row == 3) body.template of<3>(row);
        if (tile.end - row == 2) body.template of<2>(row);
        if (tile.end - row == 1) body.template of<1>(row);
    }

    struct Shrink {
        const LowRank& all;
        const Adapter& own;
        int64_t first;
        template <int ROWS>
        void of(int64_t row) const {
            all.template shrink_features<ROWS>(row, own, first);
        }
    };

    struct Expand {
        const LowRank& all;
        const Adapter& own;
        int64_t column;
        template <int ROWS>
        void of(int64_t row) const {
            all.template expand<ROWS>(row, own, column);
        }
    };

    void run(int64_t thread, int64_t threads) const {
        int64_t blocks = (most_features + FEATURES - 1) / FEATURES;
        Range mine = share(num_tiles * blocks, thread, threads);
        for (int64_t item = mine.begin; item < mine.end; item++) {
            const Tile& tile = tiles[item / blocks];
            if (tile.begin == tile.end) continue;
            Adapter own = adapter(tile);
            if (item % blocks * FEATURES < own.features) each_rows(tile, Shrink{*this, own, item % blocks * FEATURES});
        }
        barrier(threads);
        blocks = (outs + COLUMNS - 1) / COLUMNS;
        mine = share(num_tiles * blocks, thread, threads);
        for (int64_t item = mine.begin; item < mine.end; item++) {
            const Tile& tile = tiles[item / blocks];
            if (tile.begin == tile.end) continue;
            Adapter own = adapter(tile);
            if (own.features) each_rows(tile, Expand{*this, own, item % blocks * COLUMNS});
        }
    }

    int64_t useful_threads(int64_t most) const {
        int64_t count = 0;
        for (int64_t n = 0; n < num_tiles; n++)
            if (tiles[n].begin < tiles[n].end)
                count += (tiles[n].end - tiles[n].begin) * adapter(tiles[n]).features * (ins + outs);
        int64_t useful = count / PRODUCTS_PER_THREAD;
        return useful < 1 ? 1 : useful < most ? useful : most;
    }
};

#define EXPORT(Number)                                                                                                \
    extern "C" void add_low_rank_##Number(Number* results, int64_t results_stride, const Number* inputs,              \
                                          int64_t inputs_stride, int64_t ins, int64_t outs, const int32_t* rows,      \
                                          const Tile* tiles, int64_t num_tiles, const int64_t* table, int64_t slots,  \
                                          float* hidden, int64_t most_features, int64_t threads) {                    \
        LowRank<Number> all{results, results_stride, inputs, inputs_stride, ins,    outs,          rows,              \
                            tiles,   num_tiles,      table,  slots,         hidden, most_features};                   \
        parallel(all.useful_threads(threads), [&](int64_t thread, int64_t count) { all.run(thread, count); });        \
    }

EXPORT(float)
EXPORT(bfloat16)
