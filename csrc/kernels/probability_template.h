/* Sampling kernels, written once over a vector of 8 doubles. Included by floats_template.h.
 *
 * The including file defines, besides the vector of 16 floats,
 *   v_any_from(x, low)       is any of the 16 ≥ low?
 *   dvec                     8 doubles; d_load, d_store, d_set1, d_add, d_sub, d_mul, d_min, d_max,
 *                            d_keep_from(x, low, y) = y where x ≥ low, else +0
 *   d_any_below(x, y)        is any x < y?
 *   d_low(v), d_high(v)      the first and the last 8 floats of a vec, widened
 *   d_compress(out, x, low, high)  store the x in [low, high) contiguously, return how many;
 *                            may write all 8 elements at `out`
 *   wvec                     8 64-bit integers; w_set1, w_count(n) = n, n + 1, …, w_xor, w_and,
 *                            w_mul_low = the product of the low halves, w_high = the high half,
 *                            w_to_double = the low half as a double
 * Element i is added to lane i % 8, and the lanes as a tree. Rows are padded with +0, which changes
 * no lane. So a sum has the same bits on every set. */

#define D_LANES 8

INLINE dvec d_load_some(const double* x, int n) {
    double buffer[D_LANES] = {0};
    memcpy(buffer, x, (size_t)n * sizeof *x);
    return d_load(buffer);
}

INLINE void d_store_some(double* y, dvec v, int n) {
    double buffer[D_LANES];
    d_store(buffer, v);
    memcpy(y, buffer, (size_t)n * sizeof *y);
}

/* for (i = 0, 8, … < n), with n_here = min(8, n − i) */
#define FOR_EACH_8(n, i, n_here)                                     \
    for (int i = 0, n_here = (n) < D_LANES ? (n) : D_LANES; i < (n); \
         i += D_LANES, n_here = (n) - i < D_LANES ? (n) - i : D_LANES)
#define D_LOAD(x, i, n_here) (n_here == D_LANES ? d_load((x) + (i)) : d_load_some((x) + (i), n_here))
#define D_STORE(y, i, n_here, v)                \
    do {                                        \
        if (n_here == D_LANES)                  \
            d_store((y) + (i), v);              \
        else                                    \
            d_store_some((y) + (i), v, n_here); \
    } while (0)

