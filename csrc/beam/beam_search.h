/* Beam search, plain or speculative (Leviathan et al. 2023, appendix A.4).
 *
 * In a round the draft runs beam search of width draft_width for gamma steps from the current hypotheses. The
 * target evaluates them and all of the draft's choices, width + draft_width · gamma nodes, in one forward
 * pass. Then the target makes its own steps of width `width` while every chosen hypothesis is an evaluated
 * node (top_w(M_p) ⊆ top_u(M_q)), and one step more. So a round makes 1 to gamma + 1 steps of plain beam
 * search on the same logits: the hypotheses are equal, bit for bit. Without a draft a round is one step. */
#pragma once

#include "beam_tree.h"
#include "forward.h"

#define SD_MAX_WIDTH 1024

typedef struct sd_beam_options {
    const sd_model* target; /* borrowed; must outlive the search */
    const sd_model* draft;  /* borrowed, likewise, of the same vocabulary; NULL: plain beam search */
    int width;              /* hypotheses, 1 to SD_MAX_WIDTH */
    int draft_width;        /* width of the draft's search, `width` to SD_MAX_WIDTH */
    int gamma;              /* draft steps per round, 0 to SD_MAX_GAMMA */
    int max_new_tokens;     /* ≥ 1; limited by the context */
    /* [n_stop_ids] ids that end a hypothesis; borrowed during creation. */
    const int32_t* stop_ids;
    int n_stop_ids;
    int n_threads;
    /* [n_source] for a target with an encoder, else NULL; borrowed during creation. */
    const int32_t* source;
    int n_source;
} sd_beam_options;

/* Statistics of one round. */
typedef struct sd_beam_record {
    int n_nodes;                       /* rows of the target's forward pass */
    int n_drafted;                     /* nodes among them that the draft chose */
    int n_draft_calls;                 /* forward passes of the draft */
    int n_levels;                      /* steps made: new tokens of each continuing hypothesis */
    double draft_s, verify_s, other_s; /* seconds in the draft's forward passes, in the target's, elsewhere */
} sd_beam_record;

typedef struct sd_beam_search sd_beam_search;

/* Create a search that continues prompt [n], borrowed for the call. */
sd_status sd_beam_search_create(const sd_beam_options* options, const int32_t* prompt, int n,
                                sd_beam_search** search);
void sd_beam_search_free(sd_beam_search* search);

/* Encode the source or read one prompt slice; *done is set once target and draft have read all of it. */
sd_status sd_beam_search_prefill(sd_beam_search* search, int* done);

/* Run one round. *ended is set if no step remains, because all hypotheses have ended or reached their length;
 * *record is then unchanged. */
sd_status sd_beam_search_round(sd_beam_search* search, sd_beam_record* record, int* ended);

/* Does a draft read the prompt? */
int sd_beam_search_drafts(const sd_beam_search* search);
/* Start an unread prompt with the prefix it shares with `known`, a cached text of the target or the draft.
 * *n: prompt tokens then cached, for the target if both are one model. */
sd_status sd_beam_search_begin_with(sd_beam_search* search, const sd_cache* known, int* n);
/* The cache of the target or draft, borrowed: the prompt, and what all continuing hypotheses share. NULL,
 * with a message, for another model, or if nothing is drafted. */
const sd_cache* sd_beam_search_cache(const sd_beam_search* search, const sd_model* model);

/* Hypotheses so far [*n], best first; borrowed until the next call. */
const sd_beam* sd_beam_search_beams(const sd_beam_search* search, int* n);
/* Steps made so far: the most new tokens of a hypothesis. */
int sd_beam_search_steps(const sd_beam_search* search);
/* Write the new tokens of hypothesis `beam` to tokens [steps]; returns their number. */
int sd_beam_search_tokens(const sd_beam_search* search, int beam, int32_t* tokens);
