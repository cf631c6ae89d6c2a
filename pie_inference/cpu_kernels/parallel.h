// Work shared by threads of torch's OpenMP pool.
//
// A second OpenMP runtime in the process would bring a second pool, whose threads would compete with the first. So nothing
// here is compiled or linked with OpenMP: `library.py` finds the runtime that torch loaded and passes its entry points.
#pragma once

#include <cstdint>

struct OpenMp {
    void (*parallel)(void (*body)(void*), void* data, unsigned num_threads, unsigned flags);  // GOMP_parallel
    void (*barrier)();                                                                       // GOMP_barrier
    int (*thread_num)();                                                                     // omp_get_thread_num
    int (*num_threads)();                                                                    // omp_get_num_threads
};

extern OpenMp openmp;

// Calls body(thread, threads) in at most `num_threads` threads, and waits for all. The body must not throw.
template <class Body>
static inline void parallel(int64_t num_threads, const Body& body) {
    if (num_threads <= 1) return body(0, 1);
    auto run = [](void* data) { (*(const Body*)data)(openmp.thread_num(), openmp.num_threads()); };
    openmp.parallel(run, (void*)&body, (unsigned)num_threads, 0);
}

// Waits until all threads of the surrounding `parallel` are here.
static inline void barrier(int64_t threads) {
    if (threads > 1) openmp.barrier();
}

struct Range {
    int64_t begin, end;
};

// One thread's part of `count` items.
static inline Range share(int64_t count, int64_t thread, int64_t threads) {
    return {count * thread / threads, count * (thread + 1) / threads};
}