INLINE double d_tree_sum(dvec v) {
    double l[D_LANES];
    d_store(l, v);
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

/* Find the maximum with four vectors in flight, then the first vector that holds it. */
static int32_t NAME(argmax)(int n, const float* x) {
    float best = x[0];
    int i = 0;
    if (n >= 4 * SD_LANES) {
        vec v[4];
        for (int j = 0; j < 4; j++) v[j] = v_load(x + SD_LANES * j);
        for (i = 4 * SD_LANES; i + 4 * SD_LANES <= n; i += 4 * SD_LANES)
            UNROLL for (int j = 0; j < 4; j++) v[j] = v_max(v[j], v_load(x + i + SD_LANES * j));
        float lanes[SD_LANES];
        v_store(lanes, v_max(v_max(v[0], v[1]), v_max(v[2], v[3])));
        for (int l = 0; l < SD_LANES; l++) best = lanes[l] > best ? lanes[l] : best;
    }
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    for (i = 0; i + SD_LANES <= n && !v_any_from(v_load(x + i), best);) i += SD_LANES;
    while (i < n - 1 && x[i] != best) i++;
    return i;
}

static int NAME(all_finite)(int n, const float* x) {
    vec sum = v_set1(0.0f);
    FOR_EACH_16(n, i, m) {
        vec v = LOAD(x, i, m);
        sum = v_add(sum, v_sub(v, v)); /* NaN unless v is finite */
    }
    return tree_sum(sum) == 0.0f;
}

static double NAME(weigh)(int n, const float* x, float shift, float factor, double* weights) {
    dvec sum = d_set1(0.0);
    int i = 0;
    for (; i + SD_LANES <= n; i += SD_LANES) {
        vec e = v_exp(v_mul(v_sub(v_load(x + i), v_set1(shift)), v_set1(factor)));
        dvec low = d_low(e), high = d_high(e);
        d_store(weights + i, low);
        d_store(weights + i + D_LANES, high);
        sum = d_add(d_add(sum, low), high);
    }
    if (i < n) {
        float some[SD_LANES];
        v_store(some, v_exp(v_mul(v_sub(load_some(x + i, n - i), v_set1(shift)), v_set1(factor))));
        vec e = load_some(some, n - i); /* clear the padding, which is not part of the row */
        double wide[SD_LANES];
        d_store(wide, d_low(e));
        d_store(wide + D_LANES, d_high(e));
        memcpy(weights + i, wide, (size_t)(n - i) * sizeof *weights);
        sum = d_add(d_add(sum, d_low(e)), d_high(e));
    }
    return d_tree_sum(sum);
}

static double NAME(mass)(int n, const double* weights) {
    dvec sum = d_set1(0.0);
    FOR_EACH_8(n, i, m) sum = d_add(sum, D_LOAD(weights, i, m));
    return d_tree_sum(sum);
}

static double NAME(residual)(int n, const double* a, double a_factor, double scale, const double* b,
                             double b_factor, double* left, double* overlap) {
    dvec sum = d_set1(0.0), zero = sum, shared = sum;
    dvec fa = d_set1(a_factor), fs = d_set1(scale * a_factor), fb = d_set1(b_factor);
    FOR_EACH_8(n, i, m) {
        dvec x = D_LOAD(a, i, m), y = d_mul(D_LOAD(b, i, m), fb);
        dvec v = d_max(d_sub(d_mul(x, fs), y), zero);
        if (left) D_STORE(left, i, m, v);
        sum = d_add(sum, v);
        shared = d_add(shared, d_min(d_mul(x, fa), y));
    }
    *overlap = d_tree_sum(shared);
    return d_tree_sum(sum);
}

static int NAME(split)(int n, const double* weights, double low, double high, double grid, double* inside,
                       double sums[2]) {
    dvec from_high = d_set1(0.0), from_low = from_high, one = d_set1(1.0), g = d_set1(grid);
    int i = 0, n_inside = 0;
    for (; i + D_LANES <= n; i += D_LANES) {
        dvec w = d_load(weights + i), value = grid > 0.0 ? d_sub(d_add(w, g), g) : one;
        from_high = d_add(from_high, d_keep_from(w, high, value));
        from_low = d_add(from_low, d_keep_from(w, low, value));
        n_inside += d_compress(inside + n_inside, w, low, high);
    }
    sums[0] = d_tree_sum(from_high);
    sums[1] = d_tree_sum(from_low);
    for (; i < n; i++) { /* these sums are exact, so their order does not matter */
        double w = weights[i], value = grid > 0.0 ? (w + grid) - grid : 1.0;
        if (w >= high) sums[0] += value;
        if (w >= low) sums[1] += value;
        if (w >= low && w < high) inside[n_inside++] = w;
    }
    return n_inside;
}

static double NAME(cut)(int n, double* weights, double low) {
    dvec sum = d_set1(0.0);
    FOR_EACH_8(n, i, m) {
        dvec w = D_LOAD(weights, i, m), kept = d_keep_from(w, low, w);
        D_STORE(weights, i, m, kept);
        sum = d_add(sum, kept);
    }
    return d_tree_sum(sum);
}

/* 53 bits of two words as a number in [0, 1): 27 of the first, 26 of the second; exact. */
INLINE dvec w_uniform(wvec first, wvec second) {
    dvec high = w_to_double(w_and(first, w_set1(0xffffffe0)));
    dvec low = w_to_double(w_and(second, w_set1(0xffffffc0)));
    return d_add(d_mul(high, d_set1(0x1p-32)), d_mul(low, d_set1(0x1p-59)));
}

/* Compute eight blocks at a time. The multiplication ignores the high halves of the counters. */
static void NAME(noise)(int n, const uint32_t counter[4], const uint32_t key[2], double* noise) {
    for (int t = 0; t < n; t += 2 * D_LANES) {
        wvec c0 = w_set1(counter[0]), c1 = w_count((uint64_t)counter[1] + (uint64_t)t / 2);
        wvec c2 = w_set1(counter[2]), c3 = w_set1(counter[3]);
        uint32_t k0 = key[0], k1 = key[1];
        for (int round = 0; round < 10; round++) {
            wvec p0 = w_mul_low(c0, w_set1(0xD2511F53)), p1 = w_mul_low(c2, w_set1(0xCD9E8D57));
            c0 = w_xor(w_xor(w_high(p1), c1), w_set1(k0));
            c2 = w_xor(w_xor(w_high(p0), c3), w_set1(k1));
            c1 = p1;
            c3 = p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        double even[D_LANES], odd[D_LANES];
        d_store(even, w_uniform(c0, c1));
        d_store(odd, w_uniform(c2, c3));
        for (int i = 0; i < 2 * D_LANES && t + i < n; i++) noise[t + i] = i % 2 ? odd[i / 2] : even[i / 2];
    }
}

static int NAME(find_below)(int n, const double* x, const double* y, double factor) {
    dvec f = d_set1(factor);
    int i = 0;
    while (i + D_LANES <= n && !d_any_below(d_load(x + i), d_mul(d_load(y + i), f))) i += D_LANES;
    while (i < n && !(x[i] < y[i] * factor)) i++;
    return i;
}
