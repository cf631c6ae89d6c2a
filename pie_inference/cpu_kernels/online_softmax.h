// Weighted sums of values whose scores come block by block: a running maximum and total for each row of scores.
#pragma once

#include "attention.h"
#include "memory.h"
#include "products.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

static const float LOWEST = -std::numeric_limits<float>::infinity();

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

    // Turns scores into weights, relative to the row's peak, which may rise. `masks` hides some of the keys, 16 to a mask;
    // null: none.
    void weigh(int64_t row, float* scores, Factor<Number>* weights, const uint16_t* masks, int64_t units) {
        const int64_t count = units * UNIT;
        if (soft_cap_) cap(scores, count);
        const Floats highest = masks ? hide(scores, masks, count) : highest_of(scores, count);
        const Floats factor = splat((soft_cap_ ? soft_cap_ : scale_) * LOG2_E);
        const Floats peak = splat(raise(row, largest_of(highest) * factor[0]));
        Floats sum = {};
        for (int64_t i = 0; i < count; i += LANES) {
            const Floats weight = power_of_two(fused(read<Floats>(scores + i), factor, -peak));
            store_weights(weights + i, weight);
            sum += weight;
        }
        totals_[row] += sum_of(sum);
    }

    // Stores the result of a row; zeros if it has seen no key. `sink`: a score that takes weight and has no value.
    void store(int64_t row, Number* output, const float* sink) const {
        const float total = totals_[row] + (sink ? std::exp2(*sink * LOG2_E - peaks_[row]) : 0.0f);
        const Floats factor = splat(totals_[row] > 0 ? 1 / total : 0.0f);
        const float* sums = mixed(row);
        for (int64_t d = 0; d < dim_; d += LANES) ::store(output + d, read<Floats>(sums + d) * factor);
    }

    // Stores `count` rows, from `first` on, as rows from `to` on of a partial result of `rows` rows: it has their sums
    // [rows][head_dim], then peaks and totals.
    void store_partial(int64_t first, int64_t count, float* partial, int64_t to, int64_t rows) const {
        std::memcpy(partial + to * dim_, mixed(first), count * dim_ * sizeof(float));
        std::memcpy(partial + rows * dim_ + to, peaks_ + first, count * sizeof(float));
        std::memcpy(partial + rows * (dim_ + 1) + to, totals_ + first, count * sizeof(float));
    }

    // Adds row `row` of a partial result of `rows` rows to row `to`.
    void add_partial(int64_t to, const float* partial, int64_t row, int64_t rows) {
        const float own = partial[rows * dim_ + row];
        if (own == LOWEST) return;
        const float factor = std::exp2(own - raise(to, own));
        totals_[to] += factor * partial[rows * (dim_ + 1) + row];
        const float* from = partial + row * dim_;
        float* sums = mixed(to);
        for (int64_t d = 0; d < dim_; d++) sums[d] += factor * from[d];
    }

    // Adds row `row` of `rows` of `count` partial results, `stride` apart. The sum replaces row 0.
    void merge(const float* partials, int64_t count, int64_t stride, int64_t row, int64_t rows) {
        peaks_[0] = LOWEST;
        totals_[0] = 0;
        std::memset(mixed_, 0, dim_ * sizeof(float));
        for (int64_t n = 0; n < count; n++) add_partial(0, partials + n * stride, row, rows);
    }

  private:
    void cap(float* scores, int64_t count) const {
        const Floats factor = splat(scale_ / soft_cap_);
        for (int64_t i = 0; i < count; i += LANES) write(scores + i, tanh(read<Floats>(scores + i) * factor));
    }

    static Floats highest_of(const float* scores, int64_t count) {
        Floats highest = splat(LOWEST);
        for (int64_t i = 0; i < count; i += LANES) highest = largest(highest, read<Floats>(scores + i));
        return highest;
    }

    // Lowers the scores of hidden keys; returns the highest ones.
    static Floats hide(float* scores, const uint16_t* masks, int64_t count) {
        Floats highest = splat(LOWEST);
        for (int64_t i = 0; i < count; i += LANES) {
            const Ints visible = lanes_of(masks[i / UNIT] >> i % UNIT);
            const Floats score = visible ? read<Floats>(scores + i) : splat(LOWEST);
            write(scores + i, score);
            highest = largest(highest, score);
        }
        return highest;
    }

    // Weights are rounded as numbers are, even if they are multiplied as floats.
    static INLINE_MEMBER void store_weights(float* to, Floats weights) { write(to, rounded((const Number*)0, weights)); }
    static INLINE_MEMBER void store_weights(bfloat16* to, Floats weights) { ::store(to, weights); }

    // Raises the row's peak to `highest` if that is above it, and scales the sums so far. The peak must be finite.
    float raise(int64_t row, float highest) {
        float old = peaks_[row];
        if (highest <= old) return old == LOWEST ? 0.0f : old;
        peaks_[row] = highest;
        if (old == LOWEST) return highest;
        float factor = std::exp2(old - highest);
        totals_[row] *= factor;
        float* mixed = mixed_ + row * dim_;
        for (int64_t d = 0; d < dim_; d += LANES) write(mixed + d, read<Floats>(mixed + d) * splat(factor));
        return highest;
    }

    float scale_, soft_cap_;
    int64_t dim_;
    float *mixed_, *peaks_, *totals_;
};
