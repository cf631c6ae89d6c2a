// What a product of a linear layer needs, whichever instructions multiply: weights in units, groups, what follows the sums.
// A weight is its integer times the scale; with 4 bits and nothing that is taken from it, the integer less 8.
#pragma once

#include <algorithm>

#include "forms.h"
#include "memory.h"
#include "parallel.h"

struct LinearLayer {
    const char* weights;    // units [outs rounded up][ins][UNIT]
    const void* scales;     // not in groups: bfloat16 [outs rounded up]; else [units][groups][scale, zero][UNIT], or only scales
    const uint8_t* taken;   // integers with a sign that are taken from those of weights, [units][groups][UNIT], or null
    const float* factors;   // [outs rounded up] of the sums of groups, or null
    const void* bias;       // [outs] in the rows' format, or null
    const uint16_t* codes;  // 8 bits: the bfloat16 number of each magnitude
    int64_t outs, ins;      // ins: with padding, a multiple of the form's features
    int64_t group;          // features that share a scale and a zero; 0: not in groups
    int64_t scale_type;     // of groups; see ScaleType
    int64_t zeros;          // whether scales have zeros, which are added
};

enum ScaleType { SCALES_BFLOAT16, SCALES_HALF, SCALES_FLOAT, SCALES_E4M3, SCALES_E8M0 };

// Numbers of rows that it pays to prepare in a part of their own.
static const int64_t NUMBERS_PER_PART = 1 << 15;

// Rows [count][ins] of `stride` numbers, and what they become.
template <class Number>
struct Rows {
    const Number* numbers;
    int64_t stride, count;
    Number* output;  // [count][outs]
};

template <class Number, class Form>
class LinearParts {
  protected:
    using Factor = typename Form::Factor;

    static constexpr int64_t BUFFER_BYTES = 16 << 10;
    static constexpr int64_t ROW_BLOCK = 256;  // rows whose sums are kept

    LinearParts(const LinearLayer& layer, const Form& form, const Rows<Number>& rows)
        : layer_(layer), form_(form), rows_(rows) {
        groups_ = layer.group ? layer.ins / layer.group : 1;
        units_ = (layer.outs + UNIT - 1) / UNIT;
    }

    const Number* row(int64_t n) const { return rows_.numbers + n * rows_.stride; }

    // Parts in which it pays to go through all rows.
    int64_t preparing_parts() const { return rows_.count * layer_.ins / NUMBERS_PER_PART + 1; }

    int64_t num_row_sums() const { return layer_.group ? rows_.count * groups_ : 0; }

    // Sums a row's numbers group by group.
    void sum_groups(int64_t n) const {
        for (int64_t g = 0; g < groups_; g++) row_sums_[n * groups_ + g] = sum(row(n) + g * layer_.group);
    }

    float sum(const Number* numbers) const {
        Floats sums = {};
        for (int64_t i = 0; i < layer_.group; i += LANES) sums += load(numbers + i, layer_.group - i);
        return sum_of(sums);
    }

    Right right(Range units, int64_t feature, int64_t features) const {
        int64_t unit_bytes = layer_.ins * Form::BYTES;
        return {layer_.weights + units.begin * unit_bytes + feature * Form::BYTES, unit_bytes, units.size(), features};
    }

    Right decode(const Right& stored, char* buffer) const {
        constexpr int WORDS = WORDS_OF<Form> * VECTORS_PER_UNIT;
        const Form form = form_;
        char* to = buffer;
        for (int64_t unit = 0; unit < stored.units; unit++) {
            const char* from = stored.from + unit * stored.unit_stride;
            for (int64_t feature = 0; feature < stored.features; feature += Form::FEATURES) {
                prefetch(from + STREAM_AHEAD);
                UNROLLED
                for (int part = 0; part < Form::PARTS; part++) {
                    Words words[WORDS];
                    form.decode(from, part, words);
                    UNROLLED
                    for (int w = 0; w < WORDS; w++) write(to + w * sizeof(Words), words[w]);
                    to += sizeof(words);
                }
                from += Form::FEATURES * Form::BYTES;
            }
        }
        return {buffer, stored.features * Plain<Factor>::BYTES, stored.units, stored.features};
    }

