/* Kernels on floats: products with panels of f32 and bf16, norms, activations, softmax and sampling.
 *
 * Included after the vector's operations. */
#include "base_template.h"
#include "products_template.h"

#include "float_products_template.h"
#include "rounded_template.h"

#include "prepare_template.h"
#include "tiles_template.h"

/* -------------------------------------------------------------------------------------- norms */

static void NAME(rms_norm)(int n, const float* x, const float* weight, float eps, float* y) {
    vec sum = v_set1(0.0f);
    FOR_EACH_16(n, i, m) {
        vec v = LOAD(x, i, m);
        sum = v_fma(v, v, sum);
    }
    vec factor = v_set1(1.0f / sqrtf(tree_sum(sum) / (float)n + eps));
    FOR_EACH_16(n, i, m) STORE(y, i, m, v_mul(v_mul(LOAD(x, i, m), factor), LOAD(weight, i, m)));
}

static void NAME(layer_norm)(int n, const float* x, const float* weight, const float* bias, float eps,
                             float* y) {
    vec sum = v_set1(0.0f);
    FOR_EACH_16(n, i, m) sum = v_add(sum, LOAD(x, i, m));
    float mean = tree_sum(sum) / (float)n;
    sum = v_set1(0.0f);
    FOR_EACH_16(n, i, m) {
        vec v = v_sub(LOAD(x, i, m), v_set1(mean));
        if (m < SD_LANES) { /* clear the padding, which is not part of the row */
            float some[SD_LANES];
            v_store(some, v);
            v = load_some(some, m);
        }
        sum = v_fma(v, v, sum);
    }
    vec factor = v_set1(1.0f / sqrtf(tree_sum(sum) / (float)n + eps));
    FOR_EACH_16(n, i, m) {
        vec v = v_mul(v_sub(LOAD(x, i, m), v_set1(mean)), factor);
        STORE(y, i, m, v_fma(v, LOAD(weight, i, m), LOAD(bias, i, m)));
    }
}

/* -------------------------------------------------------------------------------- elementwise */

static void NAME(rotate)(int n_half, float* x, const float* cosine, const float* sine) {
    FOR_EACH_16(n_half, i, m) {
        vec a = LOAD(x, i, m), b = LOAD(x + n_half, i, m);
        vec c = LOAD(cosine, i, m), s = LOAD(sine, i, m);
        STORE(x, i, m, v_sub(v_mul(a, c), v_mul(b, s)));
        STORE(x + n_half, i, m, v_add(v_mul(b, c), v_mul(a, s)));
    }
}

static void NAME(add)(int n_rows, int n, float* x, ptrdiff_t ldx, const float* y, ptrdiff_t ldy) {
    if (n == SD_PANEL) { /* fast path: columns of a panel */
        for (int m = 0; m < n_rows; m++, x += ldx, y += ldy) {
            vec low = v_add(v_load(x), v_load(y)), high = v_add(v_load(x + SD_LANES), v_load(y + SD_LANES));
            v_store(x, low);
            v_store(x + SD_LANES, high);
        }
        return;
    }
    for (int m = 0; m < n_rows; m++, x += ldx, y += ldy)
        FOR_EACH_16(n, i, some) STORE(x, i, some, v_add(LOAD(x, i, some), LOAD(y, i, some)));
}

static void NAME(scale)(int n, const float* x, float factor, float* y) {
    FOR_EACH_16(n, i, m) STORE(y, i, m, v_mul(LOAD(x, i, m), v_set1(factor)));
}

static void NAME(multiply)(int n, float* x, const float* y) {
    FOR_EACH_16(n, i, m) STORE(x, i, m, v_mul(LOAD(x, i, m), LOAD(y, i, m)));
}

