/* A digest of a model's weights: equal for equal weights in any process, whatever files they come from. */
#include "adapter.h"

/* Add bytes to the digest. */
static sd_status add(const void* data, size_t size, uint64_t* digest) {
    const size_t whole = SIZE_MAX / SD_CHECKSUM_PIECE * SD_CHECKSUM_PIECE;
    uint64_t pair[2] = {*digest, 0};
    SD_TRY(sd_checksums(data, size, whole, 1, &pair[1]));
    return sd_checksums(pair, sizeof pair, whole, 1, digest);
}

static sd_status add_matrix(const sd_matrix* m, uint64_t* digest) {
    size_t n_out = (size_t)m->n_out, n_in = (size_t)m->n_in;
    if (m->panels == NULL) return add(m->plain, n_out * n_in * sizeof *m->plain, digest);
    const sd_panel* last = &m->panels[sd_matrix_panels(m->n_out) - 1]; /* panels are adjacent */
    return add(m->panels[0].at, (size_t)(last->at - m->panels[0].at) + sd_panel_bytes(last->format, n_in),
               digest);
}

/* Entries of a vector in whole groups of 32, as sd_destination_fill stores them. */
static sd_status add_vector(const sd_destination* of, uint64_t* digest) {
    sd_status status = SD_OK;
    int step = of->rows.step > 0 ? of->rows.step : 1;
    for (int r = 0; r < of->n_rows && status == SD_OK; r += SD_PANEL) {
        int n = of->n_rows - r < SD_PANEL ? of->n_rows - r : SD_PANEL;
        status = add(of->vector + of->rows.first + r * step, (size_t)n * sizeof(float), digest);
    }
    return status;
}

static sd_status add_adapter(const sd_adapter* adapter, uint64_t* digest) {
    for (int i = 0; i < adapter->n; i++) {
        const sd_adapted_matrix* m = &adapter->matrices[i];
        SD_TRY(add_matrix(&m->down, digest));
        for (int j = 0; j < m->n_parts; j++) {
            const sd_low_rank* part = &m->parts[j];
            const int32_t tensor[] = {(int32_t)part->role, part->layer, part->rank};
            SD_TRY(add(tensor, sizeof tensor, digest));
            SD_TRY(add_matrix(&part->up, digest));
        }
    }
    return SD_OK;
}

sd_status sd_model_digest(const sd_model* model, uint64_t* digest) {
    if (model->adapter != NULL) return add_adapter(model->adapter, digest);
    for (int i = 0; i < sd_tensor_count(&model->config); i++) {
        sd_tensor_spec spec;
        sd_tensor_at(&model->config, i, &spec);
        const sd_destination of = sd_model_destination((sd_model*)model, &spec);
        sd_status status = SD_OK;
        if (of.vector != NULL)
            status = add_vector(&of, digest);
        else if (of.table != NULL)
            status = add(of.table->data, sd_table_bytes(of.table), digest);
        else if (of.matrix != NULL && of.rows.first == 0) /* the first tensor of a matrix adds all of it */
            status = add_matrix(of.matrix, digest);
        if (status != SD_OK) return status;
    }
    return SD_OK;
}
