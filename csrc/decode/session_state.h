/* The state of a session, for the files that implement it:
 *
 *   session.c -> session_read.c                                    slots; reading of prompts
 *   session_rounds.c -> round.c -> round_parts.h -> session_read.c   rounds; their extensions */
#pragma once

#include "forward.h"
#include "session.h"

/* The tree of a sequence in a round: a chain of tokens that its constraint forces, then the drafter's
 * tree. */
typedef struct sd_joint {
    int n_forced;
    int n_shown;                 /* forced tokens that the drafter reads as text: all or none */
    int32_t* parents;            /* [max_nodes] of the drafter's tree */
    sd_distribution* drawn_from; /* [max_nodes] of the whole tree */
    double* weights; /* [gamma + 1, n_vocab] of the drafter's nodes; NULL: they are point masses */
} sd_joint;

/* The round in progress. The first n_open entries of its arrays [n_sequences], which the session's arena
 * owns, are those of the sequences in it. */
typedef struct sd_round {
    int n_open;
    int drafting; /* some sequence may have draft tokens */
    int planned;  /* gamma="auto", as in sd_record; like the next field */
    double gain;
    int turn;               /* sequence with the first claim to the remaining node budget */
    sd_proposal* proposals; /* filled by the drafter */
    sd_joint* joints;
    sd_branch* branches;     /* rows of the target's forward pass */
    int32_t* row_tokens;     /* [n_sequences, max_rows] of the branches */
    int32_t* row_parents;    /* [n_sequences, max_rows] */
    unsigned char* verified; /* [n_sequences] 1: by the team, before the sequence's turn */
    int32_t* scratch;        /* [max_nodes] rows or nodes of one sequence, within a function */
    sd_record* records;      /* of this round, within those of the call */
} sd_round;

/* Extra query rows after the last accepted node of a text. */
typedef struct sd_extra_run {
    int sequence;
    int row, n; /* first row in the forward pass, and number of rows */
} sd_extra_run;

/* Extra query tokens: after every row of a round's tree up to n rows, each the parent of the next, whose
 * inputs are a drafter's embeddings (sd_extra_queries). They attend like tree nodes at their position, and
 * only later ones of the same row attend to them. In the target's cache they are pending and never kept. */
typedef struct sd_extra_rows {
    int n;              /* after each row, at most; 0: there are none */
    sd_drafter* active; /* drafter of this round's rows; borrowed; NULL: none */
    int32_t* first;     /* [n_sequences, max_nodes + 1] first extra row after each row of a tree */
    int32_t* rows;      /* [n_sequences, n] rows whose logits the drafter observes */
    sd_extra_run* runs; /* [n_sequences] */
} sd_extra_rows;

struct sd_session {
    sd_session_options options;
    sd_drafting shape;          /* the session as drafters see it */
    sd_drafter* drafter;        /* owned; NULL: plain decoding */
    sd_workspace workspace;     /* of the target */
    sd_arena arena;             /* owns the arrays below */
    int max_nodes;              /* of a tree */
    int max_rows;               /* of a tree with its extra query tokens */
    int reads_text;             /* the drafter may read tokens that the target has not read */
    sd_sequence* sequences;     /* [n_sequences] */
    sd_cache* caches;           /* [n_sequences] of the target; each holds text[0 … n_text - 2] */
    sd_prefill* prefills;       /* [n_sequences] prompts being read into them */
    long n_begun;               /* prompts admitted so far */
    int n_missed;               /* tokens of new prompts that a paused drafter has not begun */
    double catch_up_s;          /* seconds of lazy draft prefill since the last draft */
    long n_mixtures, n_touched; /* of the workspace, before the round's forward pass */
    sd_round round;
    sd_extra_rows extra;
    sd_verifier* verifiers; /* [n_verifiers] one for each thread that verifies */
    int n_verifiers;
    sd_record* records; /* [max_records] of the rounds of a call */
    int n_records, max_records;
    int failed; /* a round has failed and left nodes in the caches; no round can follow */
    /* That failure, if its call returned the records of earlier rounds; the next call returns it. */
    sd_failure deferred;
};

/* Does a sequence take rounds? A failed one takes a last one, without computation. */
static inline int sd_sequence_is_open(const sd_sequence* q) { return q->ready && !q->finished; }

/* Set session->extra.n. Fails where a drafter's embeddings do not fit the target, or the rows of a round. */
sd_status sd_extra_begin(sd_session* session);

/* Take the arrays of session->extra from the session's arena (which may be counting). */
void sd_extra_take(sd_session* session);

/* Has gamma="auto" paused the drafter, so that it need not read new texts yet? */
int sd_session_draft_paused(const sd_session* session);

/* Begin the text of a sequence so far in `drafter`, the session's or one within it; only the first token if
 * it will not draft for it, which leaves nothing to read. Notes a failure of the sequence alone. */
sd_status sd_session_begin_draft(sd_session* session, int sequence, sd_drafter* drafter);

/* Lazy draft prefill: begin the texts that a paused drafter has missed, and read a slice of them. *ready: all
 * are read; it may draft. */
sd_status sd_session_catch_up(sd_session* session, int* ready);

/* Fail because no round can follow, with the deferred failure if there is one. */
sd_status sd_session_refuse(sd_session* session);
