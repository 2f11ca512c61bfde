/* A session: the rounds of one batch of sequences over one target and one drafter.
 *
 * Each sequence has a batch slot: when its text has ended, another prompt may take the slot. The beginnings
 * that prompts share are computed once. */
#ifndef SD_SESSION_H
#define SD_SESSION_H

#include "adaptive_gamma.h"
#include "drafter.h"
#include "prefill.h"
#include "sequence.h"
#include "token_laws.h"

typedef struct sd_session_options {
    /* Borrowed; must outlive the session. */
    const sd_model* target;
    /* Most guesses of a sequence in a round, ≥ 0. */
    int gamma;
    /* Of each sequence, ≥ 1. */
    int max_new_tokens;
    /* Room for texts, in tokens, where prompts of sd_session_replace need more than the first prompts; 0: the
     * room that the first prompts need. */
    int n_text;
    /* Most rows of the target in a round, of all sequences together; each sequence gets one for its root. 0:
     * no limit but gamma. */
    int node_budget;
    /* How the target judges guesses. The session makes of its rule what sd_rule_at says. */
    sd_verifier_options verify;
    /* What records say of each new token. */
    sd_token_laws_options laws;
    /* [n_stop_ids] a sequence ends with the round that gives one; borrowed while the session is created. */
    const int32_t* stop_ids;
    int n_stop_ids;
    int n_threads;
    /* gamma="auto": chooses the guesses of each round, up to gamma, and learns. Borrowed; must outlive the
     * session. NULL: gamma guesses in each round. */
    sd_adaptive_gamma* adaptive_gamma;
} sd_session_options;

/* What one round did for one sequence. Valid until the next call. */
typedef struct sd_record {
    int sequence;
    /* The drafter's guesses; borrowed. */
    sd_tree tree;
    /* Borrowed. */
    sd_verdict verdict;
    /* Of the tokens of the accepted path and of the target's own; borrowed. */
    sd_token_laws laws;
    /* Row of node 0 in the logits of its round; node i has row logits_row + node_rows[i]. */
    ptrdiff_t logits_row;
    /* The same among all rows of the round, riders too. */
    int first_row;
    /* [tree.n_nodes] the row of each node (tree.h); borrowed. */
    int32_t* node_rows;
    /* Rows that the target was run on, riders too. */
    int n_rows;
    /* Experts that a layer with experts has read for the whole batch, on average; 0 without such layers. */
    double experts;
    /* Seconds of the round in the draft's forward passes, in the target's, and elsewhere; of the whole
     * batch. */
    double draft_s, verify_s, other_s;
} sd_record;

typedef struct sd_session sd_session;

/* Check options and prompts. sd_session_create does this too; call it before when a drafter is made before
 * the session. */
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
 * because of the numbers of a model or a setting, the call returns the records of the rounds before, and the
 * next call returns the error. SD_ERR_CALLBACK is returned at once; the records of its call are lost. With
 * `until_end` the call stops after a round in which a sequence ends. gammas [n prompts] limits the guesses of
 * each sequence; NULL: the options' gamma is the only limit. */
sd_status sd_session_rounds(sd_session* session, double seconds, int until_end, const int32_t* gammas);

/* Records of the last call's rounds [*n], each round's in the order of sequences; borrowed. */
const sd_record* sd_session_records(const sd_session* session, int* n);
/* What records say of each new token; borrowed. */
const sd_token_laws_options* sd_session_laws(const sd_session* session);

/* Logits of the last round [rows, stride] f32; borrowed. */
const float* sd_session_logits(const sd_session* session, ptrdiff_t* stride);

/* Let a prompt that has not begun to be read begin with what `known`, a cache of the target or of the model
 * that drafts, has of it, if it has the prompt's source: that is copied, and sd_session_prefill reads the
 * rest. *n: how many of the prompt's tokens that model has then. */
sd_status sd_session_begin_with(sd_session* session, int sequence, const sd_cache* known, int* n);

/* The cache of a sequence with its text, but for the last tokens, as the target has read it or the model that
 * drafts, whichever `model` is; borrowed, valid until the next call. NULL if there is no such sequence or
 * model, with a message. */
const sd_cache* sd_session_cache(const sd_session* session, int sequence, const sd_model* model);

/* The session's drafter; borrowed. NULL: plain decoding. */
sd_drafter* sd_session_drafter(const sd_session* session);

/* Tell another drafter, made for this session, of the texts so far, so that it may take the place of one
 * within the session's. sd_session_prefill, which lets it read them, must come before the next round.
 * Nothing else has changed if this fails. */
sd_status sd_session_tell(sd_session* session, sd_drafter* drafter);

/* Take no more rounds for a sequence. */
sd_status sd_session_finish(sd_session* session, int sequence);

/* Give the batch slot of a finished sequence to another prompt, whose text must fit. Nothing is allocated. */
sd_status sd_session_replace(sd_session* session, int sequence, const sd_prompt* prompt);

#endif
