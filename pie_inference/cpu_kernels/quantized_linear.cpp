// Products of bfloat16 rows with weights of 8 or 4 bits (`quantization/cpu_linear.py` packs them).
//
// int8 and int4: in each group of input features, a row becomes 16-bit integers with their own scale. This loses less than
// bfloat16 itself does, and depends on no other row. Each integer is 256 * high + low, both of 8 bits, so one instruction
// multiplies 64 unsigned weights by 4 digits and adds exactly. fp8: weights become bfloat16 by looking up their upper and
// lower bytes.
//
// Weights are in panels of 64 outputs: [panels][steps][4 blocks][16 outputs][4 inputs]; a step is 4 inputs. A byte is one
// weight, or two in int4: those of steps 2 i and 2 i + 1. fp8 has its inputs in an order that suits unpacking.

#include "parallel.h"
#include "vectors.h"

#include <cmath>
#include <cstring>
#include <memory>

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)

static const int64_t BLOCKS = 4, PANEL = 16 * BLOCKS, STEP_BYTES = 64;

struct Arguments {
    const bfloat16* rows;  // [count][ins]
    const uint8_t* weights;
    const bfloat16* scales;  // int8 and fp8: [outs rounded up to panels]; int4: [panels][groups][scale, zero][64]
    const bfloat16* bias;    // [outs], or none
    bfloat16* output;        // [count][outs]
    const uint16_t* bytes;   // fp8: the value of each of 128 magnitudes as bfloat16
    int64_t count, ins, outs, group;
    int64_t threads;
};

// A row as digits: 4 high ones and 4 low ones for each step; the scale and the sum of the integers for each group.
struct Digits {
    int64_t steps, groups;
    std::unique_ptr<int32_t[]> high, low, sums;
    std::unique_ptr<float[]> scales;

    Digits(int64_t count, int64_t ins, int64_t group)
        : steps((ins + group - 1) / group * (group / 4)),
          groups((ins + group - 1) / group),
          high(new int32_t[count * steps]),
          low(new int32_t[count * steps]),
          sums(new int32_t[count * groups]),
          scales(new float[count * groups]) {}

    static constexpr float LARGEST = 32639;  // 127 * 256 + 127

    void fill(const bfloat16* row, int64_t at, int64_t ins, int64_t group) {
        for (int64_t g = 0; g < groups; g++) fill_group(row, at, g, ins, group);
    }

    void fill_group(const bfloat16* row, int64_t at, int64_t g, int64_t ins, int64_t group) {
        __m512 most = _mm512_setzero_ps();
        int64_t begin = g * group, end = begin + group;
        for (int64_t i = begin; i < end; i += 16)
            most = _mm512_max_ps(most, _mm512_abs_ps(load(row + i, valid(ins - i))));
        float largest = _mm512_reduce_max_ps(most);
        float scale = largest > 0 ? largest / LARGEST : 1.0f;
        __m512 inverse = _mm512_set1_ps(1.0f / scale);
        __m512i sum = _mm512_setzero_si512();
        for (int64_t i = begin; i < end; i += 16) {
            __m512i number = _mm512_cvtps_epi32(_mm512_mul_ps(load(row + i, valid(ins - i)), inverse));
            sum = _mm512_add_epi32(sum, number);
            __m128i low_digits = _mm512_cvtepi32_epi8(number);
            __m512i rest = _mm512_sub_epi32(number, _mm512_cvtepi8_epi32(low_digits));
            __m128i high_digits = _mm512_cvtepi32_epi8(_mm512_srai_epi32(rest, 8));
            _mm_storeu_si128((__m128i*)(low.get() + at * steps + i / 4), low_digits);
            _mm_storeu_si128((__m128i*)(high.get() + at * steps + i / 4), high_digits);
        }
        scales[at * groups + g] = scale;
        sums[at * groups + g] = _mm512_reduce_add_epi32(sum);
    }

    static __mmask16 valid(int64_t count) { return count <= 0 ? __mmask16(0) : first_lanes(count); }
};

