/* A session: the rounds of one batch of sequences over one target and one drafter.
 *
 * A sequence is a slot: when its text has ended, another prompt may take its place. What slots have in
 * common at their beginnings is computed once. */
#ifndef SD_SESSION_H
#define SD_SESSION_H

#include "drafter.h"
#include "prefill.h"
#include "adaptive_gamma.h"
#include "sequence.h"
#include "verifier.h"

typedef struct sd_session_options {
    const sd_model* target;   /* borrowed; must outlive the session */
    int gamma;                /* guesses a round at most, ≥ 0 */
    int max_new_tokens;       /* per sequence, ≥ 1 */
    int n_text;               /* tokens that a text may have, where prompts to come need more than the
                               * first; 0: what those need */
    int node_budget;          /* rows of the target a round at most, all sequences together; each has its
                               * root. 0: gamma is the only bound */
    sd_adjustment adjustment; /* of the target's logits; its arrays must outlive the session */
    sd_sampling sampling;     /* of the target */
    sd_transform transform;
    sd_rule rule; /* as sd_rule_at has it */
    double lenience;
    const int32_t* stop_ids; /* [n_stop_ids] a sequence ends with the round that gives one; borrowed
                              * while the session is created */
    int n_stop_ids;
    int n_threads;
    sd_adaptive_gamma*
        policy; /* gamma chooses itself; it learns. Borrowed, must outlive the session. NULL: gamma it is */
} sd_session_options;

/* What one round did for one sequence. Valid until the next call. */
typedef struct sd_record {
    int sequence;
    sd_tree tree;         /* the drafter's guesses; borrowed */
    sd_verdict verdict;   /* borrowed */
    ptrdiff_t logits_row; /* row of node 0 in the logits of its round; node i lies node_rows[i] rows further */
    int32_t* node_rows;      /* [tree.n_nodes] where each node stands (tree.h); borrowed */
    int n_rows;         /* rows that the target was run on */
    /* Seconds the round spent in the draft's forward, in the target's, and elsewhere; of the batch. */
    double draft_s, verify_s, other_s;
} sd_record;

typedef struct sd_session sd_session;

/* Are options and prompts what a session can be made of? sd_session_create asks itself; whoever makes a
 * drafter first asks before. */
sd_status sd_session_check(const sd_session_options* options, const sd_prompt* prompts, int n);

/* Tokens that the longest text of a session for n prompts may have: the `n_text` of drafters. */
int sd_session_text_room(const sd_session_options* options, const sd_prompt* prompts, int n);

/* Create a session for n prompts. The session owns `drafter` (NULL: plain decoding) from the call
 * on, also when the call fails. */
sd_status sd_session_create(const sd_session_options* options, const sd_prompt* prompts, int n,
                            sd_drafter* drafter, sd_session** session);
void sd_session_free(sd_session* session);

/* Run one slice of the prompts; *done is set when all prompts are in. Must come before the rounds, and
 * again after a prompt was replaced. */
sd_status sd_session_prefill(sd_session* session, int* done);

/* Rounds for every unfinished sequence: draft, verify, commit. Runs one round, then more until `seconds` have
 * passed: several rounds in a call spread the cost of returning to Python. If a later round of the call fails
 * because of the numbers of a model or a setting, the call returns the records of the rounds before, and the next
 * call returns the error. SD_ERR_CALLBACK is returned at once; the records of its call are lost. With `until_end`
 * the call stops after a round in which a sequence ends. gammas [n prompts] limits the guesses of each sequence;
 * NULL: the options' gamma is the only limit. */
sd_status sd_session_rounds(sd_session* session, double seconds, int until_end, const int32_t* gammas);

/* Records of the last call's rounds [*n], each round's in the order of sequences; borrowed. */
const sd_record* sd_session_records(const sd_session* session, int* n);
/* Logits of the last round [rows, stride] f32; borrowed. */
const float* sd_session_logits(const sd_session* session, ptrdiff_t* stride);

/* Take no more rounds for a sequence. */
sd_status sd_session_finish(sd_session* session, int sequence);

/* Give the place of a finished sequence to another prompt, whose text must fit. Nothing is allocated. */
sd_status sd_session_replace(sd_session* session, int sequence, const sd_prompt* prompt);

#endif
