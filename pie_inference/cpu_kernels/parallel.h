// Work shared by threads: cut into chunks, which whoever is free takes.
//
// A call waits for chunks, never for threads: a thread that has not begun, since another process has its core, holds up
// nobody. Threads between two calls look for work for a moment before they sleep.
#pragma once

#include "products.h"

#include <cstdint>

// Calls run(data, chunk) for each of `count` chunks, in at most `threads` threads, and returns when all are done. A call
// inside of another, or beside one of another thread, runs alone. The body must not throw.
void run_chunks(int64_t threads, int64_t count, void (*run)(void* data, int64_t chunk), void* data);

template <class Body>
static inline void parallel(int64_t threads, int64_t count, const Body& body) {
    if (threads <= 1 || count <= 1) {
        for (int64_t chunk = 0; chunk < count; chunk++) body(chunk);
        return;
    }
    run_chunks(threads, count, [](void* data, int64_t chunk) { (*(const Body*)data)(chunk); }, (void*)&body);
}
