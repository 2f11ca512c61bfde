/* The gated delta rule (arXiv 2412.06464) and Mamba-2 (arXiv 2405.21060): rows that read a state, and tokens
 * that update it.
 *
 * Included after v_exp_below and v_sigmoid of floats_template.h. The order of each sum is in kernels.h. */

/* ln(1 + exp(x)) = max(x, 0) + ln(1 + e) with e = exp(−|x|), and ln(1 + e) = 2 artanh(e / (2 + e)) by its
 * series to the 15th power (relative error below 2e-9 before rounding). */
INLINE vec v_softplus(vec x) {
    vec e = v_exp_below(v_sub(v_set1(0.0f), v_abs(x)));
    vec s = v_div(e, v_add(v_set1(2.0f), e)), z = v_mul(s, s);
    vec p = v_set1(0.0666666667f);
    p = v_fma(p, z, v_set1(0.0769230769f));
    p = v_fma(p, z, v_set1(0.0909090909f));
    p = v_fma(p, z, v_set1(0.111111111f));
    p = v_fma(p, z, v_set1(0.142857143f));
    p = v_fma(p, z, v_set1(0.2f));
    p = v_fma(p, z, v_set1(0.333333333f));
    p = v_fma(v_mul(p, z), s, s);
    return v_add(v_max(x, v_set1(0.0f)), v_add(p, p));
}

static void NAME(decay)(int n, const float* x, const float* bias, const float* rate, float* time, float* y) {
    FOR_EACH_16(n, i, m) {
        vec t = v_softplus(v_add(LOAD(x, i, m), LOAD(bias, i, m)));
        STORE(time, i, m, t);
        STORE(y, i, m, v_exp(v_mul(LOAD(rate, i, m), t)));
    }
}

static float NAME(dot)(int n, const float* x, const float* y) {
    vec sum = v_set1(0.0f);
    FOR_EACH_16(n, i, m) sum = v_fma(LOAD(x, i, m), LOAD(y, i, m), sum);
    return tree_sum(sum);
}

#define DELTA_EPS 1e-6f

static float NAME(unit_length)(int n, float* query, float* key) {
    vec queries = v_set1(0.0f), keys = v_set1(0.0f), both = v_set1(0.0f);
    FOR_EACH_16(n, i, m) {
        vec q = LOAD(query, i, m), k = LOAD(key, i, m);
        queries = v_fma(q, q, queries);
        keys = v_fma(k, k, keys);
    }
    vec for_query = v_set1(1.0f / sqrtf(tree_sum(queries) + DELTA_EPS) * (1.0f / sqrtf((float)n)));
    vec for_key = v_set1(1.0f / sqrtf(tree_sum(keys) + DELTA_EPS));
    FOR_EACH_16(n, i, m) {
        vec q = v_mul(LOAD(query, i, m), for_query), k = v_mul(LOAD(key, i, m), for_key);
        STORE(query, i, m, q);
        STORE(key, i, m, k);
        both = v_fma(q, k, both);
    }
    return tree_sum(both);
}

/* n_halves halves of the columns, from the first. n_halves, `some` (updates: 0, 1, or 2 for any number) and
 * `reads` (0: there is no row; 1: of Mamba-2; 2: of the delta rule) are constant where this is inlined. */
INLINE void recurrent_columns(const int n_halves, const int some, const int reads, int n_key,
                              const float* from, float* to, int n_updates, const sd_recurrent_update* updates,
                              int first, const sd_recurrent_row* row) {
    vec remembered[2], read[2], delta[2];
    vec decay = v_set1(some == 1 ? updates->decay : 0.0f);
    FOR_HALVES {
        remembered[h] = read[h] = v_set1(0.0f);
        delta[h] = some == 1 ? v_load(updates->delta + first + h * SD_LANES) : remembered[h];
    }
    for (int i = 0; i < n_key; i++) {
        vec s[2];
        FOR_HALVES s[h] = v_load(from + i * SD_PANEL + first + h * SD_LANES);
        if (some == 1) {
            vec k = v_set1(updates->key[i]);
            FOR_HALVES s[h] = v_fma(k, delta[h], v_mul(decay, s[h]));
        } else if (some == 2) {
            for (int u = 0; u < n_updates; u++) {
                vec k = v_set1(updates[u].key[i]), g = v_set1(updates[u].decay);
                FOR_HALVES s[h] = v_fma(k, v_load(updates[u].delta + first + h * SD_LANES), v_mul(g, s[h]));
            }
        }
        if (to != NULL) FOR_HALVES v_store(to + i * SD_PANEL + first + h * SD_LANES, s[h]);
        if (reads == 2) {
            vec k = v_set1(row->key[i]);
            FOR_HALVES remembered[h] = v_fma(s[h], k, remembered[h]);
        }
        if (reads) {
            vec q = v_set1(row->query[i]);
            FOR_HALVES read[h] = v_fma(s[h], q, read[h]);
        }
    }
    if (!reads) return;
    vec g = v_set1(row->decay), beta = v_set1(row->beta), product = v_set1(row->product);
    FOR_HALVES {
        int j = first + h * SD_LANES;
        vec value = v_load(row->value + j);
        vec d = v_mul(reads == 2 ? v_sub(value, v_mul(g, remembered[h])) : value, beta);
        vec out = v_fma(product, d, v_mul(g, read[h]));
        v_store(row->delta + j, d);
        v_store(row->out + j, reads == 2 ? out : v_fma(v_set1(row->skip), value, out));
    }
}

/* Where a half takes several registers, the halves of the columns follow each other. */
#define STATE_HALVES (MAX_ROWS_WIDE > 2 ? 2 : 1)

INLINE void recurrent_rows(const int reads, int n_key, const float* from, float* to, int n_updates,
                           const sd_recurrent_update* updates, const sd_recurrent_row* row) {
    for (int first = 0; first < SD_PANEL; first += STATE_HALVES * SD_LANES) {
        if (n_updates == 0)
            recurrent_columns(STATE_HALVES, 0, reads, n_key, from, to, 0, updates, first, row);
        else if (n_updates == 1)
            recurrent_columns(STATE_HALVES, 1, reads, n_key, from, to, 1, updates, first, row);
        else
            recurrent_columns(STATE_HALVES, 2, reads, n_key, from, to, n_updates, updates, first, row);
    }
}

static void NAME(recurrent_step)(int n_key, const float* from, float* to, int n_updates,
                                 const sd_recurrent_update* updates, const sd_recurrent_row* row) {
    if (row == NULL)
        recurrent_rows(0, n_key, from, to, n_updates, updates, row);
    else if (row->corrects)
        recurrent_rows(2, n_key, from, to, n_updates, updates, row);
    else
        recurrent_rows(1, n_key, from, to, n_updates, updates, row);
}
