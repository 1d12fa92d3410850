/* The lean decoder's work between its matrix products. Included once for each element type and instruction set:
 * bfloat16 where BF16 is defined, else float. Sums are float; results are rounded once, to nearest even.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define MAX_BLOCK 256
#define MAX_SIZE 256
#define TOGETHER 2048 /* elements of all heads that one thread attends for at once */
#define KEYS 64 /* keys of a tile, scored together */
#define WORTH_THREADS 32768
#define LOWEST -1e30f

#ifdef BF16
typedef uint16_t T;
static inline float up(T x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline T down(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (T)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#else
typedef float T;
static inline float up(T x) { return x; }
static inline T down(float value) { return value; }
#endif

/* Where the instructions are missing, these functions would be calls, and the loops around them not use vectors. */
#if defined(__FMA__) || defined(__aarch64__)
#define MUL_ADD(a, b, c) __builtin_fmaf(a, b, c)
#define NEAREST(x) __builtin_rintf(x)
#else
#define MUL_ADD(a, b, c) ((a) * (b) + (c))
#define NEAREST(x) ((float)((int32_t)((x) + 128.5f) - 128)) /* of numbers above -128 */
#endif

/* e to the x, within 2 units in the last place (without fused products within n of them, n being x / ln 2):
 * Cody-Waite reduction and the polynomial of Moshier's Cephes library. A call of expf would keep the loops around it
 * from using vectors. */
static inline float exp_of(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = NEAREST(x * 1.44269504088896341f);
    float r = MUL_ADD(n, -0.693359375f, x);
    r = MUL_ADD(n, 2.12194440e-4f, r);
    float y = 1.9875691500e-4f;
    y = MUL_ADD(y, r, 1.3981999507e-3f);
    y = MUL_ADD(y, r, 8.3334519073e-3f);
    y = MUL_ADD(y, r, 4.1665795894e-2f);
    y = MUL_ADD(y, r, 1.6666665459e-1f);
    y = MUL_ADD(y, r, 5.0000001201e-1f);
    y = MUL_ADD(y, r * r, r) + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return y * power;
}

/* sum = x + more (more may be NULL: then sum is not written), out = weight * sum / rms(sum): all [rows, width]. */
static void add_norm(const T *x, const T *more, const T *weight, T *sum, T *out, int64_t rows, int64_t width, float eps,
              int threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        const T *from = x + row * width;
        T *to = out + row * width;
        if (more) {
            const T *other = more + row * width;
            T *kept = sum + row * width;
            for (int64_t i = 0; i < width; i++) kept[i] = down(up(from[i]) + up(other[i]));
            from = kept;
        }
        float squares = 0;
        for (int64_t i = 0; i < width; i++) squares += up(from[i]) * up(from[i]);
        float scale = 1 / sqrtf(squares / width + eps);
        for (int64_t i = 0; i < width; i++) to[i] = down(up(weight[i]) * up(down(up(from[i]) * scale)));
    }
}

/* Rotary positions in place: x [rows, heads, size] with `stride` elements between rows; cos and sin [rows, size]. */
static void rotate(T *x, const T *cos, const T *sin, int64_t rows, int64_t stride, int64_t heads, int64_t size,
            int threads) {
    int64_t half = size / 2;
#pragma omp parallel for num_threads(threads) if (rows * heads * size > WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        const T *c = cos + row * size, *s = sin + row * size;
        for (int64_t head = 0; head < heads; head++) {
            T *low = x + row * stride + head * size, *high = low + half;
            for (int64_t i = 0; i < half; i++) {
                float a = up(low[i]), b = up(high[i]);
                low[i] = down(a * up(c[i]) + b * up(s[i]));
                high[i] = down(b * up(c[half + i]) + a * up(s[half + i]));
            }
        }
    }
}

/* out = silu(gate) * up, with gate and up side by side in x [rows, 2 * width]. */
static void silu_mul(const T *x, T *out, int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        const T *gate = x + row * 2 * width, *more = gate + width;
        T *to = out + row * width;
        for (int64_t i = 0; i < width; i++) {
            float g = up(gate[i]);
            to[i] = down(up(down(g / (1 + exp_of(-g)))) * up(more[i]));
        }
    }
}

