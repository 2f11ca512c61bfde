/* A session: the rounds of one batch of sequences over one target and one drafter. */
#ifndef SD_SESSION_H
#define SD_SESSION_H

#include "drafter.h"
#include "forward.h"
#include "verify.h"

typedef struct sd_prompt {
    const int32_t* tokens; /* [n] borrowed while the session is created */
    int n;                 /* ≥ 1 and below the target's context */
    sd_stream stream;      /* random numbers of this sequence */
} sd_prompt;

typedef struct sd_session_options {
    const sd_model* target; /* borrowed; must outlive the session */
    int gamma;              /* guesses a round at most, ≥ 0 */
    int max_new_tokens;     /* per sequence, ≥ 1 */
    sd_sampling sampling;   /* of the target */
    int n_threads;
} sd_session_options;

/* What one round did for one sequence. Valid until the next round. */
typedef struct sd_record {
    int sequence;
    sd_tree tree;         /* the drafter's guesses; borrowed */
    sd_verdict verdict;   /* borrowed */
    ptrdiff_t logits_row; /* row of node 0 in the session's logits; node i lies i rows further */
} sd_record;

typedef struct sd_session sd_session;

/* Create a session for n prompts. The session owns `drafter` (NULL: plain decoding) from the call
 * on, also when the call fails. */
sd_status sd_session_create(const sd_session_options* options, const sd_prompt* prompts, int n,
                            sd_drafter* drafter, sd_session** session);
void sd_session_free(sd_session* session);

/* Run one slice of one prompt; *done is set when all prompts are in. Must come before the rounds. */
sd_status sd_session_prefill(sd_session* session, int* done);

/* One round for every unfinished sequence: draft, verify, commit. */
sd_status sd_session_round(sd_session* session);

/* Records of the last round [*n], in the order of sequences; borrowed. */
const sd_record* sd_session_records(const sd_session* session, int* n);
/* Logits of the last round [rows, stride] f32; borrowed. */
const float* sd_session_logits(const sd_session* session, ptrdiff_t* stride);
/* Seconds the last round spent drafting, in the target's forward, and elsewhere. */
void sd_session_times(const sd_session* session, double* draft_s, double* verify_s, double* other_s);

/* Take no more rounds for a sequence. */
sd_status sd_session_finish(sd_session* session, int sequence);

#endif
