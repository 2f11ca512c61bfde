/* Preparation of rows of floats for products, in the chunks of products_template.h.
 *
 * Included after rounded_template.h. */

static void NAME(prepare_f32)(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out) {
    (void)n_in;
    for (int i = 0; i < part.n_inputs; i += SD_BLOCK) {
        int n_here = part.n_inputs - i < SD_BLOCK ? part.n_inputs - i : SD_BLOCK;
        float* to = (float*)out + ((ptrdiff_t)(part.input + i) / SD_BLOCK * part.n_all + part.row) * SD_BLOCK;
        for (int m = 0; m < part.n_rows; m++, to += SD_BLOCK)
            FOR_EACH_16(n_here, j, some) v_store(to + j, LOAD(x + m * ldx + i, j, some));
    }
}

static void NAME(prepare_bf16)(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out) {
    (void)n_in;
    prepare_rounded(0, 1, part, x, ldx, out);
}
