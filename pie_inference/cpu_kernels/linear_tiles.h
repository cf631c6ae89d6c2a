// A linear layer in the processor's tiles (`tiles.h`).
//
// Up to a strip of rows is multiplied where it is, with units as they stream from memory. More rows are copied strip by
// strip, tile by tile, and a block of two units stays in a cache for all strips. Forms that are not multiplied as they are
// stored are decoded tile by tile, a step ahead, or for many strips all at once into a buffer.
#pragma once

#include "linear.h"
#include "tiles.h"

static inline bool fits_tiles(const LinearLayer& layer) {
    return layer.ins % TILE_FEATURES == 0 && layer.group % TILE_FEATURES == 0 && can_use_tiles();
}

#if WITH_TILES

template <class Number, class Form>
class LinearInTiles : LinearParts<Number, Form> {
    using Parts = LinearParts<Number, Form>;
    using typename Parts::Factor;
    using Parts::layer_, Parts::rows_, Parts::units_;

  public:
    LinearInTiles(const LinearLayer& layer, const Form& form, const Rows<Number>& rows)
        : Parts(layer, form, rows), cut_(rows.count) {
        blocks_ = (rows.count + Parts::ROW_BLOCK - 1) / Parts::ROW_BLOCK;
        units_at_once_ = cut_.strips > 1 ? 2 : 4;
        units_per_chunk_ = units_at_once_ * 4;
        columns_ = (units_ + units_per_chunk_ - 1) / units_per_chunk_;
        const int64_t step = layer.group ? layer.group : TILE_FEATURES;
        features_at_once_ = cut_.strips > 1 ? std::max(MOST_FEATURES / step, INT64_C(1)) * step : layer.ins;
    }

    int64_t prepared_bytes() const { return Memory::bytes_of<char>(copied_bytes()) + Memory::bytes_of<float>(this->num_row_sums()); }

    void take(Memory& memory) {
        copies_ = memory.take<char>(copied_bytes());
        this->row_sums_ = memory.take<float>(this->num_row_sums());
    }

    int64_t preparing_parts() const { return std::min(Parts::preparing_parts(), cut_.strips); }

    // Copies a part of the strips and sums their rows group by group.
    void prepare(int64_t part) const {
        const Range rows = rows_of(share(cut_.strips, part, preparing_parts()));
        for (int64_t row = rows.begin; row < rows.end; row++) {
            if (layer_.group) this->sum_groups(row);
            if (is_copied()) copy(this->row(row), copies_ + row / cut_.rows * strip_bytes() + row % cut_.rows * TILE_ROW);
        }
    }

    int64_t chunks() const { return blocks_ * columns_; }

    void run(int64_t chunk) const {
        const Range strips = share(cut_.strips, chunk / columns_, blocks_);
        const int64_t begin = chunk % columns_ * units_per_chunk_, end = std::min(begin + units_per_chunk_, units_);
        const TileShapes shapes(cut_.rows);
        const int64_t part_size = layer_.group ? 2 * cut_.rows * units_at_once_ * UNIT : 0;
        this->write_chunk(rows_of(strips), strips.size() * cut_.rows, {begin, end}, part_size, buffer_bytes(),
                          [&](float* sums, float* part, char* buffer) {
                              sum_features(strips, {begin, end}, sums, part, buffer);
                          });
    }

  private:
    static constexpr int64_t TILE_ROW = TILE_FEATURES * sizeof(bfloat16);  // bytes
    static constexpr int64_t FEW_STRIPS = 4;
    static constexpr int64_t MOST_FEATURES = 2048;  // of a block's rows, which stay in the second-level cache for a chunk

    bool is_copied() const { return cut_.strips > 1; }

    int64_t copied_bytes() const { return is_copied() ? cut_.strips * strip_bytes() : 0; }

    void copy(const Number* row, char* to) const {
        const char* from = (const char*)row;
        for (int64_t i = 0; i < layer_.ins; i += TILE_FEATURES, from += TILE_ROW, to += cut_.rows * TILE_ROW)
            std::memcpy(to, from, TILE_ROW);
    }

    // Whether units are read as they are stored. To decode them again for each two strips costs less than a buffer, if there are
    // few strips.
    bool in_place(Range strips) const { return IS_PLAIN<Form> || strips.size() <= FEW_STRIPS; }

    // For the units and features that are multiplied at once, decoded.
    int64_t buffer_bytes() const {
        const bool decoded = !IS_PLAIN<Form> && cut_.strips > FEW_STRIPS;
        return decoded ? units_at_once_ * features_at_once_ * Plain<Factor>::BYTES : 0;
    }

    int64_t strip_bytes() const { return cut_.rows * layer_.ins * (int64_t)sizeof(bfloat16); }

    Range rows_of(Range strips) const {
        return {strips.begin * cut_.rows, std::min(strips.end * cut_.rows, rows_.count)};
    }

    Strips left(Range strips, int64_t feature) const {
        const int64_t offset = feature * (int64_t)sizeof(bfloat16), row_stride = rows_.stride * (int64_t)sizeof(bfloat16);
        if (!is_copied()) return {(const char*)rows_.numbers + offset, 1, cut_.rows, 0, TILE_ROW, row_stride};
        const char* from = copies_ + strips.begin * strip_bytes() + offset * cut_.rows;
        return {from, strips.size(), cut_.rows, strip_bytes(), cut_.rows * TILE_ROW, TILE_ROW};
    }

    void sum_features(Range strips, Range all, float* sums, float* part, char* buffer) const {
        for (int64_t feature = 0; feature < layer_.ins; feature += features_at_once_)
            for (int64_t unit = all.begin; unit < all.end; unit += units_at_once_) {
                const Range features = {feature, std::min(feature + features_at_once_, layer_.ins)};
                const Range units = {unit, std::min(unit + units_at_once_, all.end)};
                const Right right = this->right(units, features.begin, features.size());
                float* to = sums + (unit - all.begin) * UNIT;
                const int64_t stride = all.size() * UNIT;
                if (IS_PLAIN<Form> || in_place(strips)) add_units(this->form_, strips, units, features, right, to, stride, part);
                else add_units(Plain<Factor>(), strips, units, features, this->decode(right, buffer), to, stride, part);
            }
    }

    // Groups are multiplied two strips at a time, so that their sums stay in the first-level cache.
    template <class Read>
    void add_units(const Read& form, Range strips, Range units, Range features, const Right& right, float* sums, int64_t stride,
                   float* part) const {
        const bool streamed = std::is_same_v<Read, Form>;
        if (!layer_.group) return multiply(form, left(strips, features.begin), right, streamed, features.begin > 0, sums, stride);
        for (int64_t strip = strips.begin; strip < strips.end; strip += 2, sums += 2 * cut_.rows * stride) {
            const Range pair = {strip, std::min(strip + 2, strips.end)};
            for (int64_t first = features.begin; first < features.end; first += layer_.group) {
                Right group = right;
                group.from += (first - features.begin) * Read::BYTES;
                group.features = layer_.group;
                multiply(form, left(pair, first), group, streamed, false, part, units.size() * UNIT);
                this->add_group(rows_of(pair), units, first / layer_.group, part, sums, stride);
            }
        }
    }

    const Cut cut_;
    int64_t blocks_, columns_, units_at_once_, units_per_chunk_, features_at_once_;
    char* copies_ = nullptr;
};

#endif
