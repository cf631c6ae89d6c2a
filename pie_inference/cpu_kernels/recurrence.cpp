// Layers with a recurrent state: the gated delta rule and the causal convolution. Rows are float or bfloat16, states float.
//
// States go row by row, with the same operations in the same order wherever a text is cut: so a state has the same bits
// whether its rows came at once, one by one, or beside others.

#include "parallel.h"

#include <algorithm>
#include <vector>

static const int64_t NONE = -1;
static const float EPS = 1e-6f;  // under the root of a length

// ---- Gated delta rule ----

// A state's columns go in blocks that stay in the first cache: [K][COLUMNS].
static const int VECTORS = 2, COLUMNS = VECTORS * LANES;
static const int64_t TILE = 16;  // rows whose keys and queries are prepared together

struct Sums {
    Floats key[VECTORS], query[VECTORS];  // state^T key and state^T query
};

// What the next row reads of a state.
INLINE Sums read_row(const float* state, const float* key, const float* query, int64_t K) {
    Sums sums = {};
    for (int64_t k = 0; k < K; k++) {
        const Floats a = splat(key[k]), b = splat(query[k]);
        UNROLLED
        for (int v = 0; v < VECTORS; v++) {
            const Floats s = load(state + k * COLUMNS + v * LANES);
            sums.key[v] = fused(s, a, sums.key[v]);
            sums.query[v] = fused(s, b, sums.query[v]);
        }
    }
    return sums;
}

// state = decay * state + key * change^T, and what the next row reads of it, if there is one.
template <bool NEXT>
INLINE Sums update_row(float* state, float decay, const float* key, const Floats* change, const float* next_key,
                       const float* next_query, int64_t K) {
    Sums sums = {};
    const Floats factor = splat(decay);
    for (int64_t k = 0; k < K; k++) {
        const Floats now = splat(key[k]), a = splat(NEXT ? next_key[k] : 0), b = splat(NEXT ? next_query[k] : 0);
        UNROLLED
        for (int v = 0; v < VECTORS; v++) {
            float* at = state + k * COLUMNS + v * LANES;
            const Floats s = fused(now, change[v], load(at) * factor);
            store(at, s);
            if constexpr (NEXT) {
                sums.key[v] = fused(s, a, sums.key[v]);
                sums.query[v] = fused(s, b, sums.query[v]);
            }
        }
    }
    return sums;
}

// Divides a vector by its length and multiplies it by `factor`.
template <class Number>
static void unit(const Number* from, float* to, int64_t size, float factor) {
    Floats squares = {};
    each_vector(size, [&](int64_t i, int64_t count) INLINE_LAMBDA {
        const Floats numbers = load(from + i, count);
        squares = fused(numbers, numbers, squares);
    });
    const Floats scale = splat(factor / __builtin_sqrtf(sum_of(squares) + EPS));
    each_vector(size, [=](int64_t i, int64_t count) INLINE_LAMBDA { store(to + i, load(from + i, count) * scale, count); });
}

static float product(const float* a, const float* b, int64_t size) {
    Floats sum = {};
    each_vector(size, [&](int64_t i, int64_t count) INLINE_LAMBDA { sum = fused(load(a + i, count), load(b + i, count), sum); });
    return sum_of(sum);
}

// One block of a state in a slot of the pool: `columns` of the V columns of each key.
static void load_block(float* block, const float* slot, int64_t K, int64_t V, int64_t columns) {
    for (int64_t k = 0; k < K; k++) {
        UNROLLED
        for (int v = 0; v < VECTORS; v++)
            store(block + k * COLUMNS + v * LANES, slot ? load(slot + k * V + v * LANES, columns - v * LANES) : Floats{});
    }
}

static void store_block(const float* block, float* slot, int64_t K, int64_t V, int64_t columns) {
    for (int64_t k = 0; k < K; k++) {
        UNROLLED
        for (int v = 0; v < VECTORS; v++) store(slot + k * V + v * LANES, load(block + k * COLUMNS + v * LANES), columns - v * LANES);
    }
}

template <class Number>
struct Delta {
    const Number *query, *key, *value;
    int64_t query_stride, key_stride, value_stride;  // of rows
    const float *decay, *beta;                       // [T, heads]
    Number* output;                                  // [T, heads, V]
    float* states;
    int64_t slot_stride, K, V, heads, key_heads;
    const int64_t *starts, *reads, *writes;

    float* slot(int64_t number, int64_t head) const {
        return number == NONE ? nullptr : states + number * slot_stride + head * K * V;
    }

