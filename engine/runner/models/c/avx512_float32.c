#define ROUTINES avx512_float32
#define NEEDS __AVX512F__
#ifdef __x86_64__
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#endif
#include "define.h"
