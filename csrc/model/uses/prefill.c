/* Reads several prompts into caches, in order; computes common prefixes and equal sources once. */
#include "forward.h"

#include <string.h>

/* Shared tokens worth waiting for: fewer are read again, in a forward pass with others. */
#define WORTH_WAITING 16

static int being_read(const sd_prefill* prefill) { return prefill->n_read >= 0 && !sd_prefill_done(prefill); }

static int same_source(const sd_prefill* a, const sd_prefill* b) {
    return a->n_source == b->n_source &&
           (a->n_source == 0 || memcmp(a->source, b->source, (size_t)a->n_source * sizeof *a->source) == 0);
}

static int in_common(const sd_prefill* a, const sd_prefill* b) {
    if (!same_source(a, b)) return 0;
    int at = 0, n = a->n < b->n ? a->n : b->n;
    while (at < n && a->text[at] == b->text[at]) at++;
    return at;
}

/* Start a text, unless waiting for an earlier one saves more. */
static void begin(sd_cache* caches, sd_prefill* prefills, int n, int i) {
    sd_prefill* prefill = &prefills[i];
    int longest = 0;
    for (int other = 0; other < n; other++) {
        const sd_prefill* earlier = &prefills[other];
        if (!being_read(earlier) || earlier->order > prefill->order || caches[other].model != caches[i].model)
            continue;
        int common = in_common(prefill, earlier);
        if (common > longest) longest = common;
    }
    if (longest - sd_cache_known(caches, n, i, prefill->text, prefill->n) >= WORTH_WAITING) return;
    sd_cache_begin(caches, n, i, prefill->text, prefill->n);
    prefill->n_read = caches[i].n_committed;
}

/* First text after `order` that is not done; -1: none. */
static int next_text(const sd_prefill* prefills, int n, long order) {
    int next = -1;
    for (int i = 0; i < n; i++)
        if (!sd_prefill_done(&prefills[i]) && prefills[i].order > order &&
            (next < 0 || prefills[i].order < prefills[next].order))
            next = i;
    return next;
}

/* Fail one text; its cache keeps what was read. */
static void give_up(sd_cache* cache, sd_prefill* prefill, sd_status status) {
    sd_failure_note(prefill->failure, status);
    sd_cache_keep(cache, NULL, 0);
    prefill->n_read = prefill->n;
}

/* Attach text i's cache to its source: another cache may have it, else encode it and set *encoded. */
static sd_status attend(const sd_workspace* w, sd_cache* caches, const sd_prefill* prefills, int n, int i,
                        int* encoded) {
    const sd_prefill* prefill = &prefills[i];
    for (int other = 0; other < n; other++) {
        if (!sd_encoded_has_source(caches[other].encoded, prefill->source, prefill->n_source)) continue;
        sd_cache_set_source(&caches[i], caches[other].encoded);
        return SD_OK;
    }
    *encoded = 1;
    return sd_encode(&caches[i], prefill->source, prefill->n_source, w->n_threads, w->name);
}

/* Texts wait only for earlier texts being read; so if none is being read, all must be done. */
static sd_status check_done(const sd_prefill* prefills, int n) {
    for (int i = 0; i < n; i++)
        if (!sd_prefill_done(&prefills[i]))
            return sd_fail(SD_ERR_STATE, "text %d is neither read nor waiting for a text being read", i);
    return SD_OK;
}

static int rows_left(const sd_prefill* prefill) {
    return prefill->n - (prefill->n_read > 0 ? prefill->n_read : 0) + prefill->with_root;
}

/* Rows of the next slice: the fewest slices, of even lengths. */
static int fit_slice(const sd_model* model, const sd_prefill* prefills, int n) {
    int slice = sd_prompt_slice(model);
    long n_rows = 0;
    if (sd_prompts_in_slices(model)) return slice;
    for (int i = 0; i < n; i++)
        if (!sd_prefill_done(&prefills[i])) n_rows += rows_left(&prefills[i]);
    return n_rows == 0 ? slice : sd_even_share(n_rows, slice);
}

/* Does the slice of a text, not yet kept, end with its root? */
static int reads_root(const sd_branch* branch, const sd_prefill* prefill) {
    return branch->n_new > prefill->n - prefill->n_read;
}

static sd_status keep(const sd_workspace* w, const sd_branch* branch, int last_row, sd_prefill* prefill) {
    int with_root = reads_root(branch, prefill), n_kept = branch->n_new - with_root;
    SD_TRY(sd_cache_settle(branch->cache, n_kept));
    sd_cache_count_prompt(branch->cache, n_kept);
    prefill->n_read += n_kept;
    if (with_root) sd_cache_wait(branch->cache, w->hidden + (ptrdiff_t)last_row * w->model->config.d_model);
    return SD_OK;
}

/* Will a text begin with a prefix of another one that is being read? */
static int begins_later(const sd_prefill* prefill) {
    return prefill->n_read < 0 && !sd_prefill_done(prefill);
}

