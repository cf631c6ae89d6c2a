// Reads memory as fast as the machine can: the bound of every kernel that streams weights.

#include "parallel.h"

typedef int64_t Longs __attribute__((vector_size(sizeof(Words))));

static const int64_t SUMS = 8, AHEAD = 1024, BLOCK = SUMS * sizeof(Longs);

static int64_t sum_of_blocks(const char* data, Range blocks) {
    Longs sums[SUMS] = {};
    for (const char* from = data + blocks.begin * BLOCK; from < data + blocks.end * BLOCK; from += BLOCK) {
        UNROLLED
        for (int64_t at = 0; at < BLOCK; at += LINE) __builtin_prefetch(from + AHEAD + at, 0, 3);
        UNROLLED
        for (int64_t n = 0; n < SUMS; n++) sums[n] += read<Longs>(from + n * sizeof(Longs));
    }
    int64_t total = 0;
    for (const Longs& sum : sums)
        for (size_t lane = 0; lane < sizeof(Longs) / sizeof(int64_t); lane++) total += sum[lane];
    return total;
}

// Sums the 64-bit numbers in `size` bytes at `data`, a multiple of 512. Each of `threads` parts writes to `sums`, so that
// reading is not optimized away.
extern "C" void read_memory(const char* data, int64_t size, int64_t* sums, int64_t threads) {
    parallel(threads, threads, [=](int64_t part) { sums[part] = sum_of_blocks(data, share(size / BLOCK, part, threads)); });
}
