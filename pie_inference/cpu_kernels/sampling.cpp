// Draws tokens: those that pass top-k, top-p (of the mass that top-k left) and min-p, then the inverse of their cumulative
// distribution, as in execution/sampling.py. Only those that may be candidates are sorted. And ranks the most probable.

#include "parallel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

static const int64_t LOGITS_PER_THREAD = 1 << 14;
static const int64_t BLOCK = 256, SUMS = 8;
// Where tokens of at least this weight have not the mass that is wanted, all that have any are sorted.
static const double LEAST_WEIGHT = 1e-15;

struct Bounds {
    const double *temperature, *top_p, *min_p, *uniform;  // [count]
    const int64_t* top_k;                                 // [count], 0: all
};

// exp(x) for x <= 0 within an ulp or two, without a branch, so that compilers make it of vectors. 0 below -708.
static inline double exp_of(double x) {
    const double shift = 0x1.8p52, clipped = x < -708 ? -708 : x;
    const double shifted = clipped * 0x1.71547652b82fep0 + shift, whole = shifted - shift;
    const double r = (clipped - whole * 0x1.62e42fefa0000p-1) - whole * 0x1.cf79abc9e3b39p-40;
    double sum = 1.0 / 6227020800;
    const double factors[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                              1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5,         1.0,
                              1.0};
    for (double factor : factors) sum = sum * r + factor;
    int64_t bits;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (int64_t)((uint64_t)(bits + 1023) << 52);
    double power;
    memcpy(&power, &bits, sizeof(power));
    return x < -708 ? 0 : sum * power;
}

// Tokens in order: the higher logit first, of equal ones the lower id.
static inline uint64_t place_of(float logit, int64_t token) {
    int32_t bits;
    memcpy(&bits, &logit, sizeof(bits));
    bits ^= (bits >> 31) & 0x7fffffff;
    return (uint64_t)((uint32_t)bits ^ 0x80000000u) << 32 | (uint32_t)~token;
}

static inline int64_t token_of(uint64_t place) { return (int64_t)(uint32_t)~(uint32_t)place; }

static inline double sum_of(const double* weights, int64_t count) {
    double lanes[SUMS] = {}, sum = 0;
    int64_t i = 0;
    for (; i + SUMS <= count; i += SUMS)
        for (int lane = 0; lane < SUMS; lane++) lanes[lane] += weights[i + lane];
    for (; i < count; i++) sum += weights[i];
    for (double lane : lanes) sum += lane;
    return sum;
}

// The weights of a row, and their sum.
static double weigh(const float* logits, float highest, double temperature, int64_t size, double* weights) {
    double total = 0;
    for (int64_t first = 0; first < size; first += BLOCK) {
        const int64_t count = std::min(size - first, BLOCK);
        for (int64_t i = first; i < first + count; i++) weights[i] = exp_of((double)(logits[i] - highest) / temperature);
        total += sum_of(weights + first, count);
    }
    return total;
}

// Without bounds: the first token whose cumulative weight exceeds the share `uniform` of the total.
static int64_t invert(const double* weights, double total, double uniform, int64_t size) {
    const double target = uniform * total;
    double before = 0;
    int64_t last = 0;  // with a weight, where rounding leaves none that exceeds
    for (int64_t first = 0; first < size; first += BLOCK) {
        const int64_t count = std::min(size - first, BLOCK);
        const double sum = sum_of(weights + first, count);
        double within = before;
        for (int64_t token = first; before + sum > target && token < first + count; token++) {
            within += weights[token];
            if (weights[token] > 0 && within > target) return token;  // sums of a block may round otherwise
        }
        for (int64_t token = first; sum > 0 && token < first + count; token++)
            if (weights[token] > 0) last = token;
        before += sum;
    }
    return last;
}

// The first `most` tokens.
static void find_first(const float* logits, int64_t size, int64_t most, std::vector<uint64_t>& found) {
    float least = -INFINITY;
    for (int64_t first = 0; first < size; first += 16) {
        const int64_t end = std::min(size, first + 16);
        if ((int64_t)found.size() >= most) {
            float largest = -INFINITY;
            for (int64_t i = first; i < end; i++) largest = logits[i] > largest ? logits[i] : largest;
            if (largest <= least) continue;
        }
        for (int64_t i = first; i < end; i++) {
            if ((int64_t)found.size() < most || logits[i] > least) found.push_back(place_of(logits[i], i));
        }
        if ((int64_t)found.size() >= 2 * most) {
            std::nth_element(found.begin(), found.begin() + (most - 1), found.end(), std::greater<uint64_t>());
            found.resize(most);
        }
        if ((int64_t)found.size() == most) {
            least = INFINITY;
            for (uint64_t place : found) least = std::min(least, logits[token_of(place)]);
        }
    }
    std::sort(found.begin(), found.end(), std::greater<uint64_t>());
    if ((int64_t)found.size() > most) found.resize(most);
}

