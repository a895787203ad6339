/* Decoder blocks for a few rows (1 … 8) on a CPU, fp32. Compiled on the user's machine by native.py.
 *
 * Why own code: with few rows a forward pass only streams weights from memory. A library's gemm reads them at a third
 * to a half of the memory's speed; dot products over plain row-major weights with a software prefetch one tile ahead
 * reach it, and up to 8 rows cost hardly more than one.
 *
 * Exact: the value of a row never depends on how many rows are computed together (each dot product and each softmax
 * sums in one fixed order), so that speculative and plain decoding see bit-identical logits.
 *
 * Shape letters: R rows, H hidden, N x K a weight [out, in], L live length of the cache.
 */
#include <math.h>
#include <string.h>

#define MAX_ROWS 8
#define UNROLL _Pragma("GCC unroll 8")

typedef float v8 __attribute__((vector_size(32)));
typedef float v8u __attribute__((vector_size(32), aligned(4))); /* the same, at any address */
typedef int i8 __attribute__((vector_size(32)));

static inline v8 load(const float *p) { return *(const v8u *)p; }
static inline void store(float *p, v8 v) { *(v8u *)p = v; }
static inline float sum8(v8 v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

static inline v8 choose(i8 mask, v8 yes, v8 no) { return (v8)((mask & (i8)yes) | (~mask & (i8)no)); }

/* exp to 2 ulp: 2^n · p(r), Cephes' polynomial. */
static inline v8 exp8(v8 x) {
    const v8 low = (v8){0} - 87.0f, high = (v8){0} + 88.0f;
    const v8 half = (v8){0} + 0.5f;
    x = choose(x < low, low, x);
    x = choose(x > high, high, x);
    v8 scaled = x * 1.44269504088896341f;
    scaled += choose(scaled < 0.0f, -half, half);
    i8 n = __builtin_convertvector(scaled, i8); /* truncates: rounded to nearest by the half added above */
    v8 whole = __builtin_convertvector(n, v8);
    v8 r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    v8 p = (v8){0} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (v8)((n + 127) << 23);
}

/* NB weight rows against RB input rows: each weight is read once, and the next tile is on its way meanwhile. */
static inline __attribute__((always_inline)) void tile(
    const int NB, const int RB, const float *w, const float *x, float *y, long stride, long k, int add) {
    v8 acc[8][MAX_ROWS];
    UNROLL for (int i = 0; i < NB; i++) UNROLL for (int r = 0; r < RB; r++) acc[i][r] = (v8){0};
    long whole = k & ~15L;
    for (long j = 0; j < whole; j += 16) {
        UNROLL for (int i = 0; i < NB; i++) __builtin_prefetch(w + (NB + i) * k + j, 0, 3);
        UNROLL for (long h = j; h < j + 16; h += 8) {
            v8 xv[MAX_ROWS];
            UNROLL for (int r = 0; r < RB; r++) xv[r] = load(x + r * k + h);
            UNROLL for (int i = 0; i < NB; i++) {
                v8 wv = load(w + i * k + h);
                UNROLL for (int r = 0; r < RB; r++) acc[i][r] += wv * xv[r];
            }
        }
    }
    UNROLL for (int r = 0; r < RB; r++) UNROLL for (int i = 0; i < NB; i++) {
        float sum = sum8(acc[i][r]);
        for (long j = whole; j < k; j++) sum += w[i * k + j] * x[r * k + j];
        y[r * stride + i] = add ? y[r * stride + i] + sum : sum;
    }
}

#define TILES(NB, RB)                                                                            \
    for (; i + NB <= n; i += NB) tile(NB, RB, w + i * k, x, y + i, stride, k, add);              \
    for (; i < n; i++) tile(1, RB, w + i * k, x, y + i, stride, k, add);                         \
    break

/* y[R, …] (+)= x[R, K] · w[N, K]ᵀ by one thread; rows of y are `stride` floats apart. */
static __attribute__((noinline)) void linear(const float *w, const float *x, float *y, long n, long stride, long k, int rows, int add) {
    long i = 0;
    switch (rows) { /* tile heights by measurement on 16 vector registers */
        case 1: TILES(4, 1);
        case 2: TILES(4, 2);
        case 3: TILES(4, 3);
        case 4: TILES(2, 4);
        case 5: TILES(2, 5);
        case 6: TILES(2, 6);
        case 7: TILES(2, 7);
        case 8: TILES(2, 8);
    }
}

/* Weight rows a thread takes at a time: a thread that was held up takes fewer. */
static long chunk_of(long n, int threads) {
    long chunk = (n / (threads * 8) + 7) & ~7L;
    return chunk < 8 ? 8 : chunk > 256 ? 256 : chunk;
}

/* The same by all threads of a parallel region; no barrier at the end. */
static void linear_shared(const float *w, const float *x, float *y, long n, long k, int rows, int add, int threads) {
    const long chunk = chunk_of(n, threads);
#pragma omp for schedule(dynamic, 1) nowait
    for (long begin = 0; begin < n; begin += chunk)
        linear(w + begin * k, x, y + begin, begin + chunk < n ? chunk : n - begin, n, k, rows, add);
}

static void rms_norm_row(const float *x, const float *weight, float *y, long hidden, float eps) {
    float sum = 0;
    v8 acc = {0};
    long j = 0;
    for (; j + 8 <= hidden; j += 8) acc += load(x + j) * load(x + j);
    for (; j < hidden; j++) sum += x[j] * x[j];
    float scale = 1.0f / sqrtf((sum8(acc) + sum) / hidden + eps);
    for (j = 0; j < hidden; j++) y[j] = x[j] * scale * weight[j];
}

typedef struct {
    long hidden, in_width, heads, kv_heads, head_dim, rotary_dim, intermediate;
    long capacity; /* positions that the cache holds */
    long window;   /* positions that a row sees, its own included; 0 = all */
    double eps;
} Shape;

typedef struct { /* null = the block has none */
    const float *input_norm; /* [H]; null: the caller gives the attention's input */
    const float *qkv, *qkv_bias, *q_norm, *k_norm, *o, *post_norm, *gate_up, *down;
    float *keys, *values; /* [kv_heads, capacity, head_dim] */
} Layer;

typedef struct {
    float *normed;     /* [threads, MAX_ROWS, widest]: each thread norms for itself, which is cheaper than waiting */
    float *qkv, *attention, *gate_up, *mlp; /* MAX_ROWS rows each */
    float *scores;          /* [threads, capacity + 8] */
    const float *cos, *sin; /* [capacity, rotary_dim / 2] */
    long normed_stride;     /* floats per thread in `normed` */
} Scratch;

/* Rows of a tree: row r sees the cache's slots 0 … base - 1 and then those of its path, itself last; it stands at position
 * base + depth[r] - 1. The order of its sums is that of the same text without a tree. */
typedef struct {
    long base, stride;  /* stride: longs per row in `paths` */
    const long *depth;  /* [R] length of each row's path */
    const long *paths;  /* [R, stride] slots */
} Tree;

/* Bias, head norm and rotation of one q or k head, in place. */
static void finish_head(const Shape *s, float *head, const float *bias, const float *norm, const float *cos,
                        const float *sin) {
    if (bias) for (long d = 0; d < s->head_dim; d++) head[d] += bias[d];
    if (norm) rms_norm_row(head, norm, head, s->head_dim, (float)s->eps);
    long half = s->rotary_dim / 2;
    for (long d = 0; d < half; d++) {
        float a = head[d], b = head[d + half];
        head[d] = a * cos[d] - b * sin[d];
        head[d + half] = b * cos[d] + a * sin[d];
    }
}

/* out[8 N] = sum over t of scores[t] · values[t], over `total`; the sums stay in registers. Values lie one after the
 * other from `begin` on, and those from `joint` on in the slots of `path`. */
static inline __attribute__((always_inline)) void weigh(const int N, const float *scores, const float *values, float *out,
                                                        long begin, long joint, long end, const long *path, long dim,
                                                        float total) {
    v8 acc[8];
    UNROLL for (int i = 0; i < N; i++) acc[i] = (v8){0};
    for (long t = begin; t < joint; t++)
        UNROLL for (int i = 0; i < N; i++) acc[i] += scores[t - begin] * load(values + t * dim + 8 * i);
    for (long t = joint; t < end; t++)
        UNROLL for (int i = 0; i < N; i++) acc[i] += scores[t - begin] * load(values + path[t] * dim + 8 * i);
    UNROLL for (int i = 0; i < N; i++) store(out + 8 * i, acc[i] / total);
}

static inline float score(const float *q, const float *key, long dim, float scale) {
    v8 acc = {0};
    for (long d = 0; d < dim; d += 8) acc += load(q + d) * load(key + d);
    return sum8(acc) * scale;
}

/* Softmax attention of one query head over positions begin … end - 1, which lie in the slots of the same numbers;
 * position t ≥ joint of a tree's path lies in slot path[t]. */
static void attend_head(const Shape *s, const float *q, const float *keys, const float *values, float *out, long begin,
                        long joint, long end, const long *path, float *scores) {
    const long dim = s->head_dim, length = end - begin, padded = (length + 7) & ~7L;
    const float scale = 1.0f / sqrtf((float)dim);
    float highest = -INFINITY;
    for (long t = begin; t < joint; t++) scores[t - begin] = score(q, keys + t * dim, dim, scale);
    for (long t = joint; t < end; t++) scores[t - begin] = score(q, keys + path[t] * dim, dim, scale);
    for (long t = 0; t < length; t++) highest = scores[t] > highest ? scores[t] : highest;
    for (long t = length; t < padded; t++) scores[t] = -INFINITY;
    v8 acc = {0};
    for (long t = 0; t < padded; t += 8) {
        v8 e = exp8(load(scores + t) - highest);
        for (int lane = 0; lane < 8; lane++) if (t + lane >= length) e[lane] = 0;
        store(scores + t, e);
        acc += e;
    }
    float total = sum8(acc);
    long d = 0;
    for (; d + 64 <= dim; d += 64) weigh(8, scores, values + d, out + d, begin, joint, end, path, dim, total);
    for (; d < dim; d += 8) weigh(1, scores, values + d, out + d, begin, joint, end, path, dim, total);
}

/* q, k, v: one head at a time, finished while it is warm; k and v go to the cache. */
static void project_qkv(const Shape *s, const Layer *l, const Scratch *w, const float *x, int rows, long start,
                        const Tree *tree) {
    const long heads = s->heads, kv = s->kv_heads, dim = s->head_dim, width = (heads + 2 * kv) * dim;
    const long half = s->rotary_dim / 2;
#pragma omp for schedule(dynamic, 1)
    for (long h = 0; h < heads + 2 * kv; h++) {
        linear(l->qkv + h * dim * s->in_width, x, w->qkv + h * dim, dim, width, s->in_width, rows, 0);
        const float *bias = l->qkv_bias ? l->qkv_bias + h * dim : 0;
        for (int r = 0; r < rows; r++) {
            long slot = start + r, position = tree ? tree->base + tree->depth[r] - 1 : slot;
            float *head = w->qkv + r * width + h * dim;
            const float *cos = w->cos + position * half, *sin = w->sin + position * half;
            if (h < heads) {
                finish_head(s, head, bias, l->q_norm, cos, sin);
            } else if (h < heads + kv) {
                finish_head(s, head, bias, l->k_norm, cos, sin);
                memcpy(l->keys + ((h - heads) * s->capacity + slot) * dim, head, dim * sizeof(float));
            } else {
                if (bias) for (long d = 0; d < dim; d++) head[d] += bias[d];
                memcpy(l->values + ((h - heads - kv) * s->capacity + slot) * dim, head, dim * sizeof(float));
            }
        }
    }
}

static void attend(const Shape *s, const Layer *l, const Scratch *w, int rows, long start, const Tree *tree, int thread) {
    const long heads = s->heads, dim = s->head_dim, width = (heads + 2 * s->kv_heads) * dim;
#pragma omp for schedule(dynamic, 1)
    for (long item = 0; item < rows * heads; item++) {
        long h = item / rows, r = item % rows, kv_head = h / (heads / s->kv_heads);
        long end = tree ? tree->base + tree->depth[r] : start + r + 1;
        long begin = s->window && end > s->window ? end - s->window : 0;
        long joint = !tree ? end : begin > tree->base ? begin : tree->base;
        const long *path = tree ? tree->paths + r * tree->stride - tree->base : 0;
        const float *keys = l->keys + kv_head * s->capacity * dim, *values = l->values + kv_head * s->capacity * dim;
        attend_head(s, w->qkv + r * width + h * dim, keys, values, w->attention + (r * heads + h) * dim, begin, joint,
                    end, path, w->scores + thread * (s->capacity + 8));
    }
}

/* silu(gate) · up for a slice of the intermediate width. */
static void gated_mlp(const Shape *s, const Layer *l, const Scratch *w, const float *x, int rows, int threads) {
    const long wide = s->intermediate, k = s->hidden, chunk = chunk_of(wide, threads);
#pragma omp for schedule(dynamic, 1)
    for (long begin = 0; begin < wide; begin += chunk) {
        long n = begin + chunk < wide ? chunk : wide - begin;
        float *gate = w->gate_up + begin, *up = w->gate_up + wide + begin;
        linear(l->gate_up + begin * k, x, gate, n, 2 * wide, k, rows, 0);
        linear(l->gate_up + (wide + begin) * k, x, up, n, 2 * wide, k, rows, 0);
        for (int r = 0; r < rows; r++)
            for (long j = 0; j < n; j += 8) {
                v8 g = load(gate + r * 2 * wide + j), u = load(up + r * 2 * wide + j);
                store(w->mlp + r * wide + begin + j, g / (1.0f + exp8(-g)) * u);
            }
    }
}

static void norm_rows(const float *x, const float *weight, float *y, long hidden, double eps, int rows) {
    for (int r = 0; r < rows; r++) rms_norm_row(x + r * hidden, weight, y + r * hidden, hidden, (float)eps);
}

extern int omp_get_thread_num(void);

/* Blocks over R rows at positions start … start + R - 1; residual[R, H] is read and updated. The threads meet five
 * times a block. `input` [R, in_width] is for a first block without an input norm. In a tree (else null) `start` is the
 * first row's slot. */
void eyas_blocks(const Shape *const *shapes, const Layer *const *layers, int num, const Scratch *w, const float *input,
                 float *residual, int rows, long start, const Tree *tree, int threads) {
#pragma omp parallel num_threads(threads)
    {
        const int thread = omp_get_thread_num();
        float *normed = w->normed + thread * w->normed_stride;
        for (int i = 0; i < num; i++) {
            const Shape *s = shapes[i];
            const Layer *l = layers[i];
            const float *x = input;
            if (l->input_norm) {
                norm_rows(residual, l->input_norm, normed, s->hidden, s->eps, rows);
                x = normed;
            }
            project_qkv(s, l, w, x, rows, start, tree);
            attend(s, l, w, rows, start, tree, thread);
            linear_shared(l->o, w->attention, residual, s->hidden, s->heads * s->head_dim, rows, 1, threads);
#pragma omp barrier
            norm_rows(residual, l->post_norm, normed, s->hidden, s->eps, rows);
            gated_mlp(s, l, w, normed, rows, threads);
            linear_shared(l->down, w->mlp, residual, s->hidden, s->intermediate, rows, 1, threads);
#pragma omp barrier
        }
    }
}

/* y[R, N] = x[R, K] · w[N, K]ᵀ. */
void eyas_linear(const float *w, const float *x, float *y, long n, long k, int rows, int threads) {
#pragma omp parallel num_threads(threads)
    linear_shared(w, x, y, n, k, rows, 0, threads);
}