/* LANES floats fill a register, and the STEP x STEP sums of a tile leave some free. */
#if defined(__AVX512F__)
#define LANES 16
#define STEP 4
#elif defined(__AVX2__)
#define LANES 8
#define STEP 2
#elif defined(__aarch64__)
#define LANES 4
#define STEP 4
#else
#define LANES 4
#define STEP 2
#endif
#define LINE ((int64_t)(64 / sizeof(T)))
typedef float V __attribute__((vector_size(4 * LANES)));
typedef float Four __attribute__((vector_size(16)));

static inline V widen(const T *from) {
    V out;
#ifdef BF16
    typedef uint16_t Narrow __attribute__((vector_size(2 * LANES)));
    typedef uint32_t Wide __attribute__((vector_size(4 * LANES)));
    Narrow narrow;
    memcpy(&narrow, from, sizeof narrow);
    Wide wide = __builtin_convertvector(narrow, Wide) << 16;
    memcpy(&out, &wide, sizeof out);
#else
    memcpy(&out, from, sizeof out);
#endif
    return out;
}

/* `size` elements as vectors, the last one filled up with zeros. */
static inline void load(const T *from, V *to, int64_t size) {
    int64_t whole = size / LANES, rest = size % LANES;
    for (int64_t i = 0; i < whole; i++) to[i] = widen(from + i * LANES);
    if (rest) {
        T last[LANES] = {0};
        memcpy(last, from + whole * LANES, rest * sizeof(T));
        to[whole] = widen(last);
    }
}

/* Ask for a head's row ahead of its use, into the second cache, which waits for more lines at once than the first:
 * blocks lie too far apart for the processor to guess. */
static inline void ask_for(const T *from, int64_t size) {
    for (int64_t i = 0; i < size; i += LINE) __builtin_prefetch(from + i, 0, 2);
}

static inline float sum_of(V v) {
    Four four[LANES / 4];
    memcpy(four, &v, sizeof v);
    for (int64_t i = 1; i < LANES / 4; i++) four[0] += four[i];
    Four q = four[0];
    return (q[0] + q[2]) + (q[1] + q[3]);
}

#if defined(BF16) && defined(__AVX512BF16__)
#include <immintrin.h>
#define PAIRS(size) ((size) % 32 == 0)

/* The sum of each of 16 vectors, one per lane. */
static inline __m512 sums_of(const __m512 *v) {
    __m512 pairs[8], fours[4], eights[2];
    for (int64_t i = 0; i < 8; i++)
        pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int64_t i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
        fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
#define LANES_OF(a, b) (_mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd))
    for (int64_t i = 0; i < 2; i++) eights[i] = LANES_OF(fours[2 * i], fours[2 * i + 1]);
    return LANES_OF(eights[0], eights[1]);
}

/* As `score_keys`, by pairs of bfloat16 and for 16 keys at a time; `query` is as it came. */
static inline __attribute__((always_inline)) void score_pairs(
    const T *query, const T *key, int64_t ahead, int64_t stride, int64_t count, int64_t shared, int64_t size,
    float scale, float (*scores)[MAX_BLOCK]) {
    for (int64_t g = 0; g < shared; g++) {
        __m512bh asked[MAX_SIZE / 32];
        for (int64_t i = 0; i < size / 32; i++) asked[i] = (__m512bh)_mm512_loadu_si512(query + g * size + 32 * i);
        for (int64_t j = 0; j < count; j += LANES) {
            __m512 dots[LANES];
#pragma GCC unroll 16
            for (int64_t k = 0; k < LANES; k++) {
                const T *from = key + (j + k < count ? j + k : count - 1) * stride;
                dots[k] = _mm512_setzero_ps();
                for (int64_t i = 0; i < size / 32; i++)
                    dots[k] = _mm512_dpbf16_ps(dots[k], asked[i], (__m512bh)_mm512_loadu_si512(from + 32 * i));
                if (g == 0) ask_for(from + ahead, size);
            }
            _mm512_storeu_ps(scores[g] + j, sums_of(dots) * _mm512_set1_ps(scale));
        }
    }
}
#else
#define PAIRS(size) 0
#define score_pairs(...)
#endif

