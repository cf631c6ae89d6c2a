// Linear layers: rows [M, K] times weights [N, K], which are packed once in units (`products.h`), in a form that suits one
// row and thousands.
//
// With few rows, memory is the bound: weights are decoded while they are multiplied, as streams with prefetch. With more
// rows, a block of a few units stays in a cache for all tiles of rows; forms that are not multiplied as they are stored are
// decoded into a buffer first.

#include <algorithm>

#include "forms.h"
#include "memory.h"
#include "parallel.h"

struct LinearLayer {
    const char* weights;    // units [outs rounded up][ins][UNIT]
    const bfloat16* scales; // 8 bits: [outs rounded up]; 4 bits: [units][groups][scale, zero][UNIT]
    const void* bias;       // [outs] in the rows' format, or null
    const uint16_t* codes;  // 8 bits: the bfloat16 number of each magnitude
    int64_t outs, ins;      // ins: with padding, a multiple of the form's features
    int64_t group;          // features that share a scale and a zero; 0: not in groups
};

template <class Form>
static constexpr bool IS_PLAIN = std::is_same_v<Form, Plain<typename Form::Factor>>;

// Rows [count][ins] of `stride` numbers, and what they become.
template <class Number>
struct Rows {
    const Number* numbers;
    int64_t stride, count;
    Number* output;  // [count][outs]
};

template <class Number, class Form>
class Linear {
  public:
    Linear(const LinearLayer& layer, const Rows<Number>& rows, int64_t threads)
        : layer_(layer), rows_(rows), form_(make_form(layer)), words_(layer.ins / PER_WORD<Factor>) {
        threads_ = std::min(threads, layer.outs * layer.ins / WEIGHTS_PER_THREAD + 1);
        blocks_ = (rows.count + ROW_BLOCK - 1) / ROW_BLOCK;
        groups_ = layer.group ? layer.ins / layer.group : 1;
        units_ = (layer.outs + UNIT - 1) / UNIT;
        few_ = share(rows.count, 0, blocks_).size() <= Form::MOST_DIRECT && rows.count <= Form::MOST_DIRECT;
        units_per_chunk_ = few_ ? most_units<Form>((int)rows.count) : most_units<Plain<Factor>>(MOST_ROWS);
    }

    void run() {
        if (COPIED || layer_.group) prepare();
        int64_t columns = (units_ + units_per_chunk_ - 1) / units_per_chunk_;
        parallel(threads_, blocks_ * columns, [&](int64_t chunk) {
            int64_t first = chunk % columns * units_per_chunk_;
            multiply_chunk(chunk / columns, {first, std::min(first + units_per_chunk_, units_)});
        });
    }

  private:
    using Factor = typename Form::Factor;

    // Whether rows are copied: as interleaved words of factors, since a tile with few registers has none for its rows'
    // addresses, and since rows may be of another format.
    static constexpr bool COPIED = !WITH_PAIRS;
    static constexpr int64_t CACHED_BYTES = WITH_PAIRS ? 256 << 10 : 16 << 10;  // of a block that is multiplied in place
    static constexpr int64_t BUFFER_BYTES = 16 << 10;
    static constexpr int64_t ROW_BLOCK = 256;  // rows whose sums are kept
    static constexpr int64_t WEIGHTS_PER_THREAD = 1 << 16;

    static Form make_form(const LinearLayer& layer) {
        if constexpr (std::is_constructible_v<Form, const uint16_t*>) return Form(layer.codes);
        else return Form();
    }

