#define ROUTINES avx2_float32
#define NEEDS __AVX2__
#ifdef __x86_64__
#pragma GCC target("avx2,fma,f16c")
#endif
#include "define.h"