/* scores[g][j] of `count` keys for the `shared` query heads that read them, `asked` scaled and widened; the keys
 * `ahead` are asked for meanwhile. */
static inline __attribute__((always_inline)) void score_keys(
    const V *asked, const T *key, int64_t ahead, int64_t stride, int64_t count, int64_t shared, int64_t size,
    float (*scores)[MAX_BLOCK]) {
    const int64_t vectors = (size + LANES - 1) / LANES;
    V row[vectors];
    for (int64_t j = 0; j < count; j++) {
        load(key + j * stride, row, size);
        for (int64_t g = 0; g < shared; g++) {
            V dot = asked[g * vectors] * row[0];
            for (int64_t i = 1; i < vectors; i++) dot += asked[g * vectors + i] * row[i];
            scores[g][j] = sum_of(dot);
        }
        ask_for(key + ahead + j * stride, size);
    }
}

/* One token, `num` key heads and the `shared` query heads that read each: softmax over blocks, one after the other
 * (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). */
static inline __attribute__((always_inline)) void attend_one(
    const T *query, const T *keys, const T *values, const int32_t *table, int64_t first, int64_t length,
    int64_t block_size, int64_t stride, int64_t num, int64_t shared, int64_t size, float scale, T *out) {
    const int64_t vectors = (size + LANES - 1) / LANES, heads = num * shared;
    V asked[heads][vectors], sums[heads][vectors], row[vectors];
    float scores[shared][MAX_BLOCK], top[heads], total[heads];
    for (int64_t g = 0; g < heads; g++) {
        load(query + g * size, asked[g], size);
        for (int64_t i = 0; i < vectors; i++) {
            asked[g][i] *= scale;
            sums[g][i] = (V){0};
        }
        top[g] = LOWEST;
        total[g] = 0;
    }
    for (int64_t begin = first; begin < length;) {
        int64_t offset = begin % block_size, count = block_size - offset;
        if (count > length - begin) count = length - begin;
        int64_t slot = (int64_t)table[begin / block_size] * block_size + offset, next = slot;
        if (begin + count < length) next = (int64_t)table[(begin + count) / block_size] * block_size;
        int64_t ahead = (next - slot) * stride;
        for (int64_t h = 0; h < num; h++) {
            const T *key = keys + slot * stride + h * size, *value = values + slot * stride + h * size;
            if (PAIRS(size))
                score_pairs(query + h * shared * size, key, ahead, stride, count, shared, size, scale, scores);
            else
                score_keys(asked[h * shared], key, ahead, stride, count, shared, size, scores);
            for (int64_t g = 0; g < shared; g++) {
                int64_t head = h * shared + g;
                float high = top[head], part = 0;
                for (int64_t j = 0; j < count; j++) high = scores[g][j] > high ? scores[g][j] : high;
                float fade = exp_of(top[head] - high);
                for (int64_t j = 0; j < count; j++) {
                    scores[g][j] = exp_of(scores[g][j] - high);
                    part += scores[g][j];
                }
                top[head] = high;
                total[head] = total[head] * fade + part;
                for (int64_t i = 0; i < vectors; i++) sums[head][i] *= fade;
            }
            for (int64_t j = 0; j < count; j++) {
                load(value + j * stride, row, size);
                for (int64_t g = 0; g < shared; g++)
                    for (int64_t i = 0; i < vectors; i++) sums[h * shared + g][i] += scores[g][j] * row[i];
                ask_for(value + ahead + j * stride, size);
            }
        }
        begin += count;
    }
    for (int64_t g = 0; g < heads; g++)
        for (int64_t i = 0; i < size; i++) out[g * size + i] = down(sums[g][i / LANES][i % LANES] / total[g]);
}