/* Next position of text i whose states other texts can use; more than its length: none. */
static int next_stop(const sd_cache* caches, const sd_prefill* prefills, int n, int i) {
    const sd_prefill* prefill = &prefills[i];
    const sd_model* model = caches[i].model;
    if (caches[i].n_ring == 0) return prefill->n + 1;
    int stop = sd_snapshots_stop(&caches[i].snapshots, prefill->n_read, prefill->n);
    for (int other = 0; other < n; other++) {
        if (!begins_later(&prefills[other]) || caches[other].model != model) continue;
        int common = in_common(prefill, &prefills[other]);
        if (common >= WORTH_WAITING && common > prefill->n_read && common < stop) stop = common;
    }
    if (stop <= prefill->n && sd_prompts_in_slices(model)) stop -= stop % SD_BLAS_SLICE;
    return stop > prefill->n_read ? stop : prefill->n + 1;
}

/* Encode the next source that no cache has; sets *encoded if there is one. */
static sd_status encode_next(const sd_workspace* w, sd_cache* caches, sd_prefill* prefills, int n,
                             int* encoded) {
    int first = next_text(prefills, n, -1);
    for (int i = first; i >= 0 && !*encoded; i = next_text(prefills, n, prefills[i].order)) {
        if (prefills[i].order - prefills[first].order >= n) break;
        if (prefills[i].n_read >= 0) continue;
        sd_status status = attend(w, caches, prefills, n, i, encoded);
        if (status == SD_ERR_OVERFLOW)
            give_up(&caches[i], &prefills[i], status);
        else if (status != SD_OK)
            return status;
    }
    return SD_OK;
}

/* Does the text's cache have its source, if any? */
static int has_source(const sd_cache* cache, const sd_prefill* prefill) {
    return cache->model->encoder == NULL ||
           sd_encoded_has_source(cache->encoded, prefill->source, prefill->n_source);
}

sd_status sd_prefill_slice(sd_workspace* w, sd_cache* caches, sd_prefill* prefills, int n) {
    int32_t parents[SD_MOST_SLICE]; /* the same for every chain */
    for (int i = 0; i < SD_MOST_SLICE; i++) parents[i] = i - 1;
    sd_branch branches[SD_MOST_SLICE];
    int read[SD_MOST_SLICE], finite[SD_MOST_SLICE]; /* the prefill of each branch; are its rows? */
    int stops[SD_MOST_SLICE];                       /* next_stop of each branch */
    int n_branches = 0, encoded = 0, blas = sd_prompts_in_slices(w->model);
    int most = blas ? 1 : SD_MOST_SLICE; /* texts per forward pass */
    sd_status status = SD_OK;
    if (w->model->encoder != NULL) status = encode_next(w, caches, prefills, n, &encoded);
    if (status != SD_OK || encoded) return status;
    int n_left = fit_slice(w->model, prefills, n);
    for (int i = next_text(prefills, n, -1); i >= 0 && n_left > 0 && n_branches < most;
         i = next_text(prefills, n, prefills[i].order)) {
        sd_prefill* prefill = &prefills[i];
        if (prefill->n_read < 0 && has_source(&caches[i], prefill)) begin(caches, prefills, n, i);
        if (!being_read(prefill)) continue;
        int n_here = blas ? sd_slice_length(&caches[i], rows_left(prefill)) : rows_left(prefill);
        if (n_here > n_left) n_here = n_left;
        int stop = stops[n_branches] = next_stop(caches, prefills, n, i);
        if (stop < prefill->n && n_here > stop - prefill->n_read) n_here = stop - prefill->n_read;
        sd_branch* branch = &branches[n_branches];
        *branch = SD_MAKE(sd_branch, .cache = &caches[i], .tokens = prefill->text + prefill->n_read,
                          .parents = parents, .n_new = n_here);
        branch->n_commit = n_here - reads_root(branch, prefill);
        if (sd_forward_may_end(w, &caches[i])) branch->n_stored = branch->n_commit;
        read[n_branches++] = i;
        n_left -= n_here;
    }
    if (n_branches == 0) return check_done(prefills, n);
    status = sd_forward_prompt(w, branches, n_branches);
    for (int b = 0; b < n_branches && status != SD_OK; b++)
        if (branches[b].cache->n_committed < prefills[read[b]].n_read) prefills[read[b]].n_read = -1;
    for (int b = 0, row = 0; b < n_branches && status == SD_OK; b++) {
        row += branches[b].n_new - branches[b].n_stored;
        finite[b] = w->name == NULL || sd_forward_is_finite(w, b);
        if (finite[b]) status = keep(w, &branches[b], row - 1, &prefills[read[b]]);
        if (finite[b] && prefills[read[b]].n_read == stops[b]) sd_cache_take_snapshot(branches[b].cache);
    }
    for (int b = 0; b < n_branches && status == SD_OK; b++) /* last, as it overwrites rows */
        if (!finite[b]) give_up(branches[b].cache, &prefills[read[b]], sd_forward_fail(w, b));
    return status;
}
