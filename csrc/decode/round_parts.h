/* A round (round.c) and its extensions, one file each (part_*.c), by the point of the round that calls them.
 * Each does nothing unless its feature is in use. */
#pragma once

#include "session_state.h"

/* Run the round that session->round describes: its sequences, and how much each may draft. Its records are
 * appended to those of the call. */
sd_status sd_round_run(sd_session* session);

/* ------------------------------------------------------------- the round itself (round_records.c) */

/* Set up the target's forward pass: the rows of all trees of the round. */
void sd_round_fill_branches(sd_session* session);

/* Pass the drafter the target's logits after its draft tokens for sequence i. */
sd_status sd_round_observe(const sd_session* session, int i);

/* Tree and logits of sequence i, to be verified by the caller or in its team. */
sd_verification sd_round_verification(sd_session* session, int i, int in_team);

/* Is a failure confined to one sequence (settings, numbers, user callback)? */
static inline int sd_failure_is_own(sd_status status) {
    return status == SD_ERR_CALLBACK || status == SD_ERR_SETTING || status == SD_ERR_OVERFLOW;
}

/* End sequence i, which has failed: its record has no new tokens, and the others continue. */
sd_status sd_round_end_by(sd_session* session, int i, sd_status status);

/* Times (sd_now) of a round: its start, the ends of proposing and of the target's forward pass, its end. */
typedef struct sd_round_times {
    double begun, drafted, forwarded, ended;
} sd_round_times;
void sd_round_note(sd_session* session, const sd_round_times* times);

/* ---------------------------------------------------------------- before_draft (session_rounds.c) */

/* gamma="auto": set *gamma to 0 if a round of n_open sequences should not draft. A drafter that was paused
 * first reads what it has missed, in slices between rounds that do not draft. */
sd_status sd_adaptive_before_draft(sd_session* session, int n_open, int* gamma);

/* gamma="auto": may the sequence with index i in the round have draft tokens? In a trial a share may. */
int sd_adaptive_asks(const sd_session* session, int i);

/* Constraint: write the forced tokens after the text, and divide the depth of proposal i, of at most `gamma`
 * draft tokens, between them and the drafter. Sets p->depth and p->budget (of both together). */
void sd_forced_before_draft(const sd_session* session, int i, int gamma);

/* Constraint: give the drafter its part of the round's tree, now that the budget is final. */
void sd_forced_open_tree(const sd_session* session, int i);

/* --------------------------------------------------------------------------------- after_propose */

/* Constraint: put the forced tokens before the drafter's tree, in the record of sequence i. */
void sd_forced_after_propose(const sd_session* session, int i);

/* Extra query tokens: find the drafter that has them in this round. */
void sd_extra_after_propose(sd_session* session);

/* Extra query tokens: append them to the *n_rows rows of tree i; tokens and parents have room for max_rows.
 * Rows that would lie past the end of the text are left out. A sequence that may not draft gets none: its
 * next draft would depend on the rest of the batch. Returns their embeddings; NULL: the round has none. */
const float* sd_extra_append(const sd_session* session, int i, int* n_rows, int32_t* tokens,
                             int32_t* parents);

/* ---------------------------------------------------------------------------------- after_verify */

/* Constraint: if it completes at an accepted draft token, truncate the verdict there. */
void sd_constraint_after_verify(const sd_verification* verification, sd_record* record);

/* Log-probabilities: see sd_logprobs_fill (logprobs.h). */

/* ---------------------------------------------------------------------------------- after_commit */

/* Constraint: find the tokens that may follow each new text; end complete texts. */
void sd_constraint_after_commit(sd_session* session);

/* Extra query tokens: pass the drafter the logits of those after the last accepted node of each text. */
sd_status sd_extra_after_commit(sd_session* session);

/* gamma="auto": learn from the verdicts and seconds of the round, those of proposing and of all else. */
void sd_adaptive_after_commit(sd_session* session, double draft_s, double rest_s);