/* Paged attention of `count` tokens, named by `tokens` with their `rows` in the block table [.., columns].
 * query [.., heads, size] with `query_stride` elements between tokens; caches [blocks, block_size, kv_heads, size];
 * positions [..]; out [.., heads, size]. A token sees the last `window` tokens up to itself, all if window is 0. */
static void attend(const T *query, const T *keys, const T *values, T *out, const int32_t *table, const int64_t *tokens,
            const int32_t *rows, const int64_t *positions, int64_t count, int64_t query_stride, int64_t columns,
            int64_t heads, int64_t kv_heads, int64_t size, int64_t block_size, int64_t window, float scale,
            int threads) {
    int64_t shared = heads / kv_heads, stride = kv_heads * size;
    /* All heads of a token together read its blocks from end to end; a few tokens are shared out by head, and many
     * heads' sums would not stay in the first cache. */
    int64_t num = count < 2 * threads || heads * size > TOGETHER ? 1 : kv_heads;
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads)
    for (int64_t n = 0; n < count; n++)
        for (int64_t head = 0; head < kv_heads; head += num) {
            int64_t token = tokens[n], length = positions[token] + 1;
            int64_t first = window && length > window ? length - window : 0;
            const T *q = query + token * query_stride + head * shared * size;
            const T *k = keys + head * size, *v = values + head * size;
            const int32_t *blocks = table + rows[n] * columns;
            T *o = out + (token * heads + head * shared) * size;
#define ATTEND(SHARED, SIZE) \
    attend_one(q, k, v, blocks, first, length, block_size, stride, num, SHARED, SIZE, scale, o)
            if (size == 64 && shared == 3) ATTEND(3, 64);
            else if (size == 64) ATTEND(shared, 64);
            else if (size == 128 && shared == 4) ATTEND(4, 128);
            else if (size == 128) ATTEND(shared, 128);
            else ATTEND(shared, size);
        }
}

/* scores[r][key] of STEP query rows against KEYS transposed keys. */
static inline void score(const float *asked, const V *turned, V *scores, int64_t size) {
    for (int64_t part = 0; part < KEYS / LANES; part += STEP) {
        V sums[STEP][STEP] = {0};
        for (int64_t d = 0; d < size; d++)
            for (int64_t r = 0; r < STEP; r++)
                for (int64_t k = 0; k < STEP; k++)
                    sums[r][k] += asked[r * size + d] * turned[d * (KEYS / LANES) + part + k];
        for (int64_t r = 0; r < STEP; r++)
            for (int64_t k = 0; k < STEP; k++) scores[r * (KEYS / LANES) + part + k] = sums[r][k];
    }
}

/* sums[r] += weights[r] * values for STEP query rows over KEYS keys. */
static inline void gather(const float *weights, const V *values, V *sums, int64_t vectors) {
    for (int64_t part = 0; part < vectors; part += STEP) {
        int64_t wide = vectors - part < STEP ? vectors - part : STEP;
        V kept[STEP][STEP] = {0};
        if (wide == STEP)
            for (int64_t j = 0; j < KEYS; j++)
                for (int64_t r = 0; r < STEP; r++)
                    for (int64_t k = 0; k < STEP; k++)
                        kept[r][k] += weights[r * KEYS + j] * values[j * vectors + part + k];
        else
            for (int64_t j = 0; j < KEYS; j++)
                for (int64_t r = 0; r < STEP; r++)
                    for (int64_t k = 0; k < wide; k++)
                        kept[r][k] += weights[r * KEYS + j] * values[j * vectors + part + k];
        for (int64_t r = 0; r < STEP; r++)
            for (int64_t k = 0; k < wide; k++) sums[r * vectors + part + k] += kept[r][k];
    }
}

/* Softmax weights of the keys `low` to `high` of a row in place, all others 0; the row's sums fade accordingly. */
static inline void weigh(float *scores, int64_t low, int64_t high, float *top, float *total, V *sums,
                         int64_t vectors) {
    float best = *top, part = 0;
    for (int64_t j = low; j < high; j++) best = scores[j] > best ? scores[j] : best;
    float fade = exp_of(*top - best);
    for (int64_t j = 0; j < KEYS; j++) {
        float weight = exp_of(scores[j] - best);
        scores[j] = j >= low && j < high ? weight : 0;
        part += scores[j];
    }
    *top = best;
    *total = *total * fade + part;
    for (int64_t i = 0; i < vectors; i++) sums[i] *= fade;
}

