// Operations on the rows of hidden vectors: norms, rotary positions, gates. Numbers are float or bfloat16, sums float.

#include "parallel.h"
#include "vectors.h"

// Below this many numbers a second thread costs more than it saves.
static const int64_t NUMBERS_PER_THREAD = 1 << 15;

static int64_t useful_threads(int64_t numbers, int64_t threads) {
    int64_t most = numbers / NUMBERS_PER_THREAD;
    return most < 1 ? 1 : most < threads ? most : threads;
}

template <class Number>
static void normalize(const Number* row, const Number* weight, Number* output, int64_t size, float squares, float eps) {
    __m512 scale = _mm512_set1_ps(1.0f / __builtin_sqrtf(squares / size + eps));
    for (int64_t i = 0; i < size; i += 16) {
        __mmask16 mask = first_lanes(size - i);
        __m512 scaled = _mm512_mul_ps(load(row + i, mask), scale);
        store(output + i, _mm512_mul_ps(scaled, load(weight + i, mask)), mask);
    }
}

template <class Number>
static float sum_of_squares(const Number* row, int64_t size) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += 16) {
        __m512 numbers = load(row + i, first_lanes(size - i));
        squares = _mm512_fmadd_ps(numbers, numbers, squares);
    }
    return _mm512_reduce_add_ps(squares);
}

// Adds `row` to `residual` in place; returns the sum of the squares of the stored numbers.
template <class Number>
static float add(Number* residual, const Number* row, int64_t size) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += 16) {
        __mmask16 mask = first_lanes(size - i);
        __m512 sum = rounded(row, _mm512_add_ps(load(residual + i, mask), load(row + i, mask)));
        store(residual + i, sum, mask);
        squares = _mm512_fmadd_ps(sum, sum, squares);
    }
    return _mm512_reduce_add_ps(squares);
}

// rows [outer, inner, size] with strides of the first two dimensions; output [outer, inner, size] without gaps.
template <class Number>
static void rms_norm(const Number* rows, int64_t outer_stride, int64_t inner_stride, const Number* weight,
                     Number* output, int64_t outer, int64_t inner, int64_t size, float eps, int64_t num_threads) {
    parallel(useful_threads(outer * inner * size, num_threads), [=](int64_t thread, int64_t threads) {
        Range mine = share(outer * inner, thread, threads);
        for (int64_t i = mine.begin; i < mine.end; i++) {
            const Number* row = rows + i / inner * outer_stride + i % inner * inner_stride;
            normalize(row, weight, output + i * size, size, sum_of_squares(row, size), eps);
        }
    });
}

template <class Number>
static void add_rms_norm(Number* residual, const Number* rows, const Number* weight, Number* output, int64_t count,
                         int64_t size, float eps, int64_t num_threads) {
    parallel(useful_threads(count * size, num_threads), [=](int64_t thread, int64_t threads) {
        Range mine = share(count, thread, threads);
        for (int64_t i = mine.begin * size; i < mine.end * size; i += size) {
            float squares = add(residual + i, rows + i, size);
            normalize(residual + i, weight, output + i, size, squares, eps);
        }
    });
}

// Rotates one vector, both halves at a time, because each needs the old values of the other.
template <class Number>
static void rotate_one(Number* vector, const Number* cos, const Number* sin, int64_t half) {
    for (int64_t i = 0; i < half; i += 16) {
        __mmask16 mask = first_lanes(half - i);
        Number *first = vector + i, *second = first + half;
        __m512 a = load(first, mask), b = load(second, mask);
        __m512 turned = _mm512_mul_ps(b, load(sin + i, mask));
        store(first, _mm512_fmadd_ps(a, load(cos + i, mask), turned), mask);
        turned = _mm512_mul_ps(a, load(sin + half + i, mask));
        store(second, _mm512_fmadd_ps(b, load(cos + half + i, mask), turned), mask);
    }
}

// vectors [count, heads, 2 * half] with strides of the first two dimensions; cos and sin [count, 2 * half].
template <class Number>
static void rotate(Number* vectors, int64_t row_stride, int64_t head_stride, const Number* cos, const Number* sin,
                   int64_t count, int64_t heads, int64_t half, int64_t num_threads) {
    parallel(useful_threads(count * heads * half, num_threads), [=](int64_t thread, int64_t threads) {
        Range mine = share(count, thread, threads);
        for (int64_t row = mine.begin; row < mine.end; row++)
            for (int64_t head = 0; head < heads; head++) {
                Number* vector = vectors + row * row_stride + head * head_stride;
                rotate_one(vector, cos + row * 2 * half, sin + row * 2 * half, half);
            }
    });
}

enum Activation { SILU = 0, GELU_TANH = 1 };

// x times the sigmoid of x, or of twice the argument of GELU's tangent: x / 2 * (1 + tanh(z)) = x * sigmoid(2 * z).
static inline __m512 activate(__m512 x, int64_t activation) {
    if (activation == SILU) return _mm512_mul_ps(x, sigmoid(x));
    __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f), _mm512_set1_ps(1.0f));
    __m512 z = _mm512_mul_ps(_mm512_mul_ps(x, cubic), _mm512_set1_ps(2 * 0.7978845608f));
    return _mm512_mul_ps(x, sigmoid(z));
}

// gate_up [count, 2 * size] with a stride of rows, gates first; output [count, size].
template <class Number>
static void gated(const Number* gate_up, int64_t row_stride, Number* output, int64_t count, int64_t size,
                  int64_t activation, int64_t num_threads) {
    parallel(useful_threads(count * size, num_threads), [=](int64_t thread, int64_t threads) {
        Range mine = share(count, thread, threads);
        for (int64_t row = mine.begin; row < mine.end; row++) {
            const Number *gate = gate_up + row * row_stride, *up = gate + size;
            for (int64_t i = 0; i < size; i += 16) {
                __mmask16 mask = first_lanes(size - i);
                __m512 active = activate(load(gate + i, mask), activation);
                store(output + row * size + i, _mm512_mul_ps(active, load(up + i, mask)), mask);
            }
        }
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
