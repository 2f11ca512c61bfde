/* A session: the rounds of one batch of sequences over one target and one drafter.
 *
 * Each sequence has a batch slot: when its text has ended, another prompt may take the slot, with its own
 * settings. Slots may be empty, and texts go on between the slices in which a new prompt is read. The
 * beginnings that prompts share are computed once. */
#pragma once

#include "adaptive_gamma.h"
#include "drafter.h"
#include "forward.h"
#include "logprobs.h"
#include "sequence.h"

typedef struct sd_session_options {
    const sd_model* target; /* borrowed; must outlive the session */
    int gamma;              /* most guesses of any sequence in a round, ≥ 0 */
    int n_slots;            /* sequences decoded at once, ≥ 1 */
    /* Tokens of the longest text, prompt and new, from 1 to the target's context. */
    int n_text;
    /* Most rows of the target in a round, of all sequences together; each sequence gets one for its root. 0:
     * no limit but gamma. */
    int node_budget;
    /* Settings whose needs every sequence's settings stay within; borrowed for the call. NULL: any settings
     * fit, with n_top most probable tokens at most. */
    const sd_settings* settings;
    int n_top;
    /* With settings: the texts have constraints. */
    int constrained;
    int n_threads;
    /* gamma="auto": chooses the guesses of each round, up to gamma, and learns. Borrowed; must outlive the
     * session. NULL: gamma guesses in each round. */
    sd_adaptive_gamma* adaptive_gamma;
} sd_session_options;

/* What one round did for one sequence. Valid until the next call. */
typedef struct sd_record {
    int sequence;
    const sd_settings* settings; /* its settings; borrowed */
    int complete;                /* the text has ended because its form is complete */
    /* Other than SD_OK: the sequence has failed in this round, by its own settings or numbers, and has ended.
     * It has no new tokens then. */
    sd_status status;
    const char* message; /* what has failed; borrowed until the slot has another prompt */
    /* What was guessed: tokens that the form of the text forces, then the drafter's; borrowed. */
    sd_tree tree;
    sd_verdict verdict; /* borrowed */
    /* Of the tokens of the accepted path and of the target's own; borrowed. */
    sd_logprobs logprobs;
    /* Row of node 0 in the logits of its round; node i has row logits_row + node_rows[i]. */
    ptrdiff_t logits_row;
    int first_row;      /* the same among all rows of the round, extra ones too */
    int32_t* node_rows; /* [tree.n_nodes] the row of each node (tree.h); borrowed */
    /* [tree.n_nodes] which drafter of several a node is of; borrowed. Set where the sequence has a
     * prediction. */
    int32_t* origins;
    int n_rows; /* rows that the target was run on, extra ones too */
    /* Experts that a layer with experts has read for the whole batch, on average; 0 without such layers. */
    double experts;
    /* Seconds of the round in the draft's forward passes, in the target's, and elsewhere; of the whole
     * batch. */
    double draft_s, verify_s, other_s;
} sd_record;

typedef struct sd_session sd_session;

/* Check the options. sd_session_create does this too; call it before when a drafter is made before the
 * session. */
sd_status sd_session_check(const sd_session_options* options);

/* What the drafter of a session is told; the options have been checked. */
sd_drafting sd_session_drafting(const sd_session_options* options);

/* Create a session whose slots are empty. It owns `drafter` (NULL: plain decoding) from the call on, also
 * when the call fails. */
sd_status sd_session_create(const sd_session_options* options, sd_drafter* drafter, sd_session** session);
void sd_session_free(sd_session* session);

/* Read one slice of prompts, in the order in which they came, with the target or with what drafts; *done is
 * set when all prompts are in. A sequence takes rounds when its own prompt is in; they may come between
 * slices. One whose own numbers are not finite is not read further and ends with its next round, whose record
 * says why. A call that had too little memory for a drafter that had rested may be repeated. */
sd_status sd_session_prefill(sd_session* session, int* done);

/* Is the prompt of a sequence, from 0 to the number of slots, in? */
int sd_session_is_ready(const sd_session* session, int sequence);

/* Rounds for every unfinished sequence whose prompt is in: draft, verify, commit. Runs one round, then more
 * until `seconds` have passed: several rounds in a call spread the cost of returning to Python. If a later
 * round of the call fails because of the numbers of a model, the call returns the records of the rounds
 * before, and the next call returns the error. SD_ERR_CALLBACK, of a drafter, and SD_ERR_INTERRUPTED are
 * returned at once; the records of the call are lost. A sequence that cannot be verified, by its own
 * settings, transform or numbers, ends alone: its record says why. With `until_end` the call stops after a
 * round in which a sequence ends. gammas [slots] limits the guesses of each sequence further, and a
 * sequence with a negative one takes no rounds in this call; NULL: it does neither. */
sd_status sd_session_rounds(sd_session* session, double seconds, int until_end, const int32_t* gammas);

/* Records of the last call's rounds [*n], each round's in the order of sequences; borrowed. */
const sd_record* sd_session_records(const sd_session* session, int* n);

/* Logits of the last round [rows, stride] f32; borrowed. */
const float* sd_session_logits(const sd_session* session, ptrdiff_t* stride);

/* Let a prompt that has not begun to be read begin with what `known`, a cache of the text's model or of that
 * which drafts, has of it, if it has the prompt's source: that is copied, and sd_session_prefill reads the
 * rest. *n: how many of the prompt's tokens that model has then. */
sd_status sd_session_begin_with(sd_session* session, int sequence, const sd_cache* known, int* n);

/* The cache of a sequence with its text, but for the last tokens, as the model of its text has read it or the
 * model that drafts, whichever `model` is; borrowed, valid until the next call. Until that model has begun to
 * read the text, the cache has the one before in its slot. NULL if there is no such sequence or model, with a
 * message. */
const sd_cache* sd_session_cache(const sd_session* session, int sequence, const sd_model* model);

/* The session's drafter; borrowed. NULL: plain decoding. */
sd_drafter* sd_session_drafter(const sd_session* session);

/* Tell another drafter, made for this session, of the texts so far, so that it may take the place of one
 * within the session's. sd_session_prefill, which lets it read them, must come before the next round.
 * Nothing else has changed if this fails. */
sd_status sd_session_begin_drafter(sd_session* session, sd_drafter* drafter);

/* Take no more rounds for a sequence, and read no more of its prompt. */
sd_status sd_session_finish(sd_session* session, int sequence);

/* Does the session have room for sequences with these settings, and can the rule judge what is drafted? Reads
 * only what never changes. */
sd_status sd_session_check_settings(const sd_session* session, const sd_settings* settings);

/* Give an empty slot, or that of a finished sequence, to a prompt, whose text and settings must fit; what the
 * settings point to must outlive the sequence. Nothing is allocated but room for an adapter that needs more
 * than those before it. What the settings of the sequence before point to is no longer needed. */
sd_status sd_session_admit(sd_session* session, int sequence, const sd_prompt* prompt);
