// Products of bfloat16 numbers in the processor's tiles (AMX), which hold 16 rows of 64 bytes each.
//
// A *strip* is at most 16 rows of the left-hand side. A unit's words of 32 features are a tile as they are stored
// (`products.h`), so one instruction multiplies a strip with 32 features of a unit. Each sum goes through the features in
// their order, 32 at a time, whatever strip it is in: so results do not depend on what is beside a row.
#pragma once

#include "forms.h"

#include <algorithm>

#if WITH_PAIRS && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define WITH_TILES 1
#else
#define WITH_TILES 0
#endif

static const int STRIP = 16;          // most rows of a strip
static const int TILE_FEATURES = 32;  // that one instruction multiplies

// Strips of `rows` rows each, [strips][features / TILE_FEATURES] tiles; the rows of a tile are `row_stride` bytes apart.
struct Strips {
    const char* from;
    int64_t count, rows;
    int64_t strip_stride, tile_stride, row_stride;  // bytes
};

// How many strips hold `all` rows, and of how many rows each: as few as can be, all alike. The last one may not be full.
struct Cut {
    int64_t strips, rows;
    explicit Cut(int64_t all) : strips((all + STRIP - 1) / STRIP), rows((all + strips - 1) / strips) {}
};

#if WITH_TILES

#include <sys/syscall.h>
#include <unistd.h>

// Whether the system lets this process use tiles. It is asked once, for all threads.
static inline bool can_use_tiles() {
    static const bool can = [] {
        const long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
        return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    }();
    return can;
}

// Reads a word of a line, which is 7 % faster before a tile of it is loaded: the processor fetches ahead of plain reads only.
INLINE void touch(const char* line) {
    (void)*(const volatile Word*)line;
}

// Instructions on the tile registers, whose numbers are constants.
template <int TILE>
INLINE void zero_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}
template <int TILE>
INLINE void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
INLINE void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(TILE) : "memory");
}
template <int SUM, int LEFT, int RIGHT>
INLINE void multiply_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(LEFT), "i"(RIGHT));
}

// Gives the tile registers of this thread their shapes, while it lives: four of sums and two of strips, with `rows` rows, and
// two of units. Without rows it does nothing.
class TileShapes {
  public:
    explicit TileShapes(int64_t rows) : used_(rows > 0) {
        if (!used_) return;
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } shapes;
        for (int tile = 0; tile < 8; tile++) {
            shapes.row_bytes[tile] = 64;
            shapes.rows[tile] = tile < FIRST_UNIT ? uint8_t(rows) : STRIP;
        }
        asm volatile("ldtilecfg %0" ::"m"(shapes));
    }
    ~TileShapes() {
        if (used_) asm volatile("tilerelease");
    }
    TileShapes(const TileShapes&) = delete;

    static constexpr int FIRST_STRIP = 4, FIRST_UNIT = 6;

  private:
    const bool used_;
};

// Calls body(constant) for 0 to COUNT - 1, each as a std::integral_constant.
template <int COUNT, int FIRST = 0, class Body>
INLINE void each_constant(const Body& body) {
    if constexpr (FIRST < COUNT) {
        body(std::integral_constant<int, FIRST>());
        each_constant<COUNT, FIRST + 1>(body);
    }
}

// Tiles of units, as they are loaded: where they are stored, or decoded into a buffer.
template <class Form>
class UnitTiles {
  public:
    explicit UnitTiles(const Form& form) : form_(form) {}

    static constexpr int64_t BYTES = TILE_FEATURES * Form::BYTES;

    // Makes the tile at `from` ready, as number `slot` of MOST.
    INLINE_MEMBER void prepare(const char* from, int slot) {
        if constexpr (!IS_PLAIN<Form>) {
            UNROLLED
            for (int feature = 0; feature < TILE_FEATURES; feature += Form::FEATURES) {
                Words words[WORDS_OF<Form>];
                form_.decode(from + feature * Form::BYTES, 0, words);
                UNROLLED
                for (int w = 0; w < WORDS_OF<Form>; w++) write(buffer_[slot] + (feature / 2 + w) * sizeof(Words), words[w]);
            }
        }
    }

    INLINE_MEMBER const char* tile(const char* from, int slot) const {
        if constexpr (IS_PLAIN<Form>) return from;
        else return buffer_[slot];
    }

    static constexpr int MOST = 8;

  private:
    const Form form_;
    alignas(64) char buffer_[IS_PLAIN<Form> ? 1 : MOST][TILE_FEATURES * UNIT * sizeof(bfloat16)];
};

