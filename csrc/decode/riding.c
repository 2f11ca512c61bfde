#include "riding.h"

sd_status sd_riding_begin(sd_riding* riding, sd_drafter* drafter, const sd_config* target, int n_sequences,
                          int node_budget) {
    sd_drafter* rider = NULL;
    sd_status status = drafter ? sd_drafter_find_riders(drafter, &rider) : SD_OK;
    if (status != SD_OK || rider == NULL) return status;
    int n = rider->riders.n;
    if (rider->riders.d_model != target->d_model)
        return sd_fail(SD_ERR_VALUE, "the draft's look-ahead embeddings have %d numbers, expected %d",
                       rider->riders.d_model, target->d_model);
    if (node_budget > 0 && node_budget < n_sequences * (1 + n))
        return sd_fail(
            SD_ERR_SETTING,
            "node_budget is %d, expected at least %d: a row and %d look-ahead embeddings for each of "
            "%d sequences",
            node_budget, n_sequences * (1 + n), n, n_sequences);
    riding->n = n;
    return SD_OK;
}

void sd_riding_take(sd_riding* riding, sd_arena* arena, int n_sequences) {
    size_t n = (size_t)n_sequences;
    riding->first = sd_arena_take(arena, n, ((size_t)riding->max_nodes + 1) * sizeof *riding->first);
    riding->rows = sd_arena_take(arena, n, (size_t)riding->n * sizeof *riding->rows);
}

static int32_t* beginnings(const sd_riding* riding, int i) {
    return riding->first + (ptrdiff_t)i * (riding->max_nodes + 1);
}

int sd_riding_append(const sd_riding* riding, int i, const sd_riders* riders, int n_rows, int depth,
                     int32_t* tokens, int32_t* parents) {
    return sd_riders_append(riders, n_rows, depth, tokens, parents, beginnings(riding, i));
}

sd_ride sd_riding_behind(const sd_riding* riding, int i, int row, int first_row) {
    const int32_t* begins = beginnings(riding, i) + row;
    return (sd_ride){.row = first_row + begins[0], .n = begins[1] - begins[0]};
}

sd_status sd_riding_tell(const sd_riding* riding, sd_drafter* rider, sd_workspace* forward,
                         const sd_ride* rides, int n_rides) {
    int n = 0;
    for (int i = 0; i < n_rides; i++)
        for (int k = 0; k < rides[i].n; k++) riding->rows[n++] = rides[i].row + k;
    if (n == 0) return SD_OK;
    const float* logits;
    sd_status status = sd_forward_more_logits(forward, riding->rows, n, &logits);
    for (int i = 0; i < n_rides && status == SD_OK; i++) {
        const sd_ride* r = &rides[i];
        status = rider->ride(rider, r->sequence, r->n_text, logits, forward->ld_logits, r->n);
        logits += r->n * forward->ld_logits;
    }
    return status;
}
