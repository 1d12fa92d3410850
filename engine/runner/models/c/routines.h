/* What one element type and instruction set offers. Pointers are the addresses of dense tensors; see fused.h and
 * linear.h for shapes. */
#ifndef ROUTINES_H
#define ROUTINES_H
#include <stdint.h>

struct Routines {
    int compiled; /* 0 where the compiler did not know the instructions: nothing else is set then */
    int64_t panel_width; /* outputs in a panel of `linear`; 0 where there is no `linear` */
    void (*add_norm)(const void *x, const void *more, const void *weight, void *sum, void *out, int64_t rows,
                     int64_t width, float eps, int threads);
    void (*rotate)(void *x, const void *cos, const void *sin, int64_t rows, int64_t stride, int64_t heads,
                   int64_t size, int threads);
    void (*silu_mul)(const void *x, void *out, int64_t rows, int64_t width, int threads);
    void (*attend)(const void *query, const void *keys, const void *values, void *out, const int32_t *table,
                   const int64_t *tokens, const int32_t *rows, const int64_t *positions, int64_t count,
                   int64_t query_stride, int64_t columns, int64_t heads, int64_t kv_heads, int64_t size,
                   int64_t block_size, int64_t window, float scale, int threads);
    void (*attend_tiles)(const void *query, const void *keys, const void *values, void *out, const int32_t *table,
                         const int64_t *tokens, const int32_t *rows, const int64_t *positions,
                         const int64_t *counts, int64_t num, int64_t query_stride, int64_t columns, int64_t heads,
                         int64_t kv_heads, int64_t size, int64_t block_size, int64_t window, float scale,
                         int threads);
    void (*linear)(const void *x, const void *packed, const void *bias, void *out, int64_t rows, int64_t pairs,
                   int64_t outputs, int threads);
};

extern const struct Routines baseline_float32, baseline_bfloat16, avx2_float32, avx2_bfloat16, avx512_float32,
    avx512_bfloat16, avx512_bf16_bfloat16;
#endif