// sums [STRIPS * rows][UNITS * UNIT] = or += left * right, for STRIPS * UNITS <= 4
template <int STRIPS, int UNITS, class Form>
static void multiply_strips(UnitTiles<Form>& tiles, const Strips& left, const Right& right, bool streamed, bool add,
                            float* sums, int64_t stride) {
    constexpr int FIRST_STRIP = TileShapes::FIRST_STRIP, FIRST_UNIT = TileShapes::FIRST_UNIT;
    each_constant<STRIPS>([&](auto s) INLINE_LAMBDA {
        each_constant<UNITS>([&](auto u) INLINE_LAMBDA {
            if (add) load_tile<s * UNITS + u>(sums + s * left.rows * stride + u * UNIT, stride * sizeof(float));
            else zero_tile<s * UNITS + u>();
        });
    });
    const char *strip = left.from, *unit = right.from;
    int slot = 0;
    // The tiles of a step are made one step ahead, so that they are in memory when they are loaded.
    const auto prepare = [&](int step) INLINE_LAMBDA {
        each_constant<UNITS>([&](auto u) INLINE_LAMBDA {
            const char* from = unit + u * right.unit_stride + step * UnitTiles<Form>::BYTES;
            if (streamed)
                for (int64_t line = 0; line < UnitTiles<Form>::BYTES; line += LINE) {
                    prefetch(from + STREAM_AHEAD + line);
                    if (IS_PLAIN<Form>) touch(from + line);
                }
            tiles.prepare(from, (slot ^ step * 4) + u);
        });
    };
    prepare(0);
    for (int64_t feature = 0; feature < right.features; feature += TILE_FEATURES) {
        if (feature + TILE_FEATURES < right.features) prepare(1);
        each_constant<STRIPS>([&](auto s) INLINE_LAMBDA {
            load_tile<FIRST_STRIP + s>(strip + s * left.strip_stride, left.row_stride);
        });
        each_constant<UNITS>([&](auto u) INLINE_LAMBDA {
            load_tile<FIRST_UNIT + u % 2>(tiles.tile(unit + u * right.unit_stride, slot + u), LINE);
            each_constant<STRIPS>([&](auto s) INLINE_LAMBDA {
                multiply_tiles<s * UNITS + u, FIRST_STRIP + s, FIRST_UNIT + u % 2>();
            });
        });
        strip += left.tile_stride;
        unit += UnitTiles<Form>::BYTES;
        slot ^= 4;
    }
    each_constant<STRIPS>([&](auto s) INLINE_LAMBDA {
        each_constant<UNITS>([&](auto u) INLINE_LAMBDA {
            store_tile<s * UNITS + u>(sums + s * left.rows * stride + u * UNIT, stride * sizeof(float));
        });
    });
}

// The same for as many units as there are, at most UNITS.
template <int STRIPS, int UNITS, class Form>
static void multiply_strips_of(UnitTiles<Form>& tiles, const Strips& left, const Right& right, bool streamed, bool add,
                               float* sums, int64_t stride) {
    with_constant<UNITS>(right.units, [&](auto units) {
        multiply_strips<STRIPS, units.value>(tiles, left, right, streamed, add, sums, stride);
    });
}

// sums [strips * rows][units * UNIT] = or += left * right. The features are a multiple of TILE_FEATURES; TileShapes of
// `left.rows` rows must live. `streamed`: the units come from memory.
template <class Form>
static void multiply(const Form& form, const Strips& left, Right right, bool streamed, bool add, float* sums, int64_t stride) {
    UnitTiles<Form> tiles(form);
    const int64_t most = left.count == 1 ? 4 : 2;
    for (; right.units > 0; right.units -= most, right.from += most * right.unit_stride, sums += most * UNIT) {
        Right some = right;
        some.units = std::min(right.units, most);
        Strips strips = left;
        float* to = sums;
        for (; strips.count > 0; strips.count -= 2) {
            const bool first = streamed && strips.count == left.count;
            if (left.count == 1) multiply_strips_of<1, 4>(tiles, strips, some, first, add, to, stride);
            else if (strips.count == 1) multiply_strips_of<1, 2>(tiles, strips, some, first, add, to, stride);
            else multiply_strips_of<2, 2>(tiles, strips, some, first, add, to, stride);
            strips.from += 2 * left.strip_stride;
            to += 2 * left.rows * stride;
        }
    }
}

#else

static inline bool can_use_tiles() { return false; }

struct TileShapes {
    explicit TileShapes(int64_t) {}
};

#endif