static void NAME(convolve)(int n, int width, const float* const* x, const float* weights, ptrdiff_t ldw,
                           const float* bias, float* y) {
    FOR_EACH_16(n, i, m) {
        vec sum = bias ? LOAD(bias, i, m) : v_set1(0.0f);
        for (int k = 0; k < width; k++) sum = v_fma(LOAD(x[k], i, m), LOAD(weights + k * ldw, i, m), sum);
        STORE(y, i, m, sum);
    }
}

/* exp(x) for low ≤ x ≤ 88: x = n·ln 2 + r, |r| ≤ ln 2 / 2; a degree-5 polynomial in r after Cephes' expf
 * (error below 2 ulp), times 2^n. */
#define LOWEST_EXP -87.3f
INLINE vec v_exp_between(vec x) {
    vec n = v_round(v_mul(x, v_set1(1.44269504f)));
    vec r = v_fma(n, v_set1(-0.693359375f), x);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    vec p = v_set1(1.9875691500e-4f);
    p = v_fma(p, r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    p = v_fma(p, v_mul(r, r), v_add(r, v_set1(1.0f)));
    return v_times_pow2(p, n);
}
/* exp(x) for x ≤ 0; 0 where the result would be subnormal. */
INLINE vec v_exp_below(vec x) {
    return v_keep_from(x, LOWEST_EXP, v_exp_between(v_max(x, v_set1(LOWEST_EXP))));
}
/* exp(x) for any x, clamped to 88. */
INLINE vec v_exp(vec x) {
    vec c = v_min(v_max(x, v_set1(LOWEST_EXP)), v_set1(88.0f));
    return v_keep_from(x, LOWEST_EXP, v_exp_between(c));
}

/* 1 / (1 + exp(−x)) */
INLINE vec v_sigmoid(vec x) {
    vec e = v_exp(v_sub(v_set1(0.0f), x));
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), e));
}

/* Φ(x) = (1 + erf(x / √2)) / 2 by Abramowitz and Stegun 7.1.26 (absolute error 1.5e-7). */
INLINE vec v_phi(vec x) {
    vec z = v_mul(v_max(x, v_sub(v_set1(0.0f), x)), v_set1(0.70710678f));
    vec t = v_div(v_set1(1.0f), v_fma(v_set1(0.3275911f), z, v_set1(1.0f)));
    vec p = v_set1(1.061405429f);
    p = v_fma(p, t, v_set1(-1.453152027f));
    p = v_fma(p, t, v_set1(1.421413741f));
    p = v_fma(p, t, v_set1(-0.284496736f));
    p = v_fma(p, t, v_set1(0.254829592f));
    vec tail = v_mul(v_mul(p, t), v_exp(v_sub(v_set1(0.0f), v_mul(z, z)))); /* erfc(z) */
    tail = v_mul(tail, v_set1(0.5f));
    /* upper half: 1 − tail, lower half: tail */
    vec upper = v_keep_from(x, 0.0f, v_sub(v_set1(1.0f), v_add(tail, tail)));
    return v_add(tail, upper);
}

#define DEFINE_MAP(name, of_v)                                \
    static void NAME(name)(int n, const float* x, float* y) { \
        FOR_EACH_16(n, i, m) {                                \
            vec v = LOAD(x, i, m);                            \
            STORE(y, i, m, of_v);                             \
        }                                                     \
    }
INLINE vec v_square(vec x) { return v_mul(x, x); }
/* x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))) = x · sigmoid of twice the argument */
INLINE vec v_gelu_tanh(vec v) {
    vec cubic = v_fma(v_mul(v_mul(v, v), v), v_set1(0.044715f), v);
    return v_mul(v, v_sigmoid(v_mul(cubic, v_set1(1.59576912f))));
}
DEFINE_MAP(silu, v_mul(v, v_sigmoid(v)))
DEFINE_MAP(sigmoid, v_sigmoid(v))
DEFINE_MAP(gelu, v_mul(v, v_phi(v)))
DEFINE_MAP(gelu_tanh, v_gelu_tanh(v))
DEFINE_MAP(relu, v_max(v, v_set1(0.0f)))
DEFINE_MAP(relu2, v_square(v_max(v, v_set1(0.0f))))