/* A tile of `count` neighbouring tokens of one row, from `query` on, and the heads that share a key head. */
static void attend_tile(const T *query, const T *keys, const T *values, const int32_t *table, int64_t position,
                        int64_t count, int64_t query_stride, int64_t block_size, int64_t stride, int64_t shared,
                        int64_t size, int64_t window, float scale, T *out, int64_t out_stride) {
    const int64_t vectors = (size + LANES - 1) / LANES, full = vectors * LANES;
    const int64_t rows = count * shared, padded = (rows + STEP - 1) / STEP * STEP;
    V asked[padded][vectors], sums[padded][vectors], tiles[padded][KEYS / LANES];
    V turned[full * (KEYS / LANES)], held[KEYS][vectors];
    float top[padded], total[padded];
    memset(asked, 0, sizeof asked);
    memset(sums, 0, sizeof sums);
    memset(turned, 0, sizeof turned);
    memset(held, 0, sizeof held);
    for (int64_t r = 0; r < padded; r++) {
        top[r] = LOWEST;
        total[r] = 0;
        if (r >= rows) continue;
        load(query + r / shared * query_stride + r % shared * size, asked[r], size);
        for (int64_t i = 0; i < vectors; i++) asked[r][i] *= scale;
    }
    int64_t end = position + count, first = window && position >= window ? position - window + 1 : 0;
    for (int64_t begin = first; begin < end; begin += KEYS) {
        int64_t num = end - begin < KEYS ? end - begin : KEYS;
        for (int64_t j = 0; j < num; j++) {
            int64_t place = begin + j, slot = (int64_t)table[place / block_size] * block_size + place % block_size;
            V row[vectors];
            load(keys + slot * stride, row, size);
            for (int64_t d = 0; d < full; d++) ((float *)turned)[d * KEYS + j] = ((float *)row)[d];
            load(values + slot * stride, held[j], size);
        }
        for (int64_t r = 0; r < padded; r += STEP) {
            score((float *)asked[r], turned, tiles[r], full);
            for (int64_t i = r; i < r + STEP; i++) {
                int64_t at = position + i / shared, high = at + 1 - begin, low = window ? high - window : 0;
                if (high > num) high = num;
                if (low < 0) low = 0;
                if (i < rows && low < high)
                    weigh((float *)tiles[i], low, high, &top[i], &total[i], sums[i], vectors);
                else
                    memset(tiles[i], 0, sizeof tiles[i]);
            }
            gather((float *)tiles[r], held[0], sums[r], vectors);
        }
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < size; d++)
            out[r / shared * out_stride + r % shared * size + d] = down(((float *)sums[r])[d] / total[r]);
}

/* Paged attention of `num` tiles: `counts` neighbouring tokens each from `tokens` on, of `rows` in the block table;
 * the rest as for `attend`. */
static void attend_tiles(const T *query, const T *keys, const T *values, T *out, const int32_t *table,
                  const int64_t *tokens, const int32_t *rows, const int64_t *positions, const int64_t *counts,
                  int64_t num, int64_t query_stride, int64_t columns, int64_t heads, int64_t kv_heads, int64_t size,
                  int64_t block_size, int64_t window, float scale, int threads) {
    int64_t shared = heads / kv_heads, stride = kv_heads * size;
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads)
    for (int64_t n = 0; n < num; n++)
        for (int64_t head = 0; head < kv_heads; head++) {
            int64_t token = tokens[n], place = head * shared * size;
            attend_tile(query + token * query_stride + place, keys + head * size, values + head * size,
                        table + rows[n] * columns, positions[token], counts[n], query_stride, block_size, stride,
                        shared, size, window, scale, out + token * heads * size + place, heads * size);
        }
}