static inline __m512 widen(const bfloat16* from) {
    return load(from);
}

template <int ROWS, int VECTORS>
static void finish(const Arguments& a, int64_t row, int64_t out, __m512 (&sums)[ROWS][VECTORS]) {
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) {
            int64_t at = out + 16 * v;
            __mmask16 mask = Digits::valid(a.outs - at);
            __m512 sum = sums[r][v];
            if (a.bias) sum = _mm512_add_ps(sum, load(a.bias + at, mask));
            store(a.output + (row + r) * a.outs + at, sum, mask);
        }
}

// One step: weights of VECTORS blocks times digits of ROWS rows.
template <int ROWS, int VECTORS>
static inline void add_step(const __m512i (&weights)[VECTORS], const int32_t* high, const int32_t* low, int64_t stride,
                            __m512i (&upper)[ROWS][VECTORS], __m512i (&lower)[ROWS][VECTORS]) {
    for (int r = 0; r < ROWS; r++) {
        __m512i h = _mm512_set1_epi32(high[r * stride]), l = _mm512_set1_epi32(low[r * stride]);
        for (int v = 0; v < VECTORS; v++) {
            upper[r][v] = _mm512_dpbusd_epi32(upper[r][v], weights[v], h);
            lower[r][v] = _mm512_dpbusd_epi32(lower[r][v], weights[v], l);
        }
    }
}

template <bool FOUR_BITS, int ROWS, int VECTORS>
static void integer_tile(const Arguments& a, const Digits& d, int64_t row, int64_t panel, int64_t block) {
    const int64_t middle = FOUR_BITS ? 8 : 128;  // the stored value of a weight of 0
    const int64_t group_steps = a.group / 4, bytes_per_step = STEP_BYTES * BLOCKS / (FOUR_BITS ? 2 : 1);
    const uint8_t* from = a.weights + panel * d.steps * bytes_per_step + block * STEP_BYTES;
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512 sums[ROWS][VECTORS];
    for (auto& each : sums)
        for (auto& sum : each) sum = _mm512_setzero_ps();
    for (int64_t g = 0; g < d.groups; g++) {
        __m512i upper[ROWS][VECTORS], lower[ROWS][VECTORS];
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) {
                upper[r][v] = _mm512_setzero_si512();
                lower[r][v] = _mm512_set1_epi32(-middle * d.sums[(row + r) * d.groups + g]);
            }
        const int32_t* high = d.high.get() + row * d.steps + g * group_steps;
        const int32_t* low = d.low.get() + row * d.steps + g * group_steps;
        for (int64_t s = 0; s < group_steps; s += FOUR_BITS ? 2 : 1) {
            __m512i weights[VECTORS];
            for (int v = 0; v < VECTORS; v++) {
                _mm_prefetch((const char*)from + v * STEP_BYTES + 2048, _MM_HINT_T0);
                weights[v] = _mm512_loadu_si512(from + v * STEP_BYTES);
            }
            from += STEP_BYTES * BLOCKS;
            if (FOUR_BITS) {
                __m512i even[VECTORS], odd[VECTORS];
                for (int v = 0; v < VECTORS; v++) {
                    even[v] = _mm512_and_si512(weights[v], nibble);
                    odd[v] = _mm512_and_si512(_mm512_srli_epi16(weights[v], 4), nibble);
                }
                add_step<ROWS, VECTORS>(even, high + s, low + s, d.steps, upper, lower);
                add_step<ROWS, VECTORS>(odd, high + s + 1, low + s + 1, d.steps, upper, lower);
            } else {
                add_step<ROWS, VECTORS>(weights, high + s, low + s, d.steps, upper, lower);
            }
        }
        for (int v = 0; v < VECTORS; v++) {
            const bfloat16* at = a.scales + (panel * d.groups + g) * 2 * PANEL + (block + v) * 16;
            __m512 scale = FOUR_BITS ? widen(at) : _mm512_set1_ps(1.0f);
            __m512 zero = FOUR_BITS ? widen(at + PANEL) : _mm512_setzero_ps();
            for (int r = 0; r < ROWS; r++) {
                int64_t of_row = (row + r) * d.groups + g;
                __m512i exact = _mm512_add_epi32(_mm512_slli_epi32(upper[r][v], 8), lower[r][v]);
                __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(exact), _mm512_set1_ps(d.scales[of_row]));
                sums[r][v] = FOUR_BITS ? _mm512_fmadd_ps(scale, part, sums[r][v]) : _mm512_add_ps(sums[r][v], part);
                if (FOUR_BITS) {
                    __m512 sum = _mm512_set1_ps(d.scales[of_row] * d.sums[of_row]);
                    sums[r][v] = _mm512_fmadd_ps(zero, sum, sums[r][v]);
                }
            }
        }
    }
    if (!FOUR_BITS)
        for (int v = 0; v < VECTORS; v++) {
            __m512 scale = widen(a.scales + panel * PANEL + (block + v) * 16);
            for (int r = 0; r < ROWS; r++) sums[r][v] = _mm512_mul_ps(sums[r][v], scale);
        }
    finish(a, row, panel * PANEL + block * 16, sums);
}