INLINE vec v_clamp(vec x, float limit) { return v_min(v_max(x, v_set1(-limit)), v_set1(limit)); }

static void NAME(silu_clamped)(int n, float* gate, const float* up, float limit) {
    FOR_EACH_16(n, i, m) {
        vec g = v_min(LOAD(gate, i, m), v_set1(limit)), u = v_clamp(LOAD(up, i, m), limit);
        g = v_mul(g, v_sigmoid(v_mul(g, v_set1(1.702f))));
        STORE(gate, i, m, v_mul(g, v_add(u, v_set1(1.0f))));
    }
}

static void NAME(clamp)(int n, float* x, float limit) {
    FOR_EACH_16(n, i, m) STORE(x, i, m, v_clamp(LOAD(x, i, m), limit));
}

/* tanh(x) after Cephes' tanhf: an odd polynomial of degree 11 for |x| < 0.625, else 1 − 2 / (exp(2|x|) + 1)
 * with the sign of x. Both branches are computed for all lanes, and the unused one is set to exactly 0. */
INLINE vec v_tanh(vec x) {
    const float joint = 0.625f;
    vec magnitude = v_abs(x), z = v_mul(x, x);
    vec p = v_set1(-5.70498872745e-3f);
    p = v_fma(p, z, v_set1(2.06390887954e-2f));
    p = v_fma(p, z, v_set1(-5.37397155531e-2f));
    p = v_fma(p, z, v_set1(1.33314422036e-1f));
    p = v_fma(p, z, v_set1(-3.33332819422e-1f));
    vec near = v_min(v_max(v_fma(v_mul(p, z), x, x), v_set1(-1.0f)), v_set1(1.0f));
    near = v_sub(near, v_keep_from(magnitude, joint, near));
    vec e = v_exp(v_add(magnitude, magnitude));
    vec far = v_sub(v_set1(1.0f), v_div(v_set1(2.0f), v_add(e, v_set1(1.0f))));
    far = v_keep_from(magnitude, joint, far);
    return v_add(near, v_sub(v_keep_from(x, 0.0f, v_add(far, far)), far));
}

static void NAME(softcap)(int n, float* x, float cap) {
    FOR_EACH_16(n, i, m) {
        vec v = LOAD(x, i, m);
        STORE(x, i, m, v_mul(v_tanh(v_div(v, v_set1(cap))), v_set1(cap)));
    }
}

static void NAME(gated_step)(int n, const float* x, const float* h, float* state) {
    FOR_EACH_16(n, i, m) {
        vec r = v_sigmoid(v_add(LOAD(x, i, m), LOAD(h, i, m)));
        vec z = v_sigmoid(v_add(LOAD(x + n, i, m), LOAD(h + n, i, m)));
        vec c = v_tanh(v_fma(r, LOAD(h + 2 * n, i, m), LOAD(x + 2 * n, i, m)));
        STORE(state, i, m, v_fma(z, v_sub(LOAD(state, i, m), c), c));
    }
}

#include "recurrence_template.h"

DEFINE_MAP(softplus, v_softplus(v))

/* exp(x) − 1 = 2 t / (1 − t) with t = tanh(x / 2), for x ≤ 0. */
INLINE vec v_expm1_below(vec x) {
    vec t = v_tanh(v_mul(x, v_set1(0.5f)));
    return v_div(v_add(t, t), v_sub(v_set1(1.0f), t));
}

static void NAME(xielu)(int n, const float* x, const float* factors, float* y) {
    vec slope = v_set1(factors[2]);
    vec above = v_softplus(v_set1(factors[0])), below = v_add(slope, v_softplus(v_set1(factors[1])));
    FOR_EACH_16(n, i, m) {
        vec v = LOAD(x, i, m), p = v_max(v, v_set1(0.0f)), q = v_min(v, v_set1(0.0f));
        vec curve = v_add(v_mul(v_mul(above, p), p), v_mul(v_sub(v_expm1_below(q), q), below));
        STORE(y, i, m, v_add(curve, v_mul(slope, v)));
    }
}

