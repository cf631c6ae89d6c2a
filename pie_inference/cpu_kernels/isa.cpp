// Names the instruction set that this library was compiled for.

#include "vectors.h"

extern "C" const char* isa() {
#if defined(WITH_AVX512)
    return WITH_PAIRS ? "AVX-512 with bfloat16" : "AVX-512";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__ARM_NEON)
    return "NEON";
#else
    return "vectors of 128 bits";
#endif
}
