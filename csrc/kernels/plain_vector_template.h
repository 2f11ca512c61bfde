/* Operations on the vector of 16 that go through memory, for sets without better ones. Included after
 * v_load, v_store and v_fma. */
static inline vec v_fma_flush(vec x, vec y, vec z) {
    vec r = v_fma(x, y, z);
    float f[SD_LANES], a[SD_LANES], b[SD_LANES], c[SD_LANES];
    v_store(f, r);
    int any = 0;
    for (int i = 0; i < SD_LANES; i++) any |= (fabsf(f[i]) <= FLT_MIN) & (f[i] != 0.0f);
    if (!any) return r;
    v_store(a, x);
    v_store(b, y);
    v_store(c, z);
    for (int i = 0; i < SD_LANES; i++) f[i] = flushed_sum(f[i], a[i], b[i], c[i]);
    return v_load(f);
}
static inline vec v_every_bf16(const uint16_t* p, int step) {
    float f[SD_LANES];
    for (int i = 0; i < SD_LANES; i++) f[i] = wide_flushed(p[step * i]);
    return v_load(f);
}
#define v_even_bf16(p) v_every_bf16(p, 2)
#define v_odd_bf16(p) v_every_bf16((p) + 1, 2)
static inline vec v_wide_int8(const int8_t* p) {
    float f[SD_LANES];
    for (int i = 0; i < SD_LANES; i++) f[i] = (float)p[i];
    return v_load(f);
}
static inline void v_store_bf16(float* to, vec v) {
    v_store(to, v);
    for (int i = 0; i < SD_LANES; i++) to[i] = rounded_bf16(to[i]);
}
static inline void v_to_bf16(uint16_t* to, vec v) {
    float f[SD_LANES];
    v_store(f, v);
    for (int i = 0; i < SD_LANES; i++) to[i] = sd_bf16_from_float(flushed(f[i]));
}
static inline float v_largest_abs(vec v) {
    float f[SD_LANES], largest = 0.0f;
    v_store(f, v);
    for (int i = 0; i < SD_LANES; i++) largest = f[i] > largest ? f[i] : largest;
    return largest;
}
static inline float v_largest(vec v) {
    float f[SD_LANES];
    v_store(f, v);
    float largest = f[0];
    for (int i = 1; i < SD_LANES; i++) largest = f[i] > largest ? f[i] : largest;
    return largest;
}
static inline void v_store_int8(int8_t* to, vec a, vec b, int sums[2]) {
    float f[2 * SD_LANES];
    v_store(f, a);
    v_store(f + SD_LANES, b);
    store_codes(to, f, sums);
}

static inline int d_any_below(dvec x, dvec y) {
    double a[8], b[8];
    int any = 0;
    d_store(a, x);
    d_store(b, y);
    for (int i = 0; i < 8; i++) any |= a[i] < b[i];
    return any;
}

/* 8 64-bit integers. */
typedef struct wvec {
    uint64_t w[8];
} wvec;
#define W_EACH(expression)                             \
    wvec r;                                            \
    for (int i = 0; i < 8; i++) r.w[i] = (expression); \
    return r
static inline wvec w_set1(uint64_t n) { W_EACH(n); }
static inline wvec w_count(uint64_t from) { W_EACH(from + (uint64_t)i); }
static inline wvec w_mul_low(wvec x, wvec y) { W_EACH((x.w[i] & 0xffffffff) * (y.w[i] & 0xffffffff)); }
static inline wvec w_high(wvec x) { W_EACH(x.w[i] >> 32); }
static inline wvec w_xor(wvec x, wvec y) { W_EACH(x.w[i] ^ y.w[i]); }
static inline wvec w_and(wvec x, wvec y) { W_EACH(x.w[i] & y.w[i]); }
static inline dvec w_to_double(wvec x) {
    double wide[8];
    for (int i = 0; i < 8; i++) wide[i] = (double)(x.w[i] & 0xffffffff);
    return d_load(wide);
}
