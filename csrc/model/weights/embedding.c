/* Norms, and the embeddings with which rows start. */
#include <string.h>

#include "kernels.h"
#include "weights.h"

void sd_model_norm(const sd_model* model, int n, const float* x, const float* weight, const float* bias,
                   float* out) {
    const sd_kernels* k = sd_kernels_get();
    if (model->config.norm == SD_NORM_RMS)
        k->rms_norm(n, x, weight, model->config.norm_eps, out);
    else
        k->layer_norm(n, x, weight, bias, model->config.norm_eps, out);
}

/* Add the position's embedding to `out` and normalize it, as configured. */
static void add_position(const sd_model* model, int position, float* out) {
    int d = model->config.d_model;
    if (model->position_embedding.n_rows > 0) {
        const float* at = (const float*)(const void*)model->position_embedding.data;
        sd_kernels_get()->add(1, d, out, d, at + (size_t)position * (size_t)d, d);
    }
    if (model->embedding_norm != NULL)
        sd_model_norm(model, d, out, model->embedding_norm, model->embedding_norm_bias, out);
}

void sd_model_embed(const sd_model* model, int token, int position, float* out) {
    sd_table_row(&model->token_embedding, token, out);
    if (model->config.embedding_scale != 1.0f)
        sd_kernels_get()->scale(sd_own_width(&model->config), out, model->config.embedding_scale, out);
    add_position(model, position, out);
}

void sd_model_embed_vector(const sd_model* model, const float* vector, int position, float* out) {
    memcpy(out, vector, (size_t)model->config.d_model * sizeof *out);
    add_position(model, position, out);
}
