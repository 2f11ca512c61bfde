#include "prefill.h"

/* Tokens in common that are worth waiting for: fewer are read again, with others in the same forward. */
#define WORTH_WAITING 16

static int being_read(const sd_prefill* prefill) { return prefill->n_read >= 0 && !sd_prefill_done(prefill); }

static int in_common(const sd_prefill* a, const sd_prefill* b) {
    int at = 0, n = a->n < b->n ? a->n : b->n;
    while (at < n && a->text[at] == b->text[at]) at++;
    return at;
}

/* Begin a text, unless it had better wait. */
static void begin(sd_cache* caches, sd_prefill* prefills, int n, int i) {
    sd_prefill* prefill = &prefills[i];
    int longest = 0;
    for (int other = 0; other < n; other++) {
        if (!being_read(&prefills[other])) continue;
        int common = in_common(prefill, &prefills[other]);
        if (common > longest) longest = common;
    }
    if (longest - sd_cache_known(caches, n, prefill->text, prefill->n) >= WORTH_WAITING) return;
    sd_cache_begin(caches, n, i, prefill->text, prefill->n);
    prefill->n_read = caches[i].n_committed;
}

/* A text waits only for a text that is being read; so where none is being read, all are done. */
static sd_status check_done(const sd_prefill* prefills, int n) {
    for (int i = 0; i < n; i++)
        if (!sd_prefill_done(&prefills[i]))
            return sd_fail(SD_ERR_STATE, "text %d is not read and waits for no text that is being read", i);
    return SD_OK;
}

sd_status sd_prefill_slice(sd_workspace* w, sd_cache* caches, sd_prefill* prefills, int n) {
    int32_t parents[SD_PROMPT_SLICE], path[SD_PROMPT_SLICE]; /* of every chain the same */
    for (int i = 0; i < SD_PROMPT_SLICE; i++) parents[i] = i - 1, path[i] = i;
    sd_branch branches[SD_PROMPT_SLICE];
    int read[SD_PROMPT_SLICE]; /* the prefill of each branch */
    int n_branches = 0, room = SD_PROMPT_SLICE;
    for (int i = 0; i < n && room > 0; i++) {
        sd_prefill* prefill = &prefills[i];
        if (prefill->n_read < 0) begin(caches, prefills, n, i);
        if (!being_read(prefill)) continue;
        int left = prefill->n - prefill->n_read, n_here = left < room ? left : room;
        branches[n_branches] = (sd_branch){&caches[i], prefill->text + prefill->n_read, parents, n_here, 0};
        read[n_branches++] = i;
        room -= n_here;
    }
    if (n_branches == 0) return check_done(prefills, n);
    sd_status status = sd_forward(w, branches, n_branches);
    if (status == SD_OK && w->name && (status = sd_forward_check(w, 0, SD_PROMPT_SLICE)) != SD_OK)
        for (int b = 0; b < n_branches; b++) sd_cache_keep(branches[b].cache, NULL, 0);
    for (int b = 0; b < n_branches && status == SD_OK; b++) {
        status = sd_cache_keep(branches[b].cache, path, branches[b].n_new);
        prefills[read[b]].n_read += branches[b].n_new;
    }
    return status;
}
