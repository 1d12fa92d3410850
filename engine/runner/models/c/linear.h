/* Products with bfloat16 weights (AVX512): a few rows at the speed of memory, many at the speed of the arithmetic.
 * Sums are float; results are rounded once, to nearest even. With AVX512-BF16 pairs are multiplied as they are, else
 * as floats.
 */
#include <stdint.h>

#define WIDTH 3 /* vectors of a panel: 3 x 16 outputs times 8 rows keep 24 sums in registers */
#define PANEL (16 * WIDTH)
#define ROWS 8
#define CHUNK 64 /* rows that one thread takes at a time */

#if defined(BF16) && defined(__AVX512F__)
#include <immintrin.h>
#define HAS_LINEAR

#ifdef __AVX512BF16__
#define SPAN 1
static inline __attribute__((always_inline)) void add_products(
    const uint16_t *x, const uint16_t *panel, __m512 (*sums)[WIDTH], int64_t num, int64_t pairs) {
    const int32_t *asked = (const int32_t *)x;
    for (int64_t p = 0; p < pairs; p++) {
        const uint16_t *at = panel + p * 2 * PANEL;
        __m512bh weights[WIDTH];
        for (int64_t v = 0; v < WIDTH; v++) weights[v] = (__m512bh)_mm512_loadu_si512(at + 32 * v);
        for (int64_t r = 0; r < num; r++) {
            __m512bh pair = (__m512bh)_mm512_set1_epi32(asked[r * pairs + p]);
            for (int64_t v = 0; v < WIDTH; v++) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], weights[v], pair);
        }
    }
}
#else
#define SPAN 256 /* pairs of each row that are widened at once */
static inline __attribute__((always_inline)) void add_products(
    const uint16_t *x, const uint16_t *panel, __m512 (*sums)[WIDTH], int64_t num, int64_t pairs) {
    float asked[ROWS][2 * SPAN];
    const __m512i high = _mm512_set1_epi32(0xffff0000);
    for (int64_t begin = 0; begin < pairs; begin += SPAN) {
        int64_t count = pairs - begin < SPAN ? pairs - begin : SPAN;
        for (int64_t r = 0; r < num; r++)
            for (int64_t i = 0; i < 2 * count; i++) asked[r][i] = up(x[2 * (r * pairs + begin) + i]);
        for (int64_t p = 0; p < count; p++) {
            const uint16_t *at = panel + (begin + p) * 2 * PANEL;
            __m512 weights[WIDTH];
            for (int64_t v = 0; v < WIDTH; v++)
                weights[v] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(at + 32 * v), 16));
            for (int64_t r = 0; r < num; r++)
                for (int64_t v = 0; v < WIDTH; v++)
                    sums[r][v] = _mm512_fmadd_ps(weights[v], _mm512_set1_ps(asked[r][2 * p]), sums[r][v]);
            for (int64_t v = 0; v < WIDTH; v++)
                weights[v] = _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(at + 32 * v), high));
            for (int64_t r = 0; r < num; r++)
                for (int64_t v = 0; v < WIDTH; v++)
                    sums[r][v] = _mm512_fmadd_ps(weights[v], _mm512_set1_ps(asked[r][2 * p + 1]), sums[r][v]);
        }
    }
}
#endif

/* `num` rows of x [.., 2 * pairs] times one panel [pairs, PANEL, 2]; `num` is known where this is inlined. */
static inline __attribute__((always_inline)) void tile(
    const uint16_t *x, const uint16_t *panel, const uint16_t *bias, uint16_t *out, int64_t num, int64_t pairs,
    int64_t outputs, int64_t wide) {
    float totals[ROWS][PANEL];
    __m512 sums[ROWS][WIDTH];
    for (int64_t r = 0; r < num; r++)
        for (int64_t v = 0; v < WIDTH; v++) sums[r][v] = _mm512_setzero_ps();
    add_products(x, panel, sums, num, pairs);
    for (int64_t r = 0; r < num; r++) {
        for (int64_t v = 0; v < WIDTH; v++) _mm512_storeu_ps(totals[r] + 16 * v, sums[r][v]);
        for (int64_t i = 0; i < wide; i++) out[r * outputs + i] = down(totals[r][i] + (bias ? up(bias[i]) : 0));
    }
}

/* out [rows, outputs] = x [rows, 2 * pairs] times the weights, packed as [panels, pairs, PANEL, 2]; bias may be
 * NULL. Panels past `outputs` are filled up with zeros. */
static void linear(const uint16_t *x, const uint16_t *packed, const uint16_t *bias, uint16_t *out, int64_t rows,
            int64_t pairs, int64_t outputs, int threads) {
    int64_t panels = (outputs + PANEL - 1) / PANEL, chunks = (rows + CHUNK - 1) / CHUNK;
    /* Dynamic: a thread that loses its core keeps the others waiting for one piece of work, not for half of it. */
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads)
    for (int64_t n = 0; n < panels; n++)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            int64_t end = chunk * CHUNK + CHUNK < rows ? chunk * CHUNK + CHUNK : rows;
            int64_t wide = outputs - n * PANEL < PANEL ? outputs - n * PANEL : PANEL;
            const uint16_t *panel = packed + n * pairs * 2 * PANEL, *more = bias ? bias + n * PANEL : 0;
            for (int64_t row = chunk * CHUNK, num; row < end; row += num) {
                int64_t left = end - row, tiles = (left + ROWS - 1) / ROWS;
                num = (left + tiles - 1) / tiles; /* 9 rows as 5 and 4: a single row costs as much as three */
                const uint16_t *from = x + row * 2 * pairs;
                uint16_t *to = out + row * outputs + n * PANEL;
#define TILE(NUM) case NUM: tile(from, panel, more, to, NUM, pairs, outputs, wide); break
                switch (num) { TILE(1); TILE(2); TILE(3); TILE(4); TILE(5); TILE(6); TILE(7); TILE(8); }
            }
        }
}
#endif
