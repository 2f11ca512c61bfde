/* Fits scales and minima of sub-blocks of Q4_K, Q5_K and Q6_K to numbers: the best of several trials, one
 * per lane.
 *
 * Included by loading_template.h. Sums run over i = l, l + 8, l + 16 … for each l of 8, then over l, so
 * that their bits are equal on every set. Comparisons between trials are made one by one. */

#define TRIALS 32 /* lanes: trials, and padding to whole vectors */

/* round(x · factor) for 16 trials, clamped to [least, most]. */
INLINE vec codes_of(float x, const float* factors, float least, float most) {
    return v_min(v_max(v_round(v_mul(v_set1(x), v_load(factors))), v_set1(least)), v_set1(most));
}

/* The sum of `numbers`, in the order above. */
INLINE float sum_of(const float* numbers) {
    float sum = 0.0f;
    for (int l = 0; l < 8; l++) {
        float part = 0.0f;
        for (int i = l; i < SD_BLOCK; i += 8) part += numbers[i];
        sum += part;
    }
    return sum;
}

/* Σ w·q, Σ w·q·q and Σ w·q·x of 16 trials, with q the codes of (x + low) · steps. */
INLINE void affine_sums(const float* x, const float* w, float most, float low, const float* steps, float* sq,
                        float* sqq, float* sxq) {
    vec q_all = v_set1(0.0f), qq_all = q_all, xq_all = q_all;
    for (int l = 0; l < 8; l++) {
        vec q_part = v_set1(0.0f), qq_part = q_part, xq_part = q_part;
        for (int i = l; i < SD_BLOCK; i += 8) {
            vec q = codes_of(x[i] + low, steps, 0.0f, most), wq = v_mul(v_set1(w[i]), q);
            q_part = v_add(q_part, wq);
            qq_part = v_add(qq_part, v_mul(wq, q));
            xq_part = v_add(xq_part, v_mul(wq, v_set1(x[i])));
        }
        q_all = v_add(q_all, q_part), qq_all = v_add(qq_all, qq_part), xq_all = v_add(xq_all, xq_part);
    }
    v_store(sq, q_all), v_store(sqq, qq_all), v_store(sxq, xq_all);
}

/* Σ w · error² of 16 trials, with the nearest code for each number. */
INLINE void affine_errors(const float* x, const float* w, float most, const float* scales, const float* lows,
                          const float* inverses, float* errors) {
    const vec scale = v_load(scales), low = v_load(lows), inverse = v_load(inverses);
    vec all = v_set1(0.0f);
    for (int l = 0; l < 8; l++) {
        vec part = v_set1(0.0f);
        for (int i = l; i < SD_BLOCK; i += 8) {
            vec number = v_set1(x[i]);
            vec q = v_round(v_mul(v_add(number, low), inverse));
            q = v_min(v_max(q, v_set1(0.0f)), v_set1(most));
            vec error = v_sub(v_sub(v_mul(scale, q), low), number);
            part = v_add(part, v_mul(v_mul(v_set1(w[i]), error), error));
        }
        all = v_add(all, part);
    }
    v_store(errors, all);
}

static void NAME(affine_code)(const float* x, const float* w, float most, float* scale, float* low) {
    enum { N = 24, FIRST = N }; /* trials; the lane of the baseline that they must improve on */
    float least = 0.0f, largest = x[0], wx[SD_BLOCK];
    for (int i = 0; i < SD_BLOCK; i++) {
        least = x[i] < least ? x[i] : least;
        largest = x[i] > largest ? x[i] : largest;
        wx[i] = w[i] * x[i];
    }
    float range = largest - least, n = sum_of(w), v = sum_of(wx);
    *scale = range > 0.0f ? range / most : 0.0f, *low = -least;
    if (!(range > 0.0f) || !(1.0f / *scale < INFINITY)) return;
    float steps[TRIALS] = {0}, sq[TRIALS], sqq[TRIALS], sxq[TRIALS];
    for (int t = 0; t < N; t++) {
        steps[t] = (most - 1.2f + 0.1f * (float)t) / range;
        if (!(steps[t] < INFINITY)) steps[t] = 0.0f; /* a trial without a scale */
    }
    for (int t = 0; t < TRIALS; t += SD_LANES)
        affine_sums(x, w, most, -least, steps + t, sq + t, sqq + t, sxq + t);
    float scales[TRIALS] = {0}, lows[TRIALS] = {0}, inverses[TRIALS] = {0}, errors[TRIALS];
    for (int t = 0; t < N; t++) {
        float determinant = n * sqq[t] - sq[t] * sq[t];
        if (determinant > 0.0f) {
            scales[t] = (n * sxq[t] - v * sq[t]) / determinant;
            lows[t] = (sq[t] * sxq[t] - v * sqq[t]) / determinant;
        }
        if (!(lows[t] > 0.0f)) lows[t] = 0.0f, scales[t] = sqq[t] > 0.0f ? sxq[t] / sqq[t] : 0.0f;
        inverses[t] = scales[t] > 0.0f ? 1.0f / scales[t] : 0.0f;
        if (!(inverses[t] < INFINITY)) scales[t] = inverses[t] = 0.0f;
    }
    scales[FIRST] = *scale, lows[FIRST] = *low, inverses[FIRST] = 1.0f / *scale;
    for (int t = 0; t < TRIALS; t += SD_LANES)
        affine_errors(x, w, most, scales + t, lows + t, inverses + t, errors + t);
    float error = errors[FIRST];
    for (int t = 0; t < N; t++)
        if (scales[t] > 0.0f && errors[t] < error) error = errors[t], *scale = scales[t], *low = lows[t];
}

static float NAME(centered_code)(const float* x, const float* w) {
    enum { N = 19, NUMBERS = SD_BLOCK / 2 };
    const float most = 32.0f;
    float extreme = 0.0f, steps[TRIALS] = {0}, sxq[TRIALS], sqq[TRIALS];
    for (int i = 0; i < NUMBERS; i++)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    if (fabsf(extreme) < 1e-30f) return 0.0f;
    for (int t = 0; t < N; t++) steps[t] = -(most + 0.1f * (float)(t - N / 2)) / extreme;
    for (int t = 0; t < TRIALS; t += SD_LANES) {
        vec xq_all = v_set1(0.0f), qq_all = xq_all;
        for (int l = 0; l < 8; l++) {
            vec xq_part = v_set1(0.0f), qq_part = xq_part;
            for (int i = l; i < NUMBERS; i += 8) {
                vec q = codes_of(x[i], steps + t, -most, most - 1.0f), wq = v_mul(v_set1(w[i]), q);
                xq_part = v_add(xq_part, v_mul(wq, v_set1(x[i])));
                qq_part = v_add(qq_part, v_mul(wq, q));
            }
            xq_all = v_add(xq_all, xq_part), qq_all = v_add(qq_all, qq_part);
        }
        v_store(sxq + t, xq_all), v_store(sqq + t, qq_all);
    }
    float scale = 0.0f, gain = 0.0f;
    for (int t = 0; t < N; t++) {
        float a = sxq[t], b = sqq[t];
        if (b > 0.0f && a * a > gain * b) gain = a * a / b, scale = a / b;
    }
    return scale;
}

#undef TRIALS
