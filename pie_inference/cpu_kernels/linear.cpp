// Linear layers: rows [M, K] times weights [N, K], which are packed once in units (`products.h`), in a form that suits one
// row and thousands. Layers of equal sizes, such as the experts of a model, go together, each with rows of its own.

#include "linear_tiles.h"
#include "linear_vectors.h"

#include <vector>

static const int64_t WEIGHTS_PER_THREAD = 1 << 16;

// The layers that have rows, whose chunks are those of one parallel loop. A thread keeps it, for its memory.
template <class Product>
class Together {
  public:
    void clear() { products_.clear(); }

    template <class... Arguments>
    void add(const Arguments&... arguments) {
        products_.emplace_back(arguments...);
    }

    // `weights` and `numbers` are how many those of all layers and rows are.
    void run(int64_t weights, int64_t numbers, int64_t threads) {
        const int64_t most = std::min(threads, weights / WEIGHTS_PER_THREAD + 1);
        prepare(std::min(most, numbers / NUMBERS_PER_PART + 1));
        each(most, [](const Product& product) { return product.chunks(); },
             [](const Product& product, int64_t chunk) { product.run(chunk); });
    }

  private:
    void prepare(int64_t threads) {
        int64_t bytes = 0;
        for (const Product& product : products_) bytes += product.prepared_bytes();
        if (!bytes) return;
        memory_.reset(bytes);
        for (Product& product : products_) product.take(memory_);
        each(threads, [](const Product& product) { return product.preparing_parts(); },
             [](const Product& product, int64_t part) { product.prepare(part); });
    }

    // Calls run(product, chunk) for each of the `count(product)` chunks of all.
    template <class Count, class Run>
    void each(int64_t threads, const Count& count, const Run& run) {
        int64_t total = 0;
        ends_.clear();
        for (const Product& product : products_) ends_.push_back(total += count(product));
        parallel(threads, total, [&](int64_t chunk) {
            const int64_t n = std::upper_bound(ends_.begin(), ends_.end(), chunk) - ends_.begin();
            run(products_[n], chunk - (n ? ends_[n - 1] : 0));
        });
    }

    std::vector<Product> products_;
    std::vector<int64_t> ends_;
    Memory memory_;
};

// `num` layers of equal sizes and groups, and where the rows of each end.
struct Layers {
    const LinearLayer* layers;
    const int32_t* ends;
    int64_t num;
};

template <class Form>
static Form make_form(const LinearLayer& layer) {
    if constexpr (std::is_constructible_v<Form, const uint16_t*>) return Form(layer.codes);
    else return Form();
}

template <class Number, class Form, class Product>
static void multiply_together(const Layers& all, const Rows<Number>& rows, int64_t threads) {
    const Form form = make_form<Form>(all.layers[0]);
    static thread_local Together<Product> together;
    together.clear();
    int64_t first = 0, with_rows = 0;
    for (int64_t n = 0; n < all.num; first = all.ends[n++]) {
        if (all.ends[n] == first) continue;
        const LinearLayer& layer = all.layers[n];
        const Rows<Number> own = {rows.numbers + first * rows.stride, rows.stride, all.ends[n] - first, rows.output + first * layer.outs};
        together.add(layer, form, own);
        with_rows++;
    }
    together.run(with_rows * all.layers[0].outs * all.layers[0].ins, rows.count * all.layers[0].ins, threads);
}

// A layer keeps to one kind of instructions whatever the number of rows, so that a row has the same result in every batch.
template <class Number, class Form>
static void multiply_layers(const Layers& all, const Rows<Number>& rows, int64_t threads) {
#if WITH_TILES
    if constexpr (std::is_same_v<typename Form::Factor, bfloat16>)
        if (fits_tiles(all.layers[0])) return multiply_together<Number, Form, LinearInTiles<Number, Form>>(all, rows, threads);
#endif
    multiply_together<Number, Form, LinearInVectors<Number, Form>>(all, rows, threads);
}

// rows [count, K] with a stride, in numbers; both even for bfloat16. output [count, outs] without gaps.
#define EXPORT(name, Number, ...)                                                                                       \
    extern "C" void linear_##name(const LinearLayer* layer, const Number* rows, int64_t stride, int64_t count,          \
                                  Number* output, int64_t threads) {                                                    \
        const int32_t end = int32_t(count);                                                                             \
        multiply_layers<Number, __VA_ARGS__>({layer, &end, 1}, {rows, stride, count, output}, threads);                  \
    }                                                                                                                   \
    extern "C" void linears_##name(const LinearLayer* layers, const int32_t* ends, int64_t num, const Number* rows,      \
                                   int64_t stride, int64_t count, Number* output, int64_t threads) {                    \
        multiply_layers<Number, __VA_ARGS__>({layers, ends, num}, {rows, stride, count, output}, threads);               \
    }

EXPORT(float, float, Plain<float>)
EXPORT(narrow, float, Pairs)  // weights that are bfloat16
EXPORT(bfloat16, bfloat16, Stored<bfloat16>)
EXPORT(int8, bfloat16, EightBits<true>)
EXPORT(fp8, bfloat16, EightBits<false>)
EXPORT(all_int8, bfloat16, AllBytes)
EXPORT(int4, bfloat16, FourBits)
EXPORT(fp4, bfloat16, FourBitFloats)