/* ------------------------------------------------------------------------------------ softmax */

static float NAME(max)(int n, const float* x) {
    float best = x[0];
    int i = 0;
    if (n >= SD_LANES) {
        vec v = v_load(x);
        for (i = SD_LANES; i + SD_LANES <= n; i += SD_LANES) v = v_max(v, v_load(x + i));
        float lanes[SD_LANES];
        v_store(lanes, v);
        for (int l = 0; l < SD_LANES; l++) best = lanes[l] > best ? lanes[l] : best;
    }
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    return best;
}

static float NAME(softmax)(int n, float* x, ptrdiff_t chunk, float factor, int n_sum, float* lanes) {
    int whole = n / SD_BLOCK;
    float largest = -INFINITY;
    if (whole > 0) {
        vec a = v_load(x), b = v_load(x + SD_LANES);
        for (int c = 1; c < whole; c++) {
            a = v_max(a, v_load(x + c * chunk));
            b = v_max(b, v_load(x + c * chunk + SD_LANES));
        }
        float both[SD_BLOCK];
        v_store(both, v_max(a, b));
        largest = NAME(max)(SD_LANES, both);
    }
    if (n % SD_BLOCK > 0) {
        float here = NAME(max)(n % SD_BLOCK, x + whole * chunk);
        largest = here > largest ? here : largest;
    }
    vec shift = v_set1(largest), scale = v_set1(factor), sum = v_set1(0.0f);
    int c = 0;
    for (; c < whole && (c + 1) * SD_BLOCK <= n_sum; c++) {
        float* at = x + c * chunk;
        vec a = v_exp_below(v_mul(v_sub(v_load(at), shift), scale));
        vec b = v_exp_below(v_mul(v_sub(v_load(at + SD_LANES), shift), scale));
        v_store(at, a);
        v_store(at + SD_LANES, b);
        sum = v_add(v_add(sum, a), b);
    }
    for (int i = c * SD_BLOCK; i < n; i += SD_LANES) {
        float* at = x + i / SD_BLOCK * chunk + i % SD_BLOCK;
        int some = n - i < SD_LANES ? n - i : SD_LANES;
        vec e = v_exp_below(v_mul(v_sub(LOAD(at, 0, some), shift), scale));
        STORE(at, 0, some, e);
        if (i + SD_LANES <= n_sum)
            sum = v_add(sum, e);
        else if (i < n_sum)
            sum = v_add(sum, load_some(at, n_sum - i));
    }
    v_store(lanes, sum);
    return largest;
}

static void NAME(largest_scores)(int n_rows, int n_chunks, const float* x, ptrdiff_t chunk, float* lanes) {
    for (int c = 0; c < n_chunks; c++, x += chunk - n_rows * SD_PANEL)
        for (int m = 0; m < n_rows; m++, x += SD_PANEL) {
            vec here = v_max(v_load(x), v_load(x + SD_LANES));
            float* at = lanes + m * SD_LANES;
            v_store(at, v_max(v_load(at), here));
        }
}

static void NAME(weigh_scores)(int n_rows, int n_chunks, int first, float* x, ptrdiff_t chunk,
                               const float* largest, float factor, const int* n_sum, float* lanes) {
    vec scale = v_set1(factor);
    for (int c = 0; c < n_chunks; c++, first += SD_PANEL, x += chunk - n_rows * SD_PANEL)
        for (int m = 0; m < n_rows; m++, x += SD_PANEL) {
            vec shift = v_set1(largest[m]);
            vec a = v_exp_below(v_mul(v_sub(v_load(x), shift), scale));
            vec b = v_exp_below(v_mul(v_sub(v_load(x + SD_LANES), shift), scale));
            v_store(x, a);
            v_store(x + SD_LANES, b);
            int n = n_sum[m] - first;
            if (n <= 0) continue;
            if (n < SD_PANEL) {
                if (n < SD_LANES) a = load_some(x, n);
                b = n > SD_LANES ? load_some(x + SD_LANES, n - SD_LANES) : v_set1(0.0f);
            }
            float* at = lanes + m * SD_LANES;
            v_store(at, v_add(v_add(v_load(at), a), b));
        }
}

