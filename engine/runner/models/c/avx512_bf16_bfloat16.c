#define BF16
#define ROUTINES avx512_bf16_bfloat16
#define NEEDS __AVX512BF16__
#ifdef __x86_64__
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512,avx512bf16")
#endif
#include "define.h"
