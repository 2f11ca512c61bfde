/* The forward pass: nodes of one or more sequences in, logits out.
 *
 * A model may draft for itself by skipping some of its layers. Before the first skipped layer it computes
 * what the whole model computes, so verification continues from there with what drafting left in the
 * cache. */
#pragma once

#include "cache.h"
#include "workspace.h"

/* Compute the new nodes of the branches and make them pending in their caches. The wanted logits are in
 * workspace->logits, one row after another in the order of branches and nodes, n_vocab of ld_logits floats
 * each. On failure no cache has changed, except that rows to be committed (n_commit) may have cost a cache
 * with layers without attention its text. */
sd_status sd_forward(sd_workspace* workspace, const sd_branch* branches, int n_branches);

/* Compute logits after n rows [n] of the last forward pass that have none, numbered over its branches and
 * their nodes as in sd_forward_check. *logits: rows of ld_logits floats in the order of `rows`, borrowed;
 * they are stored after those of the pass, and must fit there. Call it before the next forward pass. */
sd_status sd_forward_more_logits(sd_workspace* workspace, const int32_t* rows, int n, const float** logits);

/* Check that the logits of the last sd_forward_more_logits, of these rows, are finite; fails like
 * sd_forward_check. */
sd_status sd_forward_check_more(sd_workspace* workspace, const int32_t* rows, int n);

/* Like sd_forward, for nodes that are slices of prompts. If OpenBLAS multiplies prompts there is one branch:
 * a chain of sd_slice_length tokens. */
sd_status sd_forward_prompt(sd_workspace* workspace, const sd_branch* branches, int n_branches);

/* May nodes of this prompt end in the last layer with keys, if nothing reads their rows or logits later? */
int sd_forward_may_end(const sd_workspace* workspace, const sd_cache* cache);

/* Like sd_forward, without some layers: skipped [n_layer] has skip bits, at least one set. The nodes stay
 * pending, to be finished; the caches keep their residual stream before the first incomplete layer, so
 * earlier layers need not be recomputed. All pending nodes must have skipped the same layers. */
sd_status sd_forward_skipping(sd_workspace* workspace, const unsigned char* skipped,
                              const sd_branch* branches, int n_branches);

/* Like sd_forward, for trees with all nodes that are to be pending. Nodes already pending continue from where
 * they are if they are the first nodes of the tree, in order; others are dropped. The bits are those of
 * sd_forward. After a failure the trees' nodes may or may not be pending. */
sd_status sd_forward_finish(sd_workspace* workspace, const sd_branch* branches, int n_branches);

/* Are the numbers of a branch of the last forward pass finite: the residual stream, before the last layer for
 * rows that ended in it, and the wanted logits? */
int sd_forward_is_finite(const sd_workspace* workspace, int branch);

/* Fail like sd_forward_check for a branch that is not finite. Overwrites rows of the residual stream, and may
 * be called when sd_forward_check may. */
sd_status sd_forward_fail(sd_workspace* workspace, int branch);

/* Check that rows [first, first + n) of the last forward pass, numbered over its branches and their nodes,
 * are finite: the residual stream and the wanted logits. If not, SD_ERR_OVERFLOW; the message names the
 * model, the first layer with a non-finite output, for which the rows are recomputed, and the position. Call
 * it while the branches exist and these nodes are pending. There may be fewer rows than n. */
sd_status sd_forward_check(sd_workspace* workspace, int first, int n);

/* Is row `row` of a branch of the last forward pass finite, with its logits? Any thread may ask. */
int sd_forward_row_is_finite(const sd_workspace* workspace, int branch, int row);

/* Record a failure, with the message of sd_forward_check, in each branch of the last forward pass with
 * non-finite rows or logits. Its logits become 0, so sampling from them needs no special case. Overwrites
 * rows of the residual stream. Call it when sd_forward_check may be called. */
void sd_forward_settle_failures(sd_workspace* workspace);

/* Testing: forward passes of this process so far, and the blocks (a layer's attention or MLP) that rows have
 * passed in them. */
long sd_forward_count(void);
long sd_forward_work(void);

/* Tokens of a prompt after which logits are wanted. */
typedef enum sd_prompt_logits { SD_LOGITS_NONE, SD_LOGITS_LAST, SD_LOGITS_ALL } sd_prompt_logits;

/* Append tokens [n] to a cache as committed text, in slices of at most sd_prompt_slice(model). *n_done counts
 * the tokens already read; one call computes one slice, of no more tokens than the workspace has rows of
 * logits if all logits are wanted. They are left in workspace->logits: a row per token or, if the prompt ends
 * with the slice, n_last_logits rows, the last of them for the last token. All rows are checked if the
 * workspace has a name. After a failure the cache has the text from before the call. In a model with layers
 * without attention it may have only a part, up to a snapshot, or none. *n_done then counts what is left. */
sd_status sd_forward_slice(sd_workspace* workspace, sd_cache* cache, const int32_t* tokens, int n,
                           int* n_done, sd_prompt_logits logits);

/* --------------------------------------------------------------- sources, through the encoder (encoder.c) */

/* Check source [n] (NULL: none): a model with an encoder needs one, any other takes none. */
sd_status sd_encoder_check(const sd_model* model, const int32_t* source, int n);

/* Encode source [n] for the texts of a cache, which attend to it from then on (sd_cache_set_source). Ids past
 * the encoder's vocabulary are read as its last token. name: of the model in messages ("the target"); NULL:
 * non-finite numbers are not looked for. The call can be interrupted between layers. On failure the cache is
 * unchanged. */
sd_status sd_encode(sd_cache* cache, const int32_t* source, int n, int n_threads, const char* name);

/* Compute the encoder's output for source [n]: out [n, d_model of the encoder] f32, borrowed. Ids, name and
 * interruption as in sd_encode. */
sd_status sd_encoder_output(const sd_model* model, const int32_t* source, int n, int n_threads,
                            const char* name, float* out);

/* ------------------------------------------------------------- prefill of several texts in a forward pass */

typedef struct sd_prefill {
    const int32_t* text; /* [n] borrowed until it is read */
    int n;
    int n_read; /* tokens in the cache; -1: not started; n: done */
    long order; /* texts are read in ascending order of this; no two of a call are equal */
    /* Set if the text's own numbers are not finite; nothing remains to do then. Borrowed until the text is
     * read. */
    sd_failure* failure;
    /* Read the token after the text, the root of a round, with the text's last tokens; it then waits for the
     * head (sd_cache_wait). Has no effect if no text is left to read. */
    int with_root;
    const int32_t* source; /* [n_source] of a model with an encoder; borrowed until the text is read */
    int n_source;
} sd_prefill;

static inline int sd_prefill_done(const sd_prefill* prefill) { return prefill->n_read == prefill->n; }

/* Encode one source that no cache has, or read up to sd_prompt_slice more tokens of the texts prefills [n],
 * the i-th into caches[i]. All caches [n] belong to the workspace's model or to one with the same base.
 *
 * Texts are read in order: a slice has the remaining rows of the first text, then of the next, while they
 * fit. A text starts with the prefix that any cache has committed; a text that shares much with an earlier
 * one still being read waits for it. Sources are encoded in the same order, before the texts, but the first
 * text waits for at most n - 1 other sources. Texts with different sources share nothing. None of this
 * changes a bit of a text. Tokens of several slices are divided evenly.
 *
 * A text or source with non-finite numbers fails alone (`failure`). Any other failure is the call's; no cache
 * has read anything then, and texts in a model with layers without attention may start again. */
sd_status sd_prefill_slice(sd_workspace* workspace, sd_cache* caches, sd_prefill* prefills, int n);