#define LARGEST_SUBNORMAL 0x1.fffffcp-127f

static void NAME(fade)(int n, float* x, float factor) {
    FOR_EACH_16(n, i, m) {
        vec v = v_mul(LOAD(x, i, m), v_set1(factor)), below = v_sub(v_set1(0.0f), v_abs(v));
        STORE(x, i, m, v_sub(v, v_keep_from(below, -LARGEST_SUBNORMAL, v)));
    }
}

static void NAME(raise_tiles)(int n_rows, int n_chunks, const float* x, float factor, float* largest,
                              float* rescale) {
    for (int m = 0; m < n_rows; m++) {
        const float* at = x + m * SD_PANEL;
        vec most = v_max(v_load(at), v_load(at + SD_LANES));
        for (int c = 1; c < n_chunks; c++) {
            at += (ptrdiff_t)n_rows * SD_PANEL;
            most = v_max(most, v_max(v_load(at), v_load(at + SD_LANES)));
        }
        float here = v_largest(most), before = largest[m];
        largest[m] = here > before ? here : before;
        rescale[m] = before - largest[m];
    }
    vec scale = v_set1(factor * LOG2_E);
    FOR_EACH_16(n_rows, i, some)
    STORE(rescale, i, some, v_coarse_power(v_mul(LOAD(rescale, i, some), scale)));
}

#include "probability_template.h"

#define SET(name) table->name = NAME(name)
#define SET_TILES(name, format) table->tiles[format] = NAME(tiles_##name);
void NAME(sdk_floats)(sd_kernels* table) {
    table->prepare[SD_ROWS_F32] = NAME(prepare_f32);
    table->prepare[SD_ROWS_BF16] = NAME(prepare_bf16);
    table->panel[SD_FORMAT_F32] = NAME(panel_f32);
    table->panel[SD_FORMAT_BF16] = NAME(sdk_panel_bf16);
    table->tiles[SD_FORMAT_BF16] = NAME(tiles_bf16);
    table->tiles[SD_FORMAT_INT8] = NAME(tiles_int8);
    table->tiles[SD_FORMAT_INT4] = NAME(tiles_int4);
    SD_CODED_FORMATS(SET_TILES)
    table->thresholds.block_rows[SD_FORMAT_F32] = table->thresholds.block_rows[SD_FORMAT_BF16] = MAX_ROWS;
    SET(prepare_tiles);
    SET(add_tiles);
    SET(pair_rows);
    SET(add_values_f32);
    SET(add_values_bf16);
    SET(add_values_int8);
    SET(to_bf16);
    SET(rms_norm);
    SET(layer_norm);
    SET(rotate);
    SET(add);
    SET(scale);
    SET(silu);
    SET(sigmoid);
    SET(gelu);
    SET(gelu_tanh);
    SET(relu);
    SET(relu2);
    SET(silu_clamped);
    SET(xielu);
    SET(softplus);
    SET(softcap);
    SET(clamp);
    SET(multiply);
    SET(convolve);
    SET(gated_step);
    SET(decay);
    SET(dot);
    SET(unit_length);
    SET(recurrent_step);
    SET(max);
    SET(softmax);
    SET(largest_scores);
    SET(weigh_scores);
    SET(raise_tiles);
    SET(fade);
    SET(weigh_tiles);
    SET(all_finite);
    SET(argmax);
    SET(weigh);
    SET(mass);
    SET(residual);
    SET(split);
    SET(cut);
    SET(noise);
    SET(find_below);
}
#undef SET
#undef SET_TILES
