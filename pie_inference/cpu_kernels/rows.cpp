// Operations on the rows of hidden vectors: norms, rotary positions, gates. Numbers are float or bfloat16, sums float.

#include "parallel.h"

#include <algorithm>

// Below this many numbers a second thread costs more than it saves.
static const int64_t NUMBERS_PER_THREAD = 1 << 15;
static const int64_t PARTS_PER_THREAD = 4;  // so that threads that begin late get fewer

// Calls body(row) for each of `count` rows of `size` numbers.
template <class Body>
static void each_row(int64_t count, int64_t size, int64_t threads, const Body& body) {
    const int64_t useful = std::clamp<int64_t>(count * size / NUMBERS_PER_THREAD, 1, threads);
    const int64_t parts = useful == 1 ? 1 : std::min(count, useful * PARTS_PER_THREAD);
    parallel(useful, parts, [&](int64_t part) {
        const Range mine = share(count, part, parts);
        for (int64_t row = mine.begin; row < mine.end; row++) body(row);
    });
}

template <class Number>
static void normalize(const Number* row, const Number* weight, Number* output, int64_t size, float squares, float eps) {
    const Floats scale = splat(1.0f / __builtin_sqrtf(squares / size + eps));
    each_vector(size, [=](int64_t i, int64_t count) INLINE_LAMBDA {
        store(output + i, load(row + i, count) * scale * load(weight + i, count), count);
    });
}

template <class Number>
static float sum_of_squares(const Number* row, int64_t size) {
    Floats squares = {};
    each_vector(size, [&](int64_t i, int64_t count) INLINE_LAMBDA {
        const Floats numbers = load(row + i, count);
        squares = fused(numbers, numbers, squares);
    });
    return sum_of(squares);
}

// Adds `row` to `residual` in place; returns the sum of the squares of the stored numbers.
template <class Number>
static float add(Number* residual, const Number* row, int64_t size) {
    Floats squares = {};
    each_vector(size, [&](int64_t i, int64_t count) INLINE_LAMBDA {
        const Floats sum = rounded(row, load(residual + i, count) + load(row + i, count));
        store(residual + i, sum, count);
        squares = fused(sum, sum, squares);
    });
    return sum_of(squares);
}

// rows [outer, inner, size] with strides of the first two dimensions; output [outer, inner, size] without gaps.
template <class Number>
static void rms_norm(const Number* rows, int64_t outer_stride, int64_t inner_stride, const Number* weight,
                     Number* output, int64_t outer, int64_t inner, int64_t size, float eps, int64_t threads) {
    each_row(outer * inner, size, threads, [=](int64_t i) {
        const Number* row = rows + i / inner * outer_stride + i % inner * inner_stride;
        normalize(row, weight, output + i * size, size, sum_of_squares(row, size), eps);
    });
}

template <class Number>
static void add_rms_norm(Number* residual, const Number* rows, const Number* weight, Number* output, int64_t count,
                         int64_t size, float eps, int64_t threads) {
    each_row(count, size, threads, [=](int64_t row) {
        const float squares = add(residual + row * size, rows + row * size, size);
        normalize(residual + row * size, weight, output + row * size, size, squares, eps);
    });
}

// Rotates one vector, both halves at a time, because each needs the old values of the other.
template <class Number>
static void rotate_one(Number* vector, const Number* cos, const Number* sin, int64_t half) {
    each_vector(half, [=](int64_t i, int64_t count) INLINE_LAMBDA {
        Number *first = vector + i, *second = first + half;
        const Floats a = load(first, count), b = load(second, count);
        store(first, fused(a, load(cos + i, count), b * load(sin + i, count)), count);
        store(second, fused(b, load(cos + half + i, count), a * load(sin + half + i, count)), count);
    });
}

// vectors [count, heads, 2 * half] with strides of the first two dimensions; cos and sin [count, 2 * half].
template <class Number>
static void rotate(Number* vectors, int64_t row_stride, int64_t head_stride, const Number* cos, const Number* sin,
                   int64_t count, int64_t heads, int64_t half, int64_t threads) {
    each_row(count, heads * half, threads, [=](int64_t row) {
        for (int64_t head = 0; head < heads; head++) {
            Number* vector = vectors + row * row_stride + head * head_stride;
            rotate_one(vector, cos + row * 2 * half, sin + row * 2 * half, half);
        }
    });
}

enum Activation { SILU = 0, GELU_TANH = 1 };

// x times the sigmoid of x, or of twice the argument of GELU's tangent: x / 2 * (1 + tanh(z)) = x * sigmoid(2 * z).
INLINE Floats activate(Floats x, int64_t activation) {
    if (activation == SILU) return x * sigmoid(x);
    const Floats cubic = fused(x * x, splat(0.044715f), splat(1.0f));
    return x * sigmoid(x * cubic * splat(2 * 0.7978845608f));
}

// gate_up [count, 2 * size] with a stride of rows, gates first; output [count, size].
template <class Number>
static void gated(const Number* gate_up, int64_t row_stride, Number* output, int64_t count, int64_t size,
                  int64_t activation, int64_t threads) {
    each_row(count, size, threads, [=](int64_t row) {
        const Number *gate = gate_up + row * row_stride, *up = gate + size;
        Number* to = output + row * size;
        each_vector(size, [=](int64_t i, int64_t count) INLINE_LAMBDA {
            store(to + i, activate(load(gate + i, count), activation) * load(up + i, count), count);
        });
    });
}

#define EXPORT(Number)                                                                                               \
    extern "C" void rms_norm_##Number(const Number* rows, int64_t outer_stride, int64_t inner_stride,               \
                                      const Number* weight, Number* output, int64_t outer, int64_t inner,           \
                                      int64_t size, float eps, int64_t threads) {                                   \
        rms_norm(rows, outer_stride, inner_stride, weight, output, outer, inner, size, eps, threads);               \
    }                                                                                                               \
    extern "C" void add_rms_norm_##Number(Number* residual, const Number* rows, const Number* weight,               \
                                          Number* output, int64_t count, int64_t size, float eps,                   \
                                          int64_t threads) {                                                        \
        add_rms_norm(residual, rows, weight, output, count, size, eps, threads);                                    \
    }                                                                                                               \
    extern "C" void rotate_##Number(Number* vectors, int64_t row_stride, int64_t head_stride, const Number* cos,    \
                                    const Number* sin, int64_t count, int64_t heads, int64_t half,                  \
                                    int64_t threads) {                                                              \
        rotate(vectors, row_stride, head_stride, cos, sin, count, heads, half, threads);                            \
    }                                                                                                               \
    extern "C" void gated_##Number(const Number* gate_up, int64_t row_stride, Number* output, int64_t count,        \
                                   int64_t size, int64_t activation, int64_t threads) {                             \
        gated(gate_up, row_stride, output, count, size, activation, threads);                                       \
    }

EXPORT(float)
EXPORT(bfloat16)
