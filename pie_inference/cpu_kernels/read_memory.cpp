// Reads memory as fast as the machine can: the bound of every kernel that streams weights.

#include "parallel.h"
#include "vectors.h"

static const int64_t LANES = 8, AHEAD = 1024, BLOCK = LANES * 64;

// Sums the 64-bit numbers in `size` bytes at `data`, both multiples of 64. Each thread writes to `sums`, so that reading is
// not optimized away.
extern "C" void read_memory(const char* data, int64_t size, int64_t* sums, int64_t threads) {
    parallel(threads, [&](int64_t thread, int64_t active) {
        Range part = share(size / BLOCK, thread, active);
        __m512i lanes[LANES];
        for (auto& lane : lanes) lane = _mm512_setzero_si512();
        for (const char* from = data + part.begin * BLOCK; from < data + part.end * BLOCK; from += BLOCK) {
            for (int64_t lane = 0; lane < LANES; lane++) {
                _mm_prefetch(from + lane * 64 + AHEAD, _MM_HINT_T0);
                lanes[lane] = _mm512_add_epi64(lanes[lane], _mm512_load_si512(from + lane * 64));
            }
        }
        for (int64_t lane = 1; lane < LANES; lane++) lanes[0] = _mm512_add_epi64(lanes[0], lanes[lane]);
        sums[thread] = _mm512_reduce_add_epi64(lanes[0]);
    });
}
