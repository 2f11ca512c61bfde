#include "drafter.h"

/* The drafter whose trees a sequence gets: the only one that it selects of several, or d. NULL: none. */
static const sd_drafter* selected(const sd_drafter* d, uint64_t drafters) {
    int n = d->several ? sd_count_drafters(drafters, d->n_within) : 2;
    for (int i = 0; n == 1 && i < d->n_within; i++)
        if (sd_may_draft(drafters, i)) return selected(d->within[i], SD_EVERY_DRAFTER);
    return n == 0 ? NULL : d;
}

sd_status sd_drafter_find_rule(const sd_drafter* drafter, const sd_settings* settings, sd_rule* rule) {
    const sd_verifier_options* verify = &settings->verify;
    int drafted = drafter != NULL && sd_settings_drafted(settings), draws = sd_settings_draws(settings);
    const sd_drafter* d = drafted ? selected(drafter, settings->drafters) : NULL;
    sd_tree_type trees = d ? d->tree_type : SD_TREE_CHAINS;
    if (trees == SD_TREE_DRAWS && !draws) trees = SD_TREE_ANY; /* then siblings are not independent draws */
    *rule = sd_rule_for(verify->rule, verify->lenience, verify->sampling->temperature, trees,
                        draws && d != NULL && !d->points);
    return sd_rule_check_trees(*rule, trees, "verify");
}

sd_status sd_drafter_made(sd_drafter* made, sd_status status, sd_drafter** drafter) {
    if (status == SD_OK)
        *drafter = made;
    else
        made->free(made);
    return status;
}

void sd_drafter_release(sd_drafter* d) {
    sd_arena_free(&d->arena);
    sd_free(d);
}

int sd_slice_take(int n, int n_read, int* n_free) {
    int left = n > n_read ? n - n_read : 0, n_here = left < *n_free ? left : *n_free;
    *n_free -= n_here;
    return n_here;
}

sd_status sd_drafter_add_captures(const sd_drafter* d, const sd_config* target, sd_captures* captures) {
    sd_status status = SD_OK;
    for (int i = 0; i < d->captures.n && status == SD_OK; i++)
        status = sd_captures_add(captures, d->captures.layers[i], target);
    for (int i = 0; i < d->n_within && status == SD_OK; i++)
        status = sd_drafter_add_captures(d->within[i], target, captures);
    return status;
}

/* Continue sd_drafter_find_queries; *found may be set already. */
static sd_status find_extra(sd_drafter* d, sd_drafter** found) {
    if (d->extra.n > 0 && *found != NULL)
        return sd_fail(SD_ERR_SETTING, "two drafts have look-ahead embeddings, expected one at most");
    if (d->extra.n > 0) *found = d;
    sd_status status = SD_OK;
    for (int i = 0; i < d->n_within && status == SD_OK; i++) status = find_extra(d->within[i], found);
    return status;
}

sd_status sd_drafter_find_queries(sd_drafter* drafter, sd_drafter** found) {
    *found = NULL;
    return find_extra(drafter, found);
}

sd_drafter* sd_drafter_active_queries(sd_drafter* d) {
    if (d->paused) return NULL;
    sd_drafter* found = d->extra.n > 0 ? d : NULL;
    for (int i = 0; i < d->n_within && found == NULL; i++) found = sd_drafter_active_queries(d->within[i]);
    return found;
}

sd_cache* sd_drafter_cache(const sd_drafter* d, int sequence, const sd_model* model) {
    if (d == NULL) return NULL;
    if (d->caches && d->caches[0].model == model) return &d->caches[sequence];
    sd_cache* found = NULL;
    for (int i = 0; i < d->n_within && found == NULL; i++)
        found = sd_drafter_cache(d->within[i], sequence, model);
    return found;
}

void sd_drafter_keep_snapshots(const sd_drafter* d, int n_sequences, int most, size_t max_bytes) {
    for (int i = 0; d->caches && i < n_sequences; i++)
        sd_cache_keep_snapshots(&d->caches[i], most, max_bytes);
    for (int i = 0; i < d->n_within; i++)
        sd_drafter_keep_snapshots(d->within[i], n_sequences, most, max_bytes);
}

sd_status sd_drafter_begin_with(const sd_drafter* d, int sequence, const sd_cache* known,
                                const sd_prompt* prompt, int* n) {
    int most = 0, n_source = known->model->encoder ? prompt->n_source : 0;
    sd_status status = SD_OK;
    if (d->caches && d->caches[0].model == known->model &&
        (d->own_ids || sd_encoded_has_source(known->encoded, prompt->source, n_source))) {
        sd_cache* cache = &d->caches[sequence]; /* which may have less room than the target's */
        const int32_t* ids = d->own_ids ? known->tokens : prompt->tokens;
        int n_ids = d->own_ids ? known->n_committed : prompt->n;
        if ((status = sd_cache_reserve(cache)) != SD_OK) return status;
        sd_cache_set_source(cache, known->encoded);
        most = sd_cache_begin_with(cache, known, ids, n_ids < cache->n_slots ? n_ids : cache->n_slots);
    }
    for (int i = 0; i < d->n_within; i++) {
        int within = 0;
        status = sd_drafter_begin_with(d->within[i], sequence, known, prompt, &within);
        if (status != SD_OK) return status;
        if (within > most) most = within;
    }
    *n = most;
    return SD_OK;
}

int sd_drafter_reads_text(const sd_drafter* d) {
    if (d->in_target || d->captures.n > 0 || d->extra.n > 0) return 0;
    for (int i = 0; i < d->n_within; i++)
        if (!sd_drafter_reads_text(d->within[i])) return 0;
    return 1;
}

sd_status sd_drafter_reserve(sd_drafter* d) {
    sd_status status = d->reserve ? d->reserve(d) : SD_OK;
    for (int i = 0; i < d->n_within && status == SD_OK; i++) status = sd_drafter_reserve(d->within[i]);
    return status;
}

sd_status sd_drafter_begin(sd_drafter* d, int sequence, const sd_prompt* prompt) {
    return d->begin ? d->begin(d, sequence, prompt) : SD_OK;
}

sd_status sd_drafter_read(sd_drafter* d, int* done) {
    *done = 1;
    return d->read ? d->read(d, done) : SD_OK;
}

sd_status sd_drafter_commit(sd_drafter* d, int sequence, const int32_t* tokens, int n_tokens) {
    return d->commit ? d->commit(d, sequence, tokens, n_tokens) : SD_OK;
}
