// A linear layer in vectors.
//
// With few rows, memory is the bound: weights are decoded while they are multiplied, as streams with prefetch. With more
// rows, a block of a few units stays in a cache for all tiles of rows; forms that are not multiplied as they are stored are
// decoded into a buffer first.
#pragma once

#include "linear.h"

template <class Number, class Form>
class LinearInVectors : LinearParts<Number, Form> {
    using Parts = LinearParts<Number, Form>;
    using typename Parts::Factor;
    using Parts::layer_, Parts::rows_, Parts::form_, Parts::units_;

  public:
    LinearInVectors(const LinearLayer& layer, const Form& form, const Rows<Number>& rows)
        : Parts(layer, form, rows), words_(layer.ins / PER_WORD<Factor>) {
        blocks_ = (rows.count + Parts::ROW_BLOCK - 1) / Parts::ROW_BLOCK;
        few_ = rows.count <= Form::MOST_DIRECT;
        units_per_chunk_ = few_ ? most_units<Form>((int)std::min<int64_t>(rows.count, MOST_ROWS)) : most_units<Plain<Factor>>(MOST_ROWS);
        columns_ = (units_ + units_per_chunk_ - 1) / units_per_chunk_;
        for (int64_t block = 0; block < blocks_; block++) tiles_ += tiles_of(block_rows(block).size());
    }

    int64_t prepared_bytes() const { return Memory::bytes_of<Word>(num_words()) + Memory::bytes_of<float>(this->num_row_sums()); }

    void take(Memory& memory) {
        copies_ = memory.take<Word>(num_words());
        this->row_sums_ = memory.take<float>(this->num_row_sums());
    }

    int64_t preparing_parts() const { return std::min(Parts::preparing_parts(), tiles_); }

    // Copies a part of the rows and sums them group by group, block by block.
    void prepare(int64_t part) const {
        const Range mine = share(tiles_, part, preparing_parts());
        int64_t first = 0;
        for (int64_t block = 0; block < blocks_; block++) {
            const Range rows = block_rows(block);
            const int64_t count = tiles_of(rows.size());
            for (int64_t n = std::max(mine.begin - first, INT64_C(0)); n < std::min(mine.end - first, count); n++) {
                const Range tile = share(rows.size(), n, count);
                prepare_tile({rows.begin + tile.begin, rows.begin + tile.end});
            }
            first += count;
        }
    }

    int64_t chunks() const { return blocks_ * columns_; }

    void run(int64_t chunk) const {
        const int64_t first = chunk % columns_ * units_per_chunk_;
        const Range rows = block_rows(chunk / columns_), units = {first, std::min(first + units_per_chunk_, units_)};
        const int64_t part_size = layer_.group ? rows.size() * units.size() * UNIT : 0;
        this->write_chunk(rows, rows.size(), units, part_size, Parts::BUFFER_BYTES, [&](float* sums, float* part, char* buffer) {
            sum_features(rows, units, sums, part, buffer);
        });
    }

  private:
    // Whether rows are copied: as interleaved words of factors, since a tile with few registers has none for its rows'
    // addresses, and since rows may be of another format.
    static constexpr bool COPIED = !WITH_PAIRS;
    static constexpr int MOST_OF_FEW = REGISTERS == 16 ? 4 : std::min(MOST_ROWS, Form::MOST_DIRECT);  // rows of a tile, see `tiles_of`
    static constexpr int64_t CACHED_BYTES = WITH_PAIRS ? 256 << 10 : 16 << 10;  // of a block that is multiplied in place

    // Of the copies.
    int64_t num_words() const { return COPIED ? rows_.count * words_ : 0; }

    Range block_rows(int64_t block) const { return share(rows_.count, block, blocks_); }

    void prepare_tile(Range tile) const {
        for (int64_t row = tile.begin; row < tile.end; row++) {
            if (layer_.group) this->sum_groups(row);
            if (COPIED) copy(this->row(row), copies_ + tile.begin * words_ + row - tile.begin, tile.size());
        }
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

    int64_t features_at_a_time(int64_t units) const {
        if (few_) return layer_.ins;
        int64_t bytes = units * (IS_PLAIN<Form> ? Form::BYTES : Plain<Factor>::BYTES);
        return (IS_PLAIN<Form> ? CACHED_BYTES : Parts::BUFFER_BYTES) / bytes / Form::FEATURES * Form::FEATURES;
    }

    void sum_features(Range rows, Range units, float* sums, float* part, char* buffer) const {
        if (!layer_.group) return multiply_features(rows, units, {0, layer_.ins}, sums, buffer);
        for (int64_t first = 0; first < layer_.ins; first += layer_.group) {
            multiply_features(rows, units, {first, first + layer_.group}, part, buffer);
            this->add_group(rows, units, first / layer_.group, part, sums, units.size() * UNIT);
        }
    }

    void multiply_features(Range rows, Range units, Range all, float* sums, char* buffer) const {
        const int64_t most = features_at_a_time(units.size());
        for (int64_t first = all.begin; first < all.end; first += most) {
            const Right right = this->right(units, first, std::min(most, all.end - first));
            if (first == all.begin) multiply_block<false>(rows, left(rows, first), right, sums, buffer);
            else multiply_block<true>(rows, left(rows, first), right, sums, buffer);
        }
    }

    template <bool ADD>
    void multiply_block(Range rows, const Left& left, Right right, float* sums, char* buffer) const {
        int64_t stride = right.units * UNIT;
        if constexpr (!ADD)
            if (few_) return multiply<Form, COPIED, false, true, MOST_OF_FEW>(form_, left, rows.size(), right, sums, stride);
        if constexpr (!IS_PLAIN<Form>) right = this->decode(right, buffer);
        multiply<Plain<Factor>, COPIED, ADD>({}, left, rows.size(), right, sums, stride);
    }

    const int64_t words_;  // of a row
    int64_t blocks_, units_per_chunk_, columns_, tiles_ = 0;
    bool few_;
    Word* copies_ = nullptr;
};
