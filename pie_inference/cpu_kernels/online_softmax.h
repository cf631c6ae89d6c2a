// Weighted sums of values whose scores come block by block: a running maximum and total for each row of scores.
#pragma once

#include "attention.h"
#include "memory.h"
#include "vectors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

static const float LOG2_E = 1.44269504f;
static const float LOWEST = -std::numeric_limits<float>::infinity();

// 2 to the power of each number, to about 1e-7 of it; 0 for minus infinity.
static inline __m512 power_of_two(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-200.0f));
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(0.0013390863f);
    const float coefficients[] = {0.009676032f, 0.055503570f, 0.24022107f, 0.69314718f, 1.0000001f};
    for (float c : coefficients) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    return _mm512_scalef_ps(p, n);
}

static inline __m512 tanh(__m512 x) {
    __m512 e = power_of_two(_mm512_mul_ps(_mm512_min_ps(x, _mm512_set1_ps(20.0f)), _mm512_set1_ps(2 * LOG2_E)));
    __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(_mm512_sub_ps(e, one), _mm512_add_ps(e, one));
}

// The sums of several rows of scores.
template <class Number>
class OnlineSoftmax {
  public:
    OnlineSoftmax(const Layer<Number>& layer, int64_t dim) : scale_(layer.scale), soft_cap_(layer.soft_cap), dim_(dim) {}

    // Bytes that `start` takes.
    int64_t bytes(int64_t rows) const { return rows * (dim_ + 2) * sizeof(float) + 3 * 64; }

    // Starts without any key.
    void start(Memory& memory, int64_t rows) {
        mixed_ = memory.take<float>(rows * dim_);
        peaks_ = memory.take<float>(rows);
        totals_ = memory.take<float>(rows);
        std::fill(peaks_, peaks_ + rows, LOWEST);
        std::fill(totals_, totals_ + rows, 0.0f);
        std::memset(mixed_, 0, rows * dim_ * sizeof(float));
    }

    // Sums of weighted values [rows][head_dim]; the caller adds to them.
    float* mixed(int64_t row) const { return mixed_ + row * dim_; }

    // Turns scores into weights, relative to the row's peak, which may rise.
    void weigh(int64_t row, float* scores, Number* weights, const uint16_t* masks, int64_t vectors) {
        float factor = soft_cap_ ? soft_cap_ * LOG2_E : scale_ * LOG2_E;
        __m512 highest = _mm512_set1_ps(LOWEST);
        for (int64_t v = 0; v < vectors; v++) {
            __m512 score = capped(_mm512_loadu_ps(scores + 16 * v));
            score = _mm512_mask_blend_ps(masks[v], _mm512_set1_ps(LOWEST), score);
            _mm512_storeu_ps(scores + 16 * v, score);
            highest = _mm512_max_ps(highest, score);
        }
        float peak = raise(row, _mm512_reduce_max_ps(highest) * factor);
        __m512 sum = _mm512_setzero_ps();
        for (int64_t v = 0; v < vectors; v++) {
            __m512 score = _mm512_loadu_ps(scores + 16 * v);
            __m512 weight = power_of_two(_mm512_fmsub_ps(score, _mm512_set1_ps(factor), _mm512_set1_ps(peak)));
            ::store(weights + 16 * v, weight);
            sum = _mm512_add_ps(sum, weight);
        }
        totals_[row] += _mm512_reduce_add_ps(sum);
    }

    // Stores the result of a row; zeros if it has seen no key.
    void store(int64_t row, Number* output) const {
        __m512 factor = _mm512_set1_ps(totals_[row] > 0 ? 1 / totals_[row] : 0.0f);
        for (int64_t d = 0; d < dim_; d += 16) ::store(output + d, _mm512_mul_ps(_mm512_loadu_ps(mixed(row) + d), factor));
    }

    // Stores sums [rows][head_dim], then peaks and totals.
    void store_partial(int64_t first, int64_t rows, float* partial) const {
        std::memcpy(partial, mixed(first), rows * dim_ * sizeof(float));
        std::memcpy(partial + rows * dim_, peaks_ + first, rows * sizeof(float));
        std::memcpy(partial + rows * (dim_ + 1), totals_ + first, rows * sizeof(float));
    }

    // Adds the parts that `store_partial` stored for row `row` of `rows` in `count` splits, `stride` apart. The sum replaces
    // row 0.
    void merge(const float* partials, int64_t count, int64_t stride, int64_t row, int64_t rows) {
        peaks_[0] = LOWEST;
        totals_[0] = 0;
        std::memset(mixed_, 0, dim_ * sizeof(float));
        for (int64_t n = 0; n < count; n++) {
            float own = partials[n * stride + rows * dim_ + row];
            if (own == LOWEST) continue;
            add(std::exp2(own - raise(0, own)), partials + n * stride + row * dim_, partials[n * stride + rows * (dim_ + 1) + row]);
        }
    }

  private:
    __m512 capped(__m512 score) const {
        if (!soft_cap_) return score;
        return tanh(_mm512_mul_ps(score, _mm512_set1_ps(scale_ / soft_cap_)));
    }

    // Raises the row's peak to `highest` if that is above it, and scales the sums so far. The peak must be finite.
    float raise(int64_t row, float highest) {
        float old = peaks_[row];
        if (highest <= old) return old == LOWEST ? 0.0f : old;
        peaks_[row] = highest;
        if (old == LOWEST) return highest;
        float factor = std::exp2(old - highest);
        totals_[row] *= factor;
        for (int64_t d = 0; d < dim_; d += 16) {
            float* mixed = mixed_ + row * dim_ + d;
            _mm512_storeu_ps(mixed, _mm512_mul_ps(_mm512_loadu_ps(mixed), _mm512_set1_ps(factor)));
        }
        return highest;
    }

    // Adds to row 0.
    void add(float factor, const float* mixed, float total) {
        totals_[0] += factor * total;
        for (int64_t d = 0; d < dim_; d++) mixed_[d] += factor * mixed[d];
    }

    float scale_, soft_cap_;
    int64_t dim_;
    float *mixed_, *peaks_, *totals_;
};
