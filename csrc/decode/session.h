/* A session: the rounds of one batch of sequences over one target and one drafter.
 *
 * Each sequence has a batch slot: when its text has ended, another prompt may take the slot, with its own
 * settings. Slots may be empty, and texts continue between the slices in which a new prompt is read. Prefixes
 * that prompts share are computed once. */
#pragma once

#include "adaptive_gamma.h"
#include "drafter.h"
#include "forward.h"
#include "logprobs.h"
#include "sequence.h"

typedef struct sd_session_options {
    const sd_model* target; /* borrowed; must outlive the session */
    int gamma;              /* most draft tokens of any sequence in a round, ≥ 0 */
    int n_slots;            /* sequences decoded at once, ≥ 1 */
    /* Tokens of the longest text, prompt and new, from 1 to the target's context. */
    int n_text;
    /* Most rows of the target in a round, of all sequences together; each sequence gets one for its root. 0:
     * no limit but gamma. */
    int node_budget;
    /* Upper bound of all sequences' settings; borrowed for the call. NULL: any settings, with at most n_top
     * top tokens. */
    const sd_settings* settings;
    int n_top;
    /* With settings: sequences have constraints. */
    int constrained;
    int n_threads;
    /* gamma="auto": chooses the number of draft tokens of each round, up to gamma, and learns. Borrowed; must
     * outlive the session. NULL: gamma draft tokens in each round. */
    sd_adaptive_gamma* adaptive_gamma;
} sd_session_options;

/* Record of one round of one sequence. Valid until the next call. */
typedef struct sd_record {
    int sequence;
    const sd_settings* settings; /* its settings; borrowed */
    int complete;                /* the text has ended because its constraint is complete */
    /* Not SD_OK: the sequence has failed in this round, by its own settings or numbers, and ended without new
     * tokens. */
    sd_status status;
    const char* message; /* message of that failure; borrowed until the slot has another prompt */
    /* Draft tokens: those that the constraint forces, then the drafter's; borrowed. */
    sd_tree tree;
    sd_verdict verdict; /* borrowed */
    /* Of the accepted tokens and the target's own; borrowed. */
    sd_logprobs logprobs;
    /* Row of node 0 in the logits of its round; node i has row logits_row + node_rows[i]. */
    ptrdiff_t logits_row;
    int first_row;      /* the same among all rows of the round, extra ones too */
    int32_t* node_rows; /* [tree.n_nodes] row of each node (tree.h); borrowed */
    /* [tree.n_nodes] index of the drafter of each node; borrowed. Set if the sequence has a prediction. */
    int32_t* origins;
    int n_rows; /* rows of the target's forward pass, extra ones too */
    /* Experts that a mixture layer has read for the whole batch, on average; 0 without such layers. */
    double experts;
    /* gamma="auto": the number of draft tokens with the highest expected speed, -1 while the drafter is
     * paused; and that speed relative to plain decoding. Without gamma="auto" 0. */
    int planned;
    double gain;
    /* Seconds of the round in the draft's forward passes, in the target's, and elsewhere, for the whole
     * batch. */
    double draft_s, verify_s, other_s;
} sd_record;

typedef struct sd_session sd_session;

/* Check the options, as sd_session_create does; call it before creating a drafter. */
sd_status sd_session_check(const sd_session_options* options);

/* The session as its drafter sees it; the options have been checked. */
sd_drafting sd_session_drafting(const sd_session_options* options);

/* Create a session whose slots are empty. Takes ownership of `drafter` (NULL: plain decoding), also when the
 * call fails. */
sd_status sd_session_create(const sd_session_options* options, sd_drafter* drafter, sd_session** session);
void sd_session_free(sd_session* session);

/* Read one slice of prompts, in order of admission, with the target or the drafter; *done is set when all
 * prompts have been read. A sequence takes rounds once its own prompt has been read; they may come between
 * slices. A sequence whose numbers overflow is not read further and ends with its next round, whose
 * record has the failure. A call without enough memory for a drafter that was paused may be repeated. */
sd_status sd_session_prefill(sd_session* session, int* done);

/* Has the prompt of a sequence (from 0, below the number of slots) been read? */
int sd_session_is_ready(const sd_session* session, int sequence);

/* Run rounds (draft, verify, commit) for every unfinished sequence whose prompt has been read. Runs one
 * round, then more until `seconds` have passed: several rounds per call spread the cost of returning to
 * Python. If a model's numbers make a later round fail, the call returns the records of the earlier rounds,
 * and the next call returns the error. SD_ERR_CALLBACK, of a drafter, and SD_ERR_INTERRUPTED are returned at
 * once; the records of the call are lost. After any error, also if a paused drafter gets no memory, the
 * session runs no more rounds. A sequence that cannot be verified, by its own settings, transform or numbers,
 * ends alone: its record has the failure. With `until_end` the call stops after a round in which a sequence
 * ends. gammas [slots] limits the draft tokens of each sequence further; a sequence with a negative one takes
 * no rounds in this call. NULL: no limits. */
sd_status sd_session_rounds(sd_session* session, double seconds, int until_end, const int32_t* gammas);

/* Records [*n] of the last call's rounds, each round in the order of sequences; borrowed. */
const sd_record* sd_session_records(const sd_session* session, int* n);

/* Logits of the last round [rows, stride] f32; borrowed. */
const float* sd_session_logits(const sd_session* session, ptrdiff_t* stride);

/* Copy the prefix that an unread prompt shares with `known`, a cache of the sequence's model or of the
 * draft's model with the prompt's source; sd_session_prefill reads the rest. *n: tokens of the prompt that
 * this model has then. */
sd_status sd_session_begin_with(sd_session* session, int sequence, const sd_cache* known, int* n);

/* Let later prompts take snapshots of the states of models without attention in some layers (snapshots.h): at
 * most `most` of a text and a model, and max_bytes. Other texts can then begin with a part of such a text. */
void sd_session_keep_snapshots(sd_session* session, int most, size_t max_bytes);

/* The cache of a sequence's text, without the last tokens, of the sequence's model or the draft's, whichever
 * `model` is; borrowed, valid until the next call. Until that model begins to read the text, the cache has
 * the previous text of the slot. NULL, with a message, if there is no such sequence or model. */
const sd_cache* sd_session_cache(const sd_session* session, int sequence, const sd_model* model);

/* The session's drafter; borrowed. NULL: plain decoding. */
sd_drafter* sd_session_drafter(const sd_session* session);

/* Begin all texts so far in another drafter, created for this session to replace one within the session's.
 * sd_session_prefill must follow before the next round, to let it read them. On failure nothing else has
 * changed. */
sd_status sd_session_begin_drafter(sd_session* session, sd_drafter* drafter);

/* Take no more rounds for a sequence, and read no more of its prompt. */
sd_status sd_session_finish(sd_session* session, int sequence);

/* Does the session fit sequences with these settings, and can the rule verify what is drafted? Reads only
 * constants. */
sd_status sd_session_check_settings(const sd_session* session, const sd_settings* settings);

/* Give an empty slot, or that of a finished sequence, to a prompt, whose text and settings must fit; what the
 * settings point to must outlive the sequence. Allocates nothing except for an adapter that needs more memory
 * than earlier ones. The settings of the slot's previous sequence are no longer used. */
sd_status sd_session_admit(sd_session* session, int sequence, const sd_prompt* prompt);

/* The rule that verifies the draft tokens of an admitted sequence, never SD_RULE_AUTO. */
sd_rule sd_session_rule(const sd_session* session, int sequence);