    // All rows of a sequence, for one head.
    void run(int64_t sequence, int64_t head) const {
        thread_local std::vector<float> memory;
        const int64_t blocks = (V + COLUMNS - 1) / COLUMNS, begin = starts[sequence], end = starts[sequence + 1];
        memory.resize(blocks * K * COLUMNS + 2 * TILE * K + 3 * TILE);
        float *blocks_at = memory.data(), *keys = blocks_at + blocks * K * COLUMNS, *queries = keys + TILE * K;
        float *factors = queries + TILE * K, *products = factors + TILE, *betas = products + TILE;
        for (int64_t first = begin; first < end; first += TILE) {
            const int64_t count = std::min(TILE, end - first);
            for (int64_t i = 0; i < count; i++) {
                const int64_t row = first + i, shared = head / (heads / key_heads) * K;
                unit(key + row * key_stride + shared, keys + i * K, K, 1.0f);
                unit(query + row * query_stride + shared, queries + i * K, K, 1.0f / __builtin_sqrtf(float(K)));
                products[i] = product(keys + i * K, queries + i * K, K);
                factors[i] = exp(splat(decay[row * heads + head]))[0];
                betas[i] = beta[row * heads + head];
            }
            for (int64_t b = 0; b < blocks; b++) {
                const int64_t column = b * COLUMNS, columns = std::min<int64_t>(COLUMNS, V - column);
                float* block = blocks_at + b * K * COLUMNS;
                if (first == begin) {
                    const float* from = slot(reads[sequence], head);
                    load_block(block, from ? from + column : nullptr, K, V, columns);
                }
                Sums sums = read_row(block, keys, queries, K);
                for (int64_t i = 0; i < count; i++) {
                    const int64_t row = first + i;
                    const Number* wanted = value + row * value_stride + head * V + column;
                    Number* result = output + (row * heads + head) * V + column;
                    const Floats factor = splat(factors[i]);
                    Floats change[VECTORS];
                    UNROLLED
                    for (int v = 0; v < VECTORS; v++) {
                        const int64_t left = columns - v * LANES;
                        change[v] = splat(betas[i]) * (load(wanted + v * LANES, left) - factor * sums.key[v]);
                        store(result + v * LANES, fused(change[v], splat(products[i]), factor * sums.query[v]), left);
                    }
                    const float *now = keys + i * K, *next = now + K, *next_query = queries + (i + 1) * K;
                    if (i + 1 < count) sums = update_row<true>(block, factors[i], now, change, next, next_query, K);
                    else update_row<false>(block, factors[i], now, change, now, now, K);
                    if (float* to = slot(writes[row], head)) store_block(block, to + column, K, V, columns);
                }
            }
        }
    }
};

// ---- Convolution ----

static const int64_t CHANNELS = 512;  // of one task
static const int64_t NUMBERS_PER_THREAD = 1 << 15;

template <class Number>
struct Convolution {
    const Number* rows;  // [T, channels] with a stride of rows
    int64_t row_stride;
    const float* taps;  // [width, channels], the oldest first
    Number* output;     // [T, channels]
    float* states;      // [slots, width - 1, channels] with a stride of slots
    int64_t slot_stride, channels, width;
    const int64_t *starts, *reads, *writes;

    // All rows of a sequence, for the channels of one task.
    void run(int64_t sequence, int64_t task) const {
        thread_local std::vector<float> memory;
        const int64_t past = width - 1, channel = task * CHANNELS, size = std::min(CHANNELS, channels - channel);
        memory.resize(width * CHANNELS);
        float* recent = memory.data();  // the inputs of a row, in a ring
        const int64_t read = reads[sequence];
        for (int64_t i = 0; i < past; i++) {
            const float* from = states + read * slot_stride + i * channels + channel;
            for (int64_t c = 0; c < size; c++) recent[i * CHANNELS + c] = read == NONE ? 0 : from[c];
        }
        int64_t oldest = 0;
        for (int64_t row = starts[sequence]; row < starts[sequence + 1]; row++) {
            float* newest = recent + (oldest + past) % width * CHANNELS;
            const Number* from = rows + row * row_stride + channel;
            Number* to = output + row * channels + channel;
            each_vector(size, [=](int64_t c, int64_t count) INLINE_LAMBDA {
                store(newest + c, load(from + c, count), count);
                Floats sum{};
                for (int64_t i = 0; i < width; i++) {
                    const float* input = recent + (oldest + i) % width * CHANNELS + c;
                    sum = fused(load(input, count), load(taps + i * channels + channel + c, count), sum);
                }
                store(to + c, sum * sigmoid(sum), count);
            });
            oldest = (oldest + 1) % width;
            if (writes[row] == NONE) continue;
            for (int64_t i = 0; i < past; i++) {
                const float* input = recent + (oldest + i) % width * CHANNELS;
                std::copy(input, input + size, states + writes[row] * slot_stride + i * channels + channel);
            }
        }
    }
};

template <class Task>
static void run_all(const Task& task, int64_t sequences, int64_t parts, int64_t numbers, int64_t threads) {
    const int64_t useful = std::clamp<int64_t>(numbers / NUMBERS_PER_THREAD, 1, threads);
    parallel(useful, sequences * parts, [&](int64_t chunk) { task.run(chunk / parts, chunk % parts); });
}

#define EXPORT(Number)                                                                                                \
    extern "C" void gated_delta_##Number(                                                                             \
        const Number* query, int64_t query_stride, const Number* key, int64_t key_stride, const Number* value,        \
        int64_t value_stride, const float* decay, const float* beta, Number* output, float* states,                   \
        int64_t slot_stride, int64_t K, int64_t V, int64_t heads, int64_t key_heads, const int64_t* starts,           \
        const int64_t* reads, const int64_t* writes, int64_t sequences, int64_t count, int64_t threads) {             \
        const Delta<Number> task{query,  key,         value, query_stride, key_stride, value_stride, decay,  beta, output, \
                                 states, slot_stride, K,     V,            heads,      key_heads,    starts, reads, writes}; \
        run_all(task, sequences, heads, count * heads * K * V, threads);                                              \
    }                                                                                                                 \
    extern "C" void convolve_##Number(const Number* rows, int64_t row_stride, const float* taps, Number* output,      \
                                      float* states, int64_t slot_stride, int64_t channels, int64_t width,            \
                                      const int64_t* starts, const int64_t* reads, const int64_t* writes,             \
                                      int64_t sequences, int64_t count, int64_t threads) {                            \
        const Convolution<Number> task{rows,     row_stride, taps,   output, states, slot_stride,                     \
                                       channels, width,      starts, reads,  writes};                                 \
        run_all(task, sequences, (channels + CHANNELS - 1) / CHANNELS, count * channels * width, threads);            \
    }

EXPORT(float)
EXPORT(bfloat16)