template <bool FOUR_BITS, int ROWS>
static void integer_rows(const Arguments& a, const Digits& d, int64_t row, int64_t panel) {
    if (ROWS <= 2) return integer_tile<FOUR_BITS, ROWS, 4>(a, d, row, panel, 0);
    for (int64_t block = 0; block < BLOCKS; block += 2) integer_tile<FOUR_BITS, ROWS, 2>(a, d, row, panel, block);
}

template <bool FOUR_BITS>
static void integer_panel(const Arguments& a, const Digits& d, int64_t panel) {
    int64_t row = 0;
    for (; row + 4 <= a.count; row += 4) integer_rows<FOUR_BITS, 4>(a, d, row, panel);
    if (a.count - row == 3) integer_rows<FOUR_BITS, 3>(a, d, row, panel);
    if (a.count - row == 2) integer_rows<FOUR_BITS, 2>(a, d, row, panel);
    if (a.count - row == 1) integer_rows<FOUR_BITS, 1>(a, d, row, panel);
}

template <bool FOUR_BITS>
static void integer_linear(const Arguments& a) {
    Digits digits(a.count, a.ins, a.group);
    int64_t panels = (a.outs + PANEL - 1) / PANEL;
    parallel(a.threads, [&](int64_t thread, int64_t threads) {
        Range rows = share(a.count, thread, threads);
        for (int64_t row = rows.begin; row < rows.end; row++) digits.fill(a.rows + row * a.ins, row, a.ins, a.group);
        barrier(threads);
        Range own = share(panels, thread, threads);
        for (int64_t panel = own.begin; panel < own.end; panel++) integer_panel<FOUR_BITS>(a, digits, panel);
    });
}

// ---- fp8 ----

struct Table {
    __m512i low[2], high[2];

    explicit Table(const uint16_t* numbers) {
        uint8_t lows[128], highs[128];
        for (int i = 0; i < 128; i++) lows[i] = numbers[i] & 255, highs[i] = numbers[i] >> 8;
        for (int i = 0; i < 2; i++) {
            low[i] = _mm512_loadu_si512(lows + 64 * i);
            high[i] = _mm512_loadu_si512(highs + 64 * i);
        }
    }

    // 64 weights as two vectors of bfloat16.
    void look_up(__m512i codes, __m512i& first, __m512i& second) const {
        __m512i lower = _mm512_permutex2var_epi8(low[0], codes, low[1]);
        __m512i upper = _mm512_permutex2var_epi8(high[0], codes, high[1]);
        upper = _mm512_ternarylogic_epi32(upper, codes, _mm512_set1_epi8((char)0x80), 0xf8);  // upper | (codes & sign)
        first = _mm512_unpacklo_epi8(lower, upper);
        second = _mm512_unpackhi_epi8(lower, upper);
    }
};

