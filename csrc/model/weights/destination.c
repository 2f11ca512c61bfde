#include "destination.h"

#include <math.h>
#include <stdio.h>

/* A shape in a message. */
typedef struct shape_text {
    char text[32];
} shape_text;

static shape_text shape_as_text(int n_rows, int n_cols) {
    shape_text shape;
    if (n_cols == 0)
        snprintf(shape.text, sizeof shape.text, "(%d,)", n_rows);
    else
        snprintf(shape.text, sizeof shape.text, "(%d, %d)", n_rows, n_cols);
    return shape;
}

static sd_status check_shape(const sd_destination* to, int n_rows, int n_cols) {
    if (n_rows == to->n_rows && n_cols == to->n_cols) return SD_OK;
    const shape_text found = shape_as_text(n_rows, n_cols), expected = shape_as_text(to->n_rows, to->n_cols);
    return sd_fail(SD_ERR_SHAPE, "tensor %s: shape is %s, expected %s", to->name, found.text, expected.text);
}

static sd_status copy_vector(const sd_destination* to, const sd_source* source) {
    int step = to->rows.step > 0 ? to->rows.step : 1;
    for (int r = 0; r < to->n_rows; r++) {
        float value;
        sd_source_read(source, r, 0, 1, &value);
        if (!isfinite(value))
            return sd_fail(SD_ERR_NOT_FINITE, "tensor %s: element [%d] is %g, expected a finite number",
                           to->name, r, (double)value);
        to->vector[to->rows.first + r / SD_PANEL * SD_PANEL * step + r % SD_PANEL] = value;
    }
    return SD_OK;
}

sd_status sd_destination_fill(const sd_destination* to, const sd_source* source, int n_rows, int n_cols,
                              int n_threads) {
    sd_status status = check_shape(to, n_rows, n_cols);
    if (status == SD_OK) status = sd_pool_reserve(n_threads);
    if (status == SD_OK && to->vector) status = copy_vector(to, source);
    if (status == SD_OK && to->table) status = sd_table_fill(to->table, source, to->name, n_threads);
    if (status == SD_OK && to->matrix)
        status = sd_matrix_pack(to->matrix, source, n_rows, to->rows, to->name, n_threads);
    return status;
}

sd_status sd_destination_fail_twice(const sd_destination* to) {
    return sd_fail(SD_ERR_SHAPE, "tensor %s: given twice", to->name);
}

sd_status sd_destination_fail_missing(const sd_destination* to) {
    const shape_text expected = shape_as_text(to->n_rows, to->n_cols);
    return sd_fail(SD_ERR_SHAPE, "tensor %s: missing, expected shape %s", to->name, expected.text);
}