// All tokens of at least this weight.
static void find_heavy(const float* logits, const double* weights, int64_t size, double least,
                       std::vector<uint64_t>& found) {
    for (int64_t first = 0; first < size; first += 16) {
        const int64_t end = std::min(size, first + 16);
        bool any = false;
        for (int64_t i = first; i < end; i++) any |= weights[i] >= least;
        if (!any) continue;
        for (int64_t i = first; i < end; i++)
            if (weights[i] >= least) found.push_back(place_of(logits[i], i));
    }
    std::sort(found.begin(), found.end(), std::greater<uint64_t>());
}

static double mass_of_heavy(const double* weights, int64_t size, double least) {
    double lanes[SUMS] = {}, mass = 0;
    int64_t i = 0;
    for (; i + SUMS <= size; i += SUMS)
        for (int lane = 0; lane < SUMS; lane++) lanes[lane] += weights[i + lane] >= least ? weights[i + lane] : 0;
    for (; i < size; i++) mass += weights[i] >= least ? weights[i] : 0;
    for (double lane : lanes) mass += lane;
    return mass;
}

// A weight that all tokens have which top-p and min-p leave: that of min-p, or one that so many tokens have that the mass
// of top-p is theirs.
static double least_weight(const double* weights, double total, double top_p, double min_p, int64_t size) {
    const double lowest = std::max(min_p, std::numeric_limits<double>::denorm_min());
    if (top_p >= 1) return lowest;
    for (double least = 1.0 / 8; least > std::max(lowest, LEAST_WEIGHT); least /= 8)
        if (mass_of_heavy(weights, size, least) > top_p * total * (1 + 1e-12)) return least;
    return lowest;
}

static int64_t draw_of_row(const float* logits, float highest, int64_t size, const Bounds& bounds, int64_t row) {
    static thread_local std::vector<double> weights, cumulative;
    static thread_local std::vector<uint64_t> found;
    const double temperature = bounds.temperature[row], top_p = bounds.top_p[row], min_p = bounds.min_p[row];
    const int64_t top_k = bounds.top_k[row];
    double total = 0;
    if (!std::isfinite(highest)) return 0;
    found.clear();
    if (top_k > 0 && top_k < size) {
        find_first(logits, size, top_k, found);
        for (uint64_t place : found) total += exp_of((double)(logits[token_of(place)] - highest) / temperature);
    } else {
        weights.resize(size);
        total = weigh(logits, highest, temperature, size, weights.data());
        if (top_p >= 1 && min_p <= 0) return invert(weights.data(), total, bounds.uniform[row], size);
        find_heavy(logits, weights.data(), size, least_weight(weights.data(), total, top_p, min_p, size), found);
    }
    if (found.empty()) return 0;  // a bound is NaN, or beyond what it may be
    cumulative.clear();
    double sum = 0;
    for (uint64_t place : found) {
        const double weight = exp_of((double)(logits[token_of(place)] - highest) / temperature);
        if (sum > 0 && ((top_p < 1 && sum >= top_p * total) || weight < min_p)) break;
        cumulative.push_back(sum += weight);
    }
    const int64_t kept = cumulative.size(), place =
        std::upper_bound(cumulative.begin(), cumulative.end(), bounds.uniform[row] * sum) - cumulative.begin();
    return token_of(found[std::min(place, kept - 1)]);
}

// logits [count, size], with a stride of rows; highest, top_k and tokens [count]; given [4, count]: temperature, top_p,
// min_p, uniform. No logit is NaN where the highest is a finite number.
extern "C" void draw_tokens(const float* logits, int64_t stride, const float* highest, const double* given,
                            const int64_t* top_k, int64_t* tokens, int64_t count, int64_t size, int64_t threads) {
    const Bounds bounds = {given, given + count, given + 2 * count, given + 3 * count, top_k};
    const int64_t useful = std::clamp<int64_t>(count * size / LOGITS_PER_THREAD, 1, threads);
    parallel(useful, count, [=](int64_t row) {
        tokens[row] = draw_of_row(logits + row * stride, highest[row], size, bounds, row);
    });
}

static void rank_row(const float* logits, int64_t size, const double* temperature, int64_t width, int64_t* tokens,
                     double* probabilities) {
    static thread_local std::vector<double> weights;
    static thread_local std::vector<uint64_t> found;
    found.clear();
    find_first(logits, size, width, found);
    for (int64_t i = 0; i < width; i++) tokens[i] = token_of(found[i]);
    if (temperature == nullptr) return;
    const float highest = logits[tokens[0]];
    weights.resize(size);
    const double total = weigh(logits, highest, *temperature, size, weights.data());
    for (int64_t i = 0; i < width; i++) probabilities[i] = weights[tokens[i]] / total;
}

// The most probable tokens of each row, in order: logits [count, size], with a stride of rows; tokens [count, width]; if
// there is a temperature [count], their probabilities [count, width], which are NaN if a logit is.
extern "C" void rank_tokens(const float* logits, int64_t stride, const double* temperature, int64_t width,
                            int64_t* tokens, double* probabilities, int64_t count, int64_t size, int64_t threads) {
    const int64_t useful = std::clamp<int64_t>(count * size / LOGITS_PER_THREAD, 1, threads);
    parallel(useful, count, [=](int64_t row) {
        const double* own = temperature == nullptr ? nullptr : temperature + row;
        rank_row(logits + row * stride, size, own, width, tokens + row * width, probabilities + row * width);
    });
}
