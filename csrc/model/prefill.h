/* Texts on their way into caches: several share a forward, and what they have in common is computed once. */
#ifndef SD_PREFILL_H
#define SD_PREFILL_H

#include "forward.h"

typedef struct sd_prefill {
    const int32_t* text; /* [n] borrowed until it is read */
    int n;
    int n_read; /* tokens in the cache; -1: not begun; n: nothing is left to do */
    /* The token behind the text, the root of a round, is read with the text's last tokens and waits for the
     * head (sd_cache_wait); not if none of the text is left to read. */
    int with_root;
    const int32_t* source; /* [n_source] of a model with an encoder; borrowed until the text is read */
    int n_source;
} sd_prefill;

static inline int sd_prefill_done(const sd_prefill* prefill) { return prefill->n_read == prefill->n; }

/* Encode a source that no cache has, or read sd_prompt_slice tokens more, at most, of the texts prefills [n],
 * the i-th into caches[i]; all caches [n] are of the workspace's
 * model or of one with the same base. A text begins with what any of them
 * has committed of its beginning; one that has much in common with a text that is just being read waits for
 * that. Texts with different sources have nothing in common. None of this changes a bit of a text. On failure
 * no cache has read anything. Tokens of several slices are divided evenly. */
sd_status sd_prefill_slice(sd_workspace* workspace, sd_cache* caches, sd_prefill* prefills, int n);

#endif
