#include "token_matrix.h"

#include <stddef.h>

static _Atomic int32_t* row_of(const sd_token_matrix* m, int32_t token) {
    return m->rows + (ptrdiff_t)token * m->k;
}

int32_t sd_token_matrix_at(const sd_token_matrix* m, int32_t token, int rank) {
    return rank < m->k ? atomic_load_explicit(row_of(m, token) + rank, memory_order_relaxed) : -1;
}

void sd_token_matrix_set(const sd_token_matrix* m, int32_t token, const float* logits) {
    int32_t best[SD_TOKEN_MATRIX_MAX_K];
    int n = 0;
    for (int32_t i = 0; i < m->n_vocab; i++) {
        if (n == m->k && !(logits[i] > logits[best[n - 1]])) continue;
        int at = n < m->k ? n++ : n - 1;
        for (; at > 0 && logits[i] > logits[best[at - 1]]; at--) best[at] = best[at - 1];
        best[at] = i;
    }
    for (int rank = 0; rank < m->k; rank++)
        atomic_store_explicit(row_of(m, token) + rank, rank < n ? best[rank] : -1, memory_order_relaxed);
}
