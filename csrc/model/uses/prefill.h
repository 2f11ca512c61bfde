/* Texts on their way into caches: several share a forward, and what they have in common is computed once. */
#ifndef SD_PREFILL_H
#define SD_PREFILL_H

#include "forward.h"

typedef struct sd_prefill {
    const int32_t* text; /* [n] borrowed until it is read */
    int n;
    int n_read; /* tokens in the cache; -1: not begun; n: nothing is left to do */
    long order; /* texts are read in ascending order; no two texts of a call have the same */
    /* Of the text's own numbers that are not finite, after which nothing is left to do. Borrowed until the
     * text is read. */
    sd_failure* failure;
    /* The token behind the text, the root of a round, is read with the text's last tokens and waits for the
     * head (sd_cache_wait); not if none of the text is left to read. */
    int with_root;
    const int32_t* source; /* [n_source] of a model with an encoder; borrowed until the text is read */
    int n_source;
} sd_prefill;

static inline int sd_prefill_done(const sd_prefill* prefill) { return prefill->n_read == prefill->n; }

/* Encode a source that no cache has, or read sd_prompt_slice tokens more, at most, of the texts prefills [n],
 * the i-th into caches[i]; all caches [n] are of the workspace's model or of one with the same base.
 *
 * Texts are read in their order: a slice has the rows that are left of the first text, then those of the next
 * one, as long as there is room. A text begins with what any cache has committed of its beginning; one that
 * has much in common with an earlier text that is being read waits for that. Sources are encoded in the same
 * order, ahead of the texts, but the first text waits for at most n - 1 others'. Texts with different sources
 * have nothing in common. None of this changes a bit of a text. Tokens of several slices are divided evenly.
 *
 * A text or source whose numbers are not finite fails alone (`failure`). Any other failure is of the call; no
 * cache has read anything then. */
sd_status sd_prefill_slice(sd_workspace* workspace, sd_cache* caches, sd_prefill* prefills, int n);

#endif