    // Copies rows and sums them group by group, block by block.
    void prepare() {
        static thread_local Memory memory;
        memory.reset(rows_.count * (COPIED ? words_ * 4 : 0) + rows_.count * groups_ * 4 + 128);
        copies_ = memory.take<Word>(COPIED ? rows_.count * words_ : 0);
        row_sums_ = memory.take<float>(rows_.count * groups_);
        const int64_t numbers = rows_.count * layer_.ins, parts = std::min(numbers / NUMBERS_PER_PART + 1, 4 * threads_);
        int64_t tiles = 0;
        for (int64_t block = 0; block < blocks_; block++) tiles += tiles_of(block_rows(block).size());
        parallel(threads_, std::min(parts, tiles), [&](int64_t part) {
            Range mine = share(tiles, part, std::min(parts, tiles));
            int64_t first = 0;
            for (int64_t block = 0; block < blocks_; block++) {
                Range rows = block_rows(block);
                int64_t count = tiles_of(rows.size());
                for (int64_t n = std::max(mine.begin - first, INT64_C(0)); n < std::min(mine.end - first, count); n++) {
                    Range tile = share(rows.size(), n, count);
                    prepare_tile({rows.begin + tile.begin, rows.begin + tile.end});
                }
                first += count;
            }
        });
    }

    static constexpr int64_t NUMBERS_PER_PART = 1 << 15;

    Range block_rows(int64_t block) const { return share(rows_.count, block, blocks_); }

    void prepare_tile(Range tile) {
        for (int64_t row = tile.begin; row < tile.end; row++) {
            const Number* numbers = rows_.numbers + row * rows_.stride;
            if (layer_.group)
                for (int64_t g = 0; g < groups_; g++) row_sums_[row * groups_ + g] = sum(numbers + g * layer_.group);
            if (COPIED) copy(numbers, copies_ + tile.begin * words_ + row - tile.begin, tile.size());
        }
    }

    float sum(const Number* numbers) const {
        Floats sums = {};
        for (int64_t i = 0; i < layer_.group; i += LANES) sums += load(numbers + i, layer_.group - i);
        return sum_of(sums);
    }

    // Copies a row as floats to every `step`-th word.
    void copy(const Number* numbers, Word* to, int64_t step) const {
        for (int64_t i = 0; i < layer_.ins; i += LANES) {
            int64_t count = within_lanes(layer_.ins - i);
            Words words = (Words)load(numbers + i, count);
            for (int64_t lane = 0; lane < count; lane++) to[(i + lane) * step] = words[lane];
        }
    }

    Left left(Range rows, int64_t feature) const {
        int64_t word = feature / PER_WORD<Factor>;
        if (COPIED) return {copies_ + rows.begin * words_, words_, word};
        return {(const Word*)(rows_.numbers + rows.begin * rows_.stride), rows_.stride / PER_WORD<Factor>, word};
    }

    Right right(Range units, int64_t feature, int64_t features) const {
        int64_t unit_bytes = layer_.ins * Form::BYTES;
        return {layer_.weights + units.begin * unit_bytes + feature * Form::BYTES, unit_bytes, units.size(), features};
    }

    void multiply_chunk(int64_t block, Range units) const {
        static thread_local Memory memory;
        Range rows = block_rows(block);
        int64_t count = rows.size() * units.size() * UNIT;
        memory.reset(2 * count * sizeof(float) + BUFFER_BYTES + 3 * 64);
        float* sums = memory.take<float>(count);
        float* part = layer_.group ? memory.take<float>(count) : sums;
        char* buffer = memory.take<char>(BUFFER_BYTES);
        if (layer_.group) std::fill(sums, sums + count, 0.0f);
        for (int64_t g = 0; g < groups_; g++) {
            int64_t size = layer_.ins / groups_;
            multiply_features(rows, units, {g * size, (g + 1) * size}, part, buffer);
            if (layer_.group) add_group(rows, units, g, part, sums);
        }
        finish(rows, units, sums);
    }

    int64_t features_at_a_time(int64_t units) const {
        if (few_) return layer_.ins;
        int64_t bytes = units * (IS_PLAIN<Form> ? Form::BYTES : Plain<Factor>::BYTES);
        return (IS_PLAIN<Form> ? CACHED_BYTES : BUFFER_BYTES) / bytes / Form::FEATURES * Form::FEATURES;
    }

