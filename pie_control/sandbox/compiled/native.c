/* Functions that need no Python, and do not wait for its lock. */

#include <sys/random.h>
#include <time.h>

#include "values.h"

/* Ticks of an epoch, without Python: its lock would be taken and given back at each, which stops whoever has it. */
void tick(void (*increment)(void *), void *engine, uint64_t nanoseconds, uint64_t count) {
    struct timespec pause = {(time_t)(nanoseconds / 1000000000u), (long)(nanoseconds % 1000000000u)};
    while (count--) {
        nanosleep(&pause, NULL);
        increment(engine);
    }
}

void *call_function(void *env, void *context, const void *type, const Value *arguments, size_t count, Value *results,
                    size_t result_count);

/* As time.monotonic_ns. */
void *monotonic_now(void *env, void *context, const void *type, const Value *arguments, size_t count, Value *results,
                    size_t result_count) {
    (void)env, (void)context, (void)type, (void)arguments, (void)count, (void)result_count;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    results->of.u64 = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    results->kind = U64;
    return NULL;
}

/* At most `most[0]` bytes; a call for more is Python's to refuse. */
void *random_bytes(void *env, void *context, const void *type, const Value *arguments, size_t count, Value *results,
                   size_t result_count) {
    const Function *function = env;
    uint64_t size = arguments->of.u64;
    if (size > function->most[0])
        return call_function(env, context, type, arguments, count, results, result_count);
    api.list_new(&results->of.many, size);
    results->kind = LIST;
    Value *items = results->of.many.data;
    for (uint64_t done = 0; done < size;) {
        uint8_t bytes[256];
        uint64_t part = size - done < sizeof bytes ? size - done : sizeof bytes;
        if (getrandom(bytes, part, 0) != (ssize_t)part) return api.error_new("there are no random numbers");
        for (uint64_t i = 0; i < part; i++) {
            items[done + i].of.u8 = bytes[i];
            items[done + i].kind = U8;
        }
        done += part;
    }
    return NULL;
}
