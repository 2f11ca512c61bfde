/* The one forward pass: nodes of one or several sequences in, logits out.
 *
 * A model may draft for itself by passing some of its layers by. Up to the first such layer it computes what
 * the whole model computes, so verification goes on from there with what drafting left in the cache. */
#pragma once

#include "cache.h"
#include "workspace.h"

/* Compute the new nodes of the branches and make them pending in their caches. The wanted logits lie in
 * workspace->logits, row after row in the order of branches and nodes, n_vocab of ld_logits floats each. On
 * failure no cache has changed. */
sd_status sd_forward(sd_workspace* workspace, const sd_branch* branches, int n_branches);

/* The logits after n rows [n] of the last forward that have none, counted over its branches and their nodes,
 * as sd_forward_check counts: *logits, rows of ld_logits floats in the order of `rows`, borrowed. They lie
 * behind those of the forward, and there must be room. To be asked before another forward. */
sd_status sd_forward_more_logits(sd_workspace* workspace, const int32_t* rows, int n, const float** logits);

/* Are the logits of the last sd_forward_more_logits, of these rows, finite? As sd_forward_check, if not. */
sd_status sd_forward_check_more(sd_workspace* workspace, const int32_t* rows, int n);

/* As sd_forward, of nodes that are slices of prompts. Where prompts go through OpenBLAS there is one branch:
 * a chain of as many tokens as sd_slice_length says. */
sd_status sd_forward_prompt(sd_workspace* workspace, const sd_branch* branches, int n_branches);

/* As sd_forward, past some layers: skipped [n_layer] of these bits, one at least set. The nodes stay pending,
 * to be finished; the caches keep their residual stream before the first layer that is not whole, so that
 * layers before it need not be computed again. Whatever is pending must have come the same way. */
sd_status sd_forward_skipping(sd_workspace* workspace, const unsigned char* skipped,
                              const sd_branch* branches, int n_branches);

/* As sd_forward for trees, each of all nodes that shall be pending: those that are already, to be finished,
 * go on from where they are, as far as they are the first nodes of the tree, in its order; others are
 * dropped. The bits are those of sd_forward. After a failure the nodes of the trees are pending or not. */
sd_status sd_forward_finish(sd_workspace* workspace, const sd_branch* branches, int n_branches);

/* Are rows [first, first + n) of the last forward finite, counted over its branches and their nodes: the
 * residual stream, and the logits where they were wanted? If not, SD_ERR_OVERFLOW; the message names the
 * model, the first layer whose output is not finite, for which the rows are computed again, and the position
 * where it is not. To be asked while the branches exist and the nodes of these rows are pending. There may be
 * fewer rows than n. */
sd_status sd_forward_check(sd_workspace* workspace, int first, int n);

/* Record a failure, with the message of sd_forward_check, of each branch of the last forward whose rows or
 * logits are not finite. Its logits become 0, so that sampling from them needs no special case. Rows of the
 * residual stream are overwritten. To be called when sd_forward_check may be. */
void sd_forward_settle_failures(sd_workspace* workspace);

/* Testing: forwards of this process so far, and blocks (the attention or the MLP of a layer) that rows have
 * gone through in them. */
long sd_forward_count(void);
long sd_forward_work(void);

/* After which tokens of a prompt logits are wanted. */
typedef enum sd_prompt_logits { SD_LOGITS_NONE, SD_LOGITS_LAST, SD_LOGITS_ALL } sd_prompt_logits;

/* Append tokens [n] to a cache as committed text, in slices of at most sd_prompt_slice(model); *n_done counts
 * the tokens already in, and one call computes one slice, of no more tokens than the workspace has rows of
 * logits if all are wanted. Its logits are left in workspace->logits: a row for each of its tokens, or, if
 * the prompt ends with it, n_last_logits rows of which the last is that of the last token. All rows are
 * checked if the workspace has a name. */
sd_status sd_forward_slice(sd_workspace* workspace, sd_cache* cache, const int32_t* tokens, int n,
                           int* n_done, sd_prompt_logits logits);

/* --------------------------------------------------------------- sources, through the encoder (encoder.c) */

/* Is source [n] (NULL: none is given) one that the model takes? A model with an encoder needs a source, any
 * other takes none. */
sd_status sd_encoder_check(const sd_model* model, const int32_t* source, int n);

/* Encode a source [n] for the texts of a cache, of a model with an encoder: they attend to it from then on
 * (sd_cache_attend). Ids past the encoder's vocabulary are read as its last token. name: of the model in
 * messages ("the target"); NULL: numbers that are not finite are not looked for. The call can be interrupted
 * between layers. On failure the cache is what it was. */
sd_status sd_encode(sd_cache* cache, const int32_t* source, int n, int n_threads, const char* name);

/* The encoder's output for a source [n]: out [n, d_model of the encoder] f32, borrowed. Ids, name and
 * interrupts as in sd_encode. */
sd_status sd_encoder_output(const sd_model* model, const int32_t* source, int n, int n_threads,
                            const char* name, float* out);

/* --------------------------------------------- texts on their way into caches, several in a forward */

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
