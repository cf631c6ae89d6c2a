// Linear layers: rows [M, K] times weights [N, K]. The weights are packed once, in a form that suits one row and thousands.
//
// A *step* is 32 bits of a row: one float, or a pair of bfloat16. The weights are in *panels* of 48 outputs, [steps][48]
// without gaps (the last panel is 16, 32 or 48 wide). For each step, a tile of up to 8 rows loads 3 vectors of weights and
// broadcasts one step of each row to a vector. So 24 vectors of sums stay in registers, and no sum goes across lanes.
//
// With few rows, memory is the bound: a thread reads its panels as one stream, with prefetch. With more rows than one tile,
// a block of a panel stays in the second-level cache for all tiles. Prefetching the next block meanwhile, and packing rows
// tile by tile, were both measured to be slower.

#include <algorithm>

#include "parallel.h"
#include "vectors.h"

static const int LANES = 16, VECTORS = 3, WIDTH = VECTORS * LANES, ROWS = 8;
static const int64_t BLOCK_STEPS = (256 << 10) / (WIDTH * 4);  // in a block of a panel, which stays in the second-level cache
static const int64_t ROW_BLOCK = 256;                          // rows whose partial sums are kept
static const int64_t STREAM_AHEAD = 4096;                      // bytes; 1024 and 16384 were measured to be slower
static const int64_t WEIGHTS_PER_THREAD = 1 << 15;

static inline __m512 multiply_add(__m512 sum, __m512 weights, __m512 row, float) {
    return _mm512_fmadd_ps(weights, row, sum);
}

static inline __m512 multiply_add(__m512 sum, __m512 weights, __m512 row, bfloat16) {
    return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)row);
}

template <class Number>
struct Layer {
    const float* weights;  // 32 bits are one step of one output
    const Number* bias;    // or null
    int64_t outs, steps;
};

// A tile of rows times a block of a panel.
template <class Number>
struct Tile {
    const int32_t* rows;  // first step
    int64_t row_stride;   // in steps
    const float* weights;
    int64_t steps;
    bool first, last;   // of the blocks of the panel
    float* partial;     // [rows, WIDTH], sums between blocks
    bool stream;        // whether the weights come from memory, and are used once
    const Number* bias;
    Number* output;
    int64_t output_stride, outs;  // outs: valid outputs of the panel
};

template <class Number, int R, int V>
static inline void finish(const Tile<Number>& tile, __m512 (&sums)[R][V]) {
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            float* partial = tile.partial + r * WIDTH + v * LANES;
            if (!tile.last) {
                _mm512_storeu_ps(partial, sums[r][v]);
                continue;
            }
            __mmask16 mask = first_lanes(tile.outs - v * LANES);
            __m512 sum = tile.bias ? _mm512_add_ps(sums[r][v], load(tile.bias + v * LANES, mask)) : sums[r][v];
            store(tile.output + r * tile.output_stride + v * LANES, sum, mask);
        }
}

template <class Number, int R, int V>
static void multiply(const Tile<Number>& tile) {
    __m512 sums[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            sums[r][v] = tile.first ? _mm512_setzero_ps() : _mm512_loadu_ps(tile.partial + r * WIDTH + v * LANES);
    const int32_t* rows = tile.rows;
    const float* weights = tile.weights;
    const int64_t stride = tile.row_stride;
    const bool stream = tile.stream;
    for (int64_t step = 0; step < tile.steps; step++, rows++, weights += V * LANES) {
        if (stream)
#pragma GCC unroll 3
            for (int v = 0; v < V; v++) _mm_prefetch((const char*)(weights + v * LANES) + STREAM_AHEAD, _MM_HINT_T1);
        __m512 w[V];
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) w[v] = _mm512_loadu_ps(weights + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m512 row = _mm512_castsi512_ps(_mm512_set1_epi32(rows[r * stride]));
#pragma GCC unroll 3
            for (int v = 0; v < V; v++) sums[r][v] = multiply_add(sums[r][v], w[v], row, Number{});
        }
    }
    finish<Number, R, V>(tile, sums);
}

template <class Number, int V, int R = ROWS>
static void multiply_rows(const Tile<Number>& tile, int64_t rows) {
    if constexpr (R > 0) {
        if (rows == R) return multiply<Number, R, V>(tile);
        multiply_rows<Number, V, R - 1>(tile, rows);
    }
}

template <class Number>
static void multiply_any(const Tile<Number>& tile, int64_t rows, int64_t vectors) {
    if (vectors == 3) return multiply_rows<Number, 3>(tile, rows);
    if (vectors == 2) return multiply_rows<Number, 2>(tile, rows);
    multiply_rows<Number, 1>(tile, rows);
}

// All tiles of a block of rows times one panel.
template <class Number>
static void multiply_panel(const Layer<Number>& layer, int64_t panel, const Number* rows, int64_t row_stride,
                           int64_t count, Number* output) {
    static thread_local float partial[ROW_BLOCK * WIDTH];
    int64_t first_out = panel * WIDTH, outs = std::min<int64_t>(layer.outs - first_out, WIDTH);
    int64_t vectors = (outs + LANES - 1) / LANES, tiles = (count + ROWS - 1) / ROWS;
    int64_t blocks = tiles == 1 ? 1 : (layer.steps + BLOCK_STEPS - 1) / BLOCK_STEPS;
    for (int64_t block = 0; block < blocks; block++) {
        Range steps = share(layer.steps, block, blocks);
        const float* weights = layer.weights + first_out * layer.steps + steps.begin * vectors * LANES;
        for (int64_t i = 0; i < tiles; i++) {
            Range mine = share(count, i, tiles);
            Tile<Number> tile{(const int32_t*)(rows + mine.begin * row_stride) + steps.begin,
                              row_stride * (int64_t)sizeof(Number) / 4,
                              weights,
                              steps.end - steps.begin,
                              block == 0,
                              block == blocks - 1,
                              partial + mine.begin * WIDTH,
                              tiles == 1,
                              layer.bias ? layer.bias + first_out : nullptr,
                              output + mine.begin * layer.outs + first_out,
                              layer.outs,
                              outs};
            multiply_any(tile, mine.end - mine.begin, vectors);
        }
    }
}

// rows [count, K] with a stride, in numbers; both even for bfloat16. output [count, outs] without gaps.
template <class Number>
static void linear(const Number* rows, int64_t row_stride, int64_t count, const Layer<Number>& layer, Number* output,
                   int64_t num_threads) {
    int64_t panels = (layer.outs + WIDTH - 1) / WIDTH, useful = layer.outs * layer.steps / WEIGHTS_PER_THREAD + 1;
    parallel(std::min(num_threads, useful), [=](int64_t thread, int64_t threads) {
        Range mine = share(panels, thread, threads);
        for (int64_t row = 0; row < count; row += ROW_BLOCK)
            for (int64_t panel = mine.begin; panel < mine.end; panel++)
                multiply_panel(layer, panel, rows + row * row_stride, row_stride, std::min(ROW_BLOCK, count - row),
                               output + row * layer.outs);
    });
}

#define EXPORT(Number)                                                                                              \
    extern "C" void linear_##Number(const Number* rows, int64_t row_stride, int64_t count, const float* weights,   \
                                    const Number* bias, int64_t outs, int64_t steps, Number* output,               \
                                    int64_t threads) {                                                             \
        linear(rows, row_stride, count, Layer<Number>{weights, bias, outs, steps}, output, threads);               \
    }

EXPORT(float)
EXPORT(bfloat16)