template <int ROWS, int VECTORS>
static void fp8_tile(const Arguments& a, const Table& table, const int32_t* pairs, int64_t steps, int64_t row,
                     int64_t panel, int64_t block) {
    const uint8_t* from = a.weights + (panel * steps * BLOCKS + block) * STEP_BYTES;
    __m512 sums[ROWS][VECTORS];
    for (auto& each : sums)
        for (auto& sum : each) sum = _mm512_setzero_ps();
    for (int64_t s = 0; s < steps; s++, from += STEP_BYTES * BLOCKS) {
        for (int v = 0; v < VECTORS; v++) {
            _mm_prefetch((const char*)from + v * STEP_BYTES + 2048, _MM_HINT_T0);
            __m512i first, second;
            table.look_up(_mm512_loadu_si512(from + v * STEP_BYTES), first, second);
            for (int r = 0; r < ROWS; r++) {
                const int32_t* at = pairs + (row + r) * 2 * steps + 2 * s;
                sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)first, (__m512bh)_mm512_set1_epi32(at[0]));
                sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)second, (__m512bh)_mm512_set1_epi32(at[1]));
            }
        }
    }
    for (int v = 0; v < VECTORS; v++) {
        __m512 scale = widen(a.scales + panel * PANEL + (block + v) * 16);
        for (int r = 0; r < ROWS; r++) sums[r][v] = _mm512_mul_ps(sums[r][v], scale);
    }
    finish(a, row, panel * PANEL + block * 16, sums);
}

template <int ROWS>
static void fp8_rows(const Arguments& a, const Table& table, const int32_t* pairs, int64_t steps, int64_t row,
                     int64_t panel) {
    if (ROWS <= 4) return fp8_tile<ROWS, 4>(a, table, pairs, steps, row, panel, 0);
    for (int64_t block = 0; block < BLOCKS; block += 2) fp8_tile<ROWS, 2>(a, table, pairs, steps, row, panel, block);
}

static void fp8_panel(const Arguments& a, const Table& table, const int32_t* pairs, int64_t steps, int64_t panel) {
    int64_t row = 0;
    for (; row + 10 <= a.count; row += 10) fp8_rows<10>(a, table, pairs, steps, row, panel);
    for (; row + 4 <= a.count; row += 4) fp8_rows<4>(a, table, pairs, steps, row, panel);
    if (a.count - row == 3) fp8_rows<3>(a, table, pairs, steps, row, panel);
    if (a.count - row == 2) fp8_rows<2>(a, table, pairs, steps, row, panel);
    if (a.count - row == 1) fp8_rows<1>(a, table, pairs, steps, row, panel);
}

static void fp8_linear(const Arguments& a) {
    int64_t steps = (a.ins + 3) / 4, panels = (a.outs + PANEL - 1) / PANEL;
    std::unique_ptr<int32_t[]> pairs(new int32_t[a.count * steps * 2]);
    Table table(a.bytes);
    parallel(a.threads, [&](int64_t thread, int64_t threads) {
        Range rows = share(a.count, thread, threads);
        for (int64_t row = rows.begin; row < rows.end; row++) {
            int32_t* to = pairs.get() + row * 2 * steps;
            to[2 * steps - 2] = to[2 * steps - 1] = 0;
            std::memcpy(to, a.rows + row * a.ins, a.ins * sizeof(bfloat16));
        }
        barrier(threads);
        Range own = share(panels, thread, threads);
        for (int64_t panel = own.begin; panel < own.end; panel++) fp8_panel(a, table, pairs.get(), steps, panel);
    });
}

extern "C" void quantized_linear_int8(const Arguments* arguments) {
    integer_linear<false>(*arguments);
}

extern "C" void quantized_linear_int4(const Arguments* arguments) {
    integer_linear<true>(*arguments);
}

extern "C" void quantized_linear_fp8(const Arguments* arguments) {
    fp8_linear(*arguments);
}

#endif
