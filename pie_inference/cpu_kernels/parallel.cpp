#include "parallel.h"

OpenMp openmp;

extern "C" void use_openmp(const OpenMp* runtime) {
    openmp = *runtime;
}
