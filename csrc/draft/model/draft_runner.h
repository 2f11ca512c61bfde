/* Runs the model that drafts: it keeps a cache for each sequence of a session, follows the texts, and reads
 * the nodes of proposals.
 *
 * The target drafts for itself past some of its layers in the session's own caches, which hold the text
 * already: what it computes there as the whole model would is not computed again when the guesses are
 * verified. */
#ifndef SD_DRAFT_RUNNER_H
#define SD_DRAFT_RUNNER_H

#include "drafter.h"
#include "prefill.h"

typedef struct sd_draft_runner_options {
    const sd_model* model; /* borrowed; must outlive the runner */
    int n_vocab;           /* ids of the target; the model may have others behind the tokens of both */
    int n_sequences;
    int n_text; /* tokens of the longest text */
    int gamma;  /* guesses a round at most */
    int n_rows; /* nodes of one sequence that are read at once, at most */
    int n_threads;
    int has_sources; /* prompts come with sources. A model with an encoder reads them, another has no use for
                      * them */
    const unsigned char* skipped; /* [n_layer] what the target passes by (forward.h), borrowed; must outlive
                                   * the runner. NULL: this is another model, with caches of its own */
} sd_draft_runner_options;

typedef struct sd_draft_runner {
    sd_draft_runner_options options;
    sd_workspace workspace; /* its logits are those of the last sd_draft_runner_run */
    sd_arena arena;         /* owns the arrays below */
    sd_cache* caches;       /* [n_sequences] its own; of none for the target */
    sd_prefill* prefills;   /* [n_sequences] the prompts on their way into them; text NULL: there is none */
    int32_t* pending;       /* [n_sequences, gamma + 1] where the cache holds a node of the proposal */
    sd_branch* branches;    /* [n_sequences] */
    int32_t *tokens, *parents; /* [n_sequences, row_room] of the nodes of one run */
    int row_room;
    unsigned char* reads; /* [n_sequences] the model has room for the source of the sequence */
} sd_draft_runner;

/* Nodes of one proposal that are to be read: their parents have been, or stand before them. */
typedef struct sd_draft_nodes {
    sd_proposal* proposal;
    const int32_t* nodes; /* [n_nodes] borrowed */
    int n_nodes;
} sd_draft_nodes;

/* The runner owns its memory; after a failure too it is to be freed. */
sd_status sd_draft_runner_create(sd_draft_runner* runner, const sd_draft_runner_options* options);
void sd_draft_runner_free(sd_draft_runner* runner);

/* begin and read of drafters: be told of a prompt; read the next slice of all that have begun. A prompt is
 * not read where the model's context has no room for it, or its encoder for the source. */
void sd_draft_runner_begin(sd_draft_runner* runner, int sequence, const sd_prompt* prompt);
sd_status sd_draft_runner_prefill(sd_draft_runner* runner, int* done);

/* Before a sequence's first run of a round: bring its cache to the text but for the last tokens,
 * which are read with the root. Lessens the proposal's depth to what the model's context has room for. The
 * target refuses a proposal whose cache is not its own with all of the text but for the root. */
sd_status sd_draft_runner_follow(sd_draft_runner* runner, sd_proposal* proposal);

/* Read nodes of n proposals, parents before their children; the logits of the nodes are rows of
 * workspace.logits, in order. All of them are finite: SD_ERR_OVERFLOW if not. */
sd_status sd_draft_runner_run(sd_draft_runner* runner, const sd_draft_nodes* batch, int n);

/* Let `duplicate`, which has the same tokens from the root as `node`, count as read like `node`. */
void sd_draft_runner_share(sd_draft_runner* runner, const sd_proposal* proposal, int32_t duplicate,
                           int32_t node);

#endif
