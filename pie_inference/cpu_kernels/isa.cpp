// Names the instruction set that this library was compiled for.

#include "tiles.h"

extern "C" const char* isa() {
#if defined(WITH_AVX512)
    if (can_use_tiles()) return "AVX-512 with bfloat16 and tiles";
    return WITH_PAIRS ? "AVX-512 with bfloat16" : "AVX-512";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__ARM_NEON)
    return "NEON";
#else
    return "vectors of 128 bits";
#endif
}