    void multiply_features(Range rows, Range units, Range all, float* sums, char* buffer) const {
        int64_t most = features_at_a_time(units.size());
        for (int64_t first = all.begin; first < all.end; first += most) {
            int64_t features = std::min(most, all.end - first);
            if (first == all.begin) multiply_block<false>(rows, left(rows, first), right(units, first, features), sums, buffer);
            else multiply_block<true>(rows, left(rows, first), right(units, first, features), sums, buffer);
        }
    }

    template <bool ADD>
    void multiply_block(Range rows, const Left& left, Right right, float* sums, char* buffer) const {
        int64_t stride = right.units * UNIT;
        if (few_) return multiply<Form, COPIED, ADD, true>(form_, left, rows.size(), right, sums, stride);
        if constexpr (!IS_PLAIN<Form>) right = decode(right, buffer);
        multiply<Plain<Factor>, COPIED, ADD>({}, left, rows.size(), right, sums, stride);
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

    // sums += scale * part + zero * the sum of the row's numbers. What decoding adds to each integer is taken away.
    void add_group(Range rows, Range units, int64_t group, const float* part, float* sums) const {
        const Floats middle = splat(-8 - FOUR_BITS_ADDED);
        for (int64_t unit = units.begin; unit < units.end; unit++)
            for (int v = 0; v < VECTORS_PER_UNIT; v++) {
                const bfloat16* at = layer_.scales + (unit * groups_ + group) * 2 * UNIT + v * LANES;
                Floats scale = load(at), zero = fused(scale, middle, load(at + UNIT));
                for (int64_t row = 0; row < rows.size(); row++) {
                    int64_t place = (row * units.size() + unit - units.begin) * UNIT + v * LANES;
                    Floats sum = fused(zero, splat(row_sums_[(rows.begin + row) * groups_ + group]), load(sums + place));
                    store(sums + place, fused(load(part + place), scale, sum));
                }
            }
    }

    void finish(Range rows, Range units, const float* sums) const {
        const Number* bias = (const Number*)layer_.bias;
        const bool scaled = layer_.scales && !layer_.group;
        for (int64_t unit = units.begin; unit < units.end; unit++)
            for (int v = 0; v < VECTORS_PER_UNIT; v++) {
                const int64_t out = unit * UNIT + v * LANES, count = layer_.outs - out;
                const Floats scale = scaled ? load(layer_.scales + out) : Floats{};
                const Floats added = bias ? load(bias + out, count) : Floats{};
                for (int64_t row = 0; row < rows.size(); row++) {
                    Floats sum = load(sums + (row * units.size() + unit - units.begin) * UNIT + v * LANES);
                    if (scaled) sum *= scale;
                    if (bias) sum += added;
                    store(rows_.output + (rows.begin + row) * layer_.outs + out, sum, count);
                }
            }
    }

    const LinearLayer& layer_;
    const Rows<Number>& rows_;
    const Form form_;
    const int64_t words_;  // of a row
    int64_t threads_, blocks_, groups_, units_, units_per_chunk_;
    bool few_;
    Word* copies_ = nullptr;
    float* row_sums_ = nullptr;  // [count][groups]
};

// rows [count, K] with a stride, in numbers; both even for bfloat16. output [count, outs] without gaps.
#define EXPORT(name, Number, ...)                                                                                  \
    extern "C" void linear_##name(const LinearLayer* layer, const Number* rows, int64_t stride, int64_t count,     \
                                  Number* output, int64_t threads) {                                               \
        if (count) Linear<Number, __VA_ARGS__>(*layer, {rows, stride, count, output}, threads).run();              \
    }

EXPORT(float, float, Plain<float>)
EXPORT(bfloat16, bfloat16, Stored<bfloat16>)
EXPORT(int8, bfloat16, EightBits<true>)
EXPORT(fp8, bfloat16, EightBits<false>)
EXPORT(int4, bfloat16, FourBits)