    // Writes the results of `rows` for some units, whose sums `sum(sums [sum_rows][units * UNIT], part, buffer)` makes. There are
    // `part_size` floats for the part of a group, and `buffer_bytes` bytes.
    template <class Sum>
    void write_chunk(Range rows, int64_t sum_rows, Range units, int64_t part_size, int64_t buffer_bytes, const Sum& sum) const {
        static thread_local Memory memory;
        const int64_t size = sum_rows * units.size() * UNIT;
        memory.reset((size + part_size) * sizeof(float) + buffer_bytes + 3 * 64);
        float *sums = memory.take<float>(size), *part = memory.take<float>(part_size);
        sum(sums, part, memory.take<char>(buffer_bytes));
        finish(rows, units, sums);
    }

    void add_group(Range rows, Range units, int64_t group, const float* part, float* sums, int64_t stride) const {
        switch (layer_.scale_type) {
        case SCALES_BFLOAT16: return add_group<bfloat16>(rows, units, group, part, sums, stride);
        case SCALES_HALF: return add_group<half>(rows, units, group, part, sums, stride);
        case SCALES_FLOAT: return add_group<float>(rows, units, group, part, sums, stride);
        case SCALES_E4M3: return add_group<e4m3>(rows, units, group, part, sums, stride);
        case SCALES_E8M0: return add_group<e8m0>(rows, units, group, part, sums, stride);
        }
    }

    template <class Scale>
    void add_group(Range rows, Range units, int64_t group, const float* part, float* sums, int64_t stride) const {
        if (group) add_group<true, Scale>(rows, units, group, part, sums, stride);
        else add_group<false, Scale>(rows, units, group, part, sums, stride);
    }

    // sums [rows][stride] = or += scale * part [rows][units * UNIT] + zero * the sum of the row's numbers. What decoding adds to
    // each integer is taken away.
    template <bool ADD, class Scale>
    void add_group(Range rows, Range units, int64_t group, const float* part, float* sums, int64_t stride) const {
        const int64_t tensors = layer_.zeros ? 2 : 1;
        for (int64_t unit = units.begin; unit < units.end; unit++)
            for (int v = 0; v < VECTORS_PER_UNIT; v++) {
                const int64_t place = (unit * groups_ + group) * UNIT;
                const Scale* at = (const Scale*)layer_.scales + place * tensors + v * LANES;
                const Floats scale = load(at), zero = zero_of(at, place + v * LANES, scale);
                const float* from = part + (unit - units.begin) * UNIT + v * LANES;
                float* to = sums + (unit - units.begin) * UNIT + v * LANES;
                const float* row_sums = row_sums_ + rows.begin * groups_ + group;
                for (int64_t row = 0; row < rows.size(); row++) {
                    const Floats sum = fused(zero, splat(row_sums[row * groups_]), ADD ? load(to) : Floats{});
                    store(to, fused(load(from), scale, sum));
                    from += units.size() * UNIT;
                    to += stride;
                }
            }
    }

    // What a group adds to each of its weights, beside their decoded integers times the scale.
    template <class Scale>
    INLINE_MEMBER Floats zero_of(const Scale* at, int64_t place, Floats scale) const {
        if (layer_.taken) return scale * (splat(-ADDED<Form>) - floats_of(ints_of(layer_.taken + place)));
        return fused(scale, splat(-ADDED<Form> - MIDDLE<Form>), layer_.zeros ? load(at + UNIT) : Floats{});
    }

    // Writes the results of rows, whose sums are [rows][units * UNIT].
    void finish(Range rows, Range units, const float* sums) const {
        const Number* bias = (const Number*)layer_.bias;
        const bool scaled = layer_.scales && !layer_.group;
        const int64_t first = units.begin * UNIT, end = std::min(units.end * UNIT, layer_.outs);
        for (int64_t row = rows.begin; row < rows.end; row++, sums += units.size() * UNIT) {
            Number* to = rows_.output + row * layer_.outs;
            for (int64_t out = first; out < end; out += LANES) {
                Floats sum = load(sums + out - first);
                if (scaled) sum *= load((const bfloat16*)layer_.scales + out);
                if (layer_.factors) sum *= load(layer_.factors + out);
                if (bias) sum += load(bias + out, layer_.outs - out);
                store(to + out, sum, layer_.outs - out);
            }
        }
    }

    const LinearLayer& layer_;
    const Form& form_;
    const Rows<Number> rows_;
    int64_t groups_, units_;
    float* row_sums_ = nullptr;  // [count][groups]
};
