/* A table that is read row by row: embeddings. Row-major: f32, bf16, or the blocks of a file as they are. */
#ifndef SD_TABLE_H
#define SD_TABLE_H

#include "pack.h"

typedef struct sd_table {
    int n_rows, n_cols;
    sd_number number; /* not SD_F16 */
    char* data;       /* [n_rows, n_cols], owned by the model's arena */
} sd_table;

/* Take room for an empty table from the arena (which may be counting). */
sd_table sd_table_take(sd_arena* arena, sd_number number, int n_rows, int n_cols);

/* Copy a source of the table's shape, rounding to its number; to a table of blocks those of the same number
 * alone. Fails on a NaN or infinite value. */
sd_status sd_table_fill(sd_table* table, const sd_source* source, const char* name, int n_threads);

/* Copy row r to out [n_cols] f32, borrowed. */
void sd_table_row(const sd_table* table, int r, float* out);

#endif
