// Linear layers in the processor's tiles (`tiles.h`).
//
// Up to a strip of rows is multiplied where it is, with units as they stream from memory. More rows are copied strip by
// strip, tile by tile, and a block of two units stays in a cache for all strips. Forms that are not multiplied as they are
// stored are decoded into a buffer first.
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
    using Parts::layer_, Parts::rows_, Parts::threads_, Parts::units_;

  public:
    LinearInTiles(const LinearLayer& layer, const Rows<Number>& rows, int64_t threads)
        : Parts(layer, rows, threads), cut_(rows.count) {
        blocks_ = (rows.count + Parts::ROW_BLOCK - 1) / Parts::ROW_BLOCK;
        const int64_t step = layer.group ? layer.group : TILE_FEATURES;
        if (cut_.strips > 1) at_once_ = {2, std::max(MOST_FEATURES / step, INT64_C(1)) * step};
        else at_once_ = {4, layer.ins};
        units_per_chunk_ = at_once_.units * 4;
    }

    void run() {
        if (cut_.strips > 1 || layer_.group) prepare();
        const int64_t columns = (units_ + units_per_chunk_ - 1) / units_per_chunk_;
        parallel(threads_, blocks_ * columns, [&](int64_t chunk) {
            const Range strips = share(cut_.strips, chunk / columns, blocks_);
            const int64_t begin = chunk % columns * units_per_chunk_, end = std::min(begin + units_per_chunk_, units_);
            const TileShapes shapes(cut_.rows);
            this->sum_chunk(rows_of(strips), strips.size() * cut_.rows, {begin, end}, at_once_, buffer_bytes(),
                            [&](Range units, Range features, bool add, float* sums, int64_t stride, char* buffer) {
                                multiply_features(strips, units, features, add, sums, stride, buffer);
                            });
        });
    }

  private:
    static constexpr int64_t TILE_ROW = TILE_FEATURES * sizeof(bfloat16);  // bytes
    static constexpr int64_t MOST_FEATURES = 2048;  // of a block's rows, which stay in the second-level cache for a chunk

    // Copies strips and sums their rows group by group.
    void prepare() {
        static thread_local Memory memory;
        const bool copied = cut_.strips > 1;
        memory.reset(copied ? cut_.strips * strip_bytes() : 0);
        copies_ = copied ? memory.take<char>(cut_.strips * strip_bytes()) : nullptr;
        this->take_row_sums();
        const int64_t parts = std::min(this->preparing_parts(), cut_.strips);
        parallel(threads_, parts, [&](int64_t part) {
            const Range strips = share(cut_.strips, part, parts), rows = rows_of(strips);
            for (int64_t row = rows.begin; row < rows.end; row++) {
                if (layer_.group) this->sum_groups(row);
                if (copied) copy(this->row(row), copies_ + row / cut_.rows * strip_bytes() + row % cut_.rows * TILE_ROW);
            }
        });
    }

    void copy(const Number* row, char* to) const {
        const char* from = (const char*)row;
        for (int64_t i = 0; i < layer_.ins; i += TILE_FEATURES, from += TILE_ROW, to += cut_.rows * TILE_ROW)
            std::memcpy(to, from, TILE_ROW);
    }

    // For a group of the units that are multiplied at once, decoded.
    int64_t buffer_bytes() const {
        const bool decoded = !IS_PLAIN<Form> && cut_.strips > 1;
        return decoded ? at_once_.units * (layer_.group ? layer_.group : at_once_.features) * Plain<Factor>::BYTES : 0;
    }

    int64_t strip_bytes() const { return cut_.rows * layer_.ins * (int64_t)sizeof(bfloat16); }

    Range rows_of(Range strips) const {
        return {strips.begin * cut_.rows, std::min(strips.end * cut_.rows, rows_.count)};
    }

    Strips left(Range strips, int64_t feature) const {
        const int64_t offset = feature * (int64_t)sizeof(bfloat16), row_stride = rows_.stride * (int64_t)sizeof(bfloat16);
        if (!copies_) return {(const char*)rows_.numbers + offset, 1, cut_.rows, 0, TILE_ROW, row_stride};
        const char* from = copies_ + strips.begin * strip_bytes() + offset * cut_.rows;
        return {from, strips.size(), cut_.rows, strip_bytes(), cut_.rows * TILE_ROW, TILE_ROW};
    }

    void multiply_features(Range strips, Range units, Range features, bool add, float* sums, int64_t stride, char* buffer) const {
        const Right right = this->right(units, features.begin, features.size());
        const Strips left = this->left(strips, features.begin);
        if (IS_PLAIN<Form> || strips.size() == 1) return multiply(this->form_, left, right, true, add, sums, stride);
        multiply(Plain<Factor>(), left, this->decode(right, buffer), false, add, sums, stride);
    }

    const Cut cut_;
    typename Parts::Block at_once_;
    int64_t blocks_, units_per_chunk_;
    char* copies_ = nullptr;
};

#endif
