// Linear layers: rows [M, K] times weights [N, K], which are packed once in units (`products.h`), in a form that suits one
// row and thousands.

#include "linear_tiles.h"
#include "linear_vectors.h"

// A layer keeps to one kind of instructions whatever the number of rows, so that a row has the same result in every batch.
template <class Number, class Form>
static void multiply_layer(const LinearLayer& layer, const Rows<Number>& rows, int64_t threads) {
#if WITH_TILES
    if constexpr (std::is_same_v<typename Form::Factor, bfloat16>)
        if (fits_tiles(layer)) return LinearInTiles<Number, Form>(layer, rows, threads).run();
#endif
    LinearInVectors<Number, Form>(layer, rows, threads).run();
}

// rows [count, K] with a stride, in numbers; both even for bfloat16. output [count, outs] without gaps.
#define EXPORT(name, Number, ...)                                                                                  \
    extern "C" void linear_##name(const LinearLayer* layer, const Number* rows, int64_t stride, int64_t count,     \
                                  Number* output, int64_t threads) {                                               \
        if (count) multiply_layer<Number, __VA_ARGS__>(*layer, {rows, stride, count, output}, threads);               \
    }

EXPORT(float, float, Plain<float>)
EXPORT(bfloat16, bfloat16, Stored<bfloat16>)
EXPORT(int8, bfloat16, EightBits<true>)
EXPORT(fp8, bfloat16, EightBits<false>)
EXPORT(all_int8, bfloat16, AllBytes)
EXPORT(int4, bfloat16, FourBits)
EXPORT(fp4, bfloat16, FourBitFloats)
