/* Beam search, plain or by speculation (Leviathan et al. 2023, appendix A.4).
 *
 * A round: the draft runs beam search of width draft_width for gamma steps from the present
 * hypotheses; the target evaluates them and all that the draft chose, width + draft_width · gamma
 * nodes, in one forward; then the target's own steps of width `width` are made for as long as every
 * hypothesis they choose is a node the target has evaluated (top_w(M_p) ⊆ top_u(M_q)), and one step
 * more. So a round makes 1 to gamma + 1 of the steps that plain beam search makes, each on the same
 * logits, and the hypotheses are the same, bit for bit. Without a draft a round is one step. */
#pragma once

#include "beam_tree.h"
#include "forward.h"

#define SD_MAX_WIDTH 1024

typedef struct sd_beam_options {
    const sd_model* target;  /* borrowed; must outlive the search */
    const sd_model* draft;   /* borrowed, likewise, of the same vocabulary; NULL: plain beam search */
    int width;               /* hypotheses, 1 to SD_MAX_WIDTH */
    int draft_width;         /* of the draft's search, width to SD_MAX_WIDTH */
    int gamma;               /* steps of the draft a round, 0 to SD_MAX_GAMMA */
    int max_new_tokens;      /* ≥ 1; the context may hold fewer */
    const int32_t* stop_ids; /* [n_stop_ids] a hypothesis ends with one of these; borrowed while the
                              * search is created */
    int n_stop_ids;
    int n_threads;
    /* [n_source] of a target with an encoder; borrowed while the search is created; NULL: there is none. */
    const int32_t* source;
    int n_source;
} sd_beam_options;

/* What one round did. */
typedef struct sd_beam_record {
    int n_nodes;                       /* rows of the target's forward */
    int n_drafted;                     /* of them, nodes that the draft chose */
    int n_draft_calls;                 /* forward passes of the draft */
    int n_levels;                      /* steps made: new tokens of each hypothesis that goes on */
    double draft_s, verify_s, other_s; /* seconds in the draft's forward, in the target's, elsewhere */
} sd_beam_record;

typedef struct sd_beam_search sd_beam_search;

/* A search that continues prompt [n], borrowed for the call. */
sd_status sd_beam_search_create(const sd_beam_options* options, const int32_t* prompt, int n,
                                sd_beam_search** search);
void sd_beam_search_free(sd_beam_search* search);

/* Encode the source, or read one slice of the prompt; *done is set when target and draft have all of it. */
sd_status sd_beam_search_prefill(sd_beam_search* search, int* done);

/* One round; *ended is set when there is none to make, because all hypotheses have ended or have
 * their length, and then *record is left as it was. */
sd_status sd_beam_search_round(sd_beam_search* search, sd_beam_record* record, int* ended);

/* Does a draft read the prompt? */
int sd_beam_search_drafts(const sd_beam_search* search);
/* Begin the prompt, which is not read yet, with what `known`, a text of the target or of the draft, has of
 * it. *n gets the tokens of the prompt that are there then, of the target if both are one. */
sd_status sd_beam_search_begin_with(sd_beam_search* search, const sd_cache* known, int* n);
/* The cache of the target or of the draft, borrowed: the prompt, and what all hypotheses that go on have in
 * common. NULL, with a message, for another model, or where nothing is drafted. */
const sd_cache* sd_beam_search_cache(const sd_beam_search* search, const sd_model* model);

/* The hypotheses so far [*n], best first; borrowed, valid until the next call. */
const sd_beam* sd_beam_search_beams(const sd_beam_search* search, int* n);
/* New tokens of a hypothesis at most: steps made so far. */
int sd_beam_search_steps(const sd_beam_search* search);
/* Write the new tokens of hypothesis `beam` to tokens [steps]; returns how many they are. */
int sd_beam_search_tokens(const sd_beam_search* search, int beam, int32_t* tokens);
