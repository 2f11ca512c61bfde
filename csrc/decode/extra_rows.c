#include "extra_rows.h"

sd_status sd_extra_rows_begin(sd_extra_rows* extra, sd_drafter* drafter, const sd_config* target,
                              int n_sequences, int node_budget) {
    sd_drafter* owner = NULL;
    sd_status status = drafter ? sd_drafter_find_queries(drafter, &owner) : SD_OK;
    if (status != SD_OK || owner == NULL) return status;
    int n = owner->extra.n, least = n_sequences * (1 + n);
    if (owner->extra.d_model != target->d_model)
        return sd_fail(SD_ERR_VALUE, "the draft's look-ahead embeddings have %d numbers, expected %d",
                       owner->extra.d_model, target->d_model);
    if (node_budget > 0 && node_budget < least)
        return sd_fail(
            SD_ERR_SETTING,
            "node_budget is %d, expected at least %d: a row and %d look-ahead embeddings for each of "
            "%d sequences",
            node_budget, least, n, n_sequences);
    extra->n = n;
    return SD_OK;
}

void sd_extra_rows_take(sd_extra_rows* extra, sd_arena* arena, int n_sequences) {
    size_t n = (size_t)n_sequences;
    extra->first = sd_arena_take(arena, n, ((size_t)extra->max_nodes + 1) * sizeof *extra->first);
    extra->rows = sd_arena_take(arena, n, (size_t)extra->n * sizeof *extra->rows);
    extra->runs = sd_arena_take(arena, n, sizeof *extra->runs);
}

static int32_t* first_of(const sd_extra_rows* extra, int i) {
    return extra->first + (ptrdiff_t)i * (extra->max_nodes + 1);
}

int sd_extra_rows_append(const sd_extra_rows* extra, int i, int n_each, int n_rows, int depth,
                         int32_t* tokens, int32_t* parents) {
    int32_t* first = first_of(extra, i);
    int n = n_rows;
    for (int row = 0; row < n_rows; row++) {
        int room = depth - 1; /* after the draft tokens come the target's own, of this round and the next */
        for (int at = row; parents[at] >= 0; at = parents[at]) room--;
        first[row] = n;
        for (int k = 0; k < n_each && k < room; k++, n++) {
            tokens[n] = -1 - k;
            parents[n] = k == 0 ? row : n - 1;
        }
    }
    return first[n_rows] = n;
}

sd_extra_run sd_extra_rows_after(const sd_extra_rows* extra, int i, int row, int first_row) {
    const int32_t* first = first_of(extra, i) + row;
    return (sd_extra_run){.row = first_row + first[0], .n = first[1] - first[0]};
}

sd_status sd_extra_rows_observe(const sd_extra_rows* extra, sd_workspace* forward, int n_runs) {
    int n = 0;
    for (int i = 0; i < n_runs; i++)
        for (int k = 0; k < extra->runs[i].n; k++) extra->rows[n++] = extra->runs[i].row + k;
    if (n == 0) return SD_OK;
    const float* logits;
    sd_status status = sd_forward_more_logits(forward, extra->rows, n, &logits);
    for (int i = 0; i < n_runs && status == SD_OK; i++) {
        const sd_extra_run* r = &extra->runs[i];
        status = extra->active->observe_extra(extra->active, r->sequence, r->n_text, logits,
                                              forward->ld_logits, r->n);
        logits += r->n * forward->ld_logits;
    }
    return status;
}
