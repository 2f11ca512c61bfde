/* What a session is made of, for the files that it is written in: session.c and session_rounds.c. */
#ifndef SD_SESSION_STATE_H
#define SD_SESSION_STATE_H

#include "riding.h"
#include "session.h"

/* The tree of a round: tokens that the form of the text forces, one after the other, and behind the last of
 * them what the drafter has proposed. */
typedef struct sd_joint {
    int n_forced;
    int n_shown;                 /* of them those that the drafter is shown as text: all or none */
    int32_t* parents;            /* [max_nodes] of the drafter's tree */
    sd_distribution* drawn_from; /* [max_nodes] of the whole tree */
    double* weights; /* [gamma + 1, n_vocab] of the drafter's nodes; NULL: they are point masses */
} sd_joint;

struct sd_session {
    sd_session_options options;
    sd_drafter* drafter;    /* owned; NULL: plain decoding */
    sd_workspace workspace; /* of the target */
    sd_arena arena;         /* owns the arrays below */
    int n_sequences, max_nodes, n_text;
    int draws, couples; /* settings that sequences may have (sd_drafting) */
    int max_forced;     /* tokens of a round that the form of a text forces, beside gamma guesses */
    int extends;        /* the drafter may be shown a text that goes on with them */
    int n_top;          /* most probable tokens that records have room for */
    int max_rows;       /* of a sequence: max_nodes with their riders */
    int failed;         /* a round has failed and left nodes in the caches: no round can follow */
    /* Status and message of the failed round, if its call returned the records of earlier rounds instead; the
     * next call returns them. */
    sd_status untold;
    char message[SD_MESSAGE_SIZE];
    int turn;               /* which open sequence has the first claim to what is left of the node budget */
    sd_sequence* sequences; /* [n_sequences] */
    sd_cache* caches;       /* [n_sequences] of the target; each holds text[0 … n_text - 2] */
    sd_prefill* prefills;   /* [n_sequences] the prompts on their way into them */
    sd_proposal*
        proposals;        /* [n_sequences] of the sequences in a round, first n_open: what the drafter sees */
    sd_joint* joints;     /* [n_sequences] by proposal */
    sd_branch* branches;  /* [n_sequences] */
    int32_t* row_tokens;  /* [n_sequences, max_rows] of the rows that the target is run on */
    int32_t* row_parents; /* [n_sequences, max_rows] */
    sd_riding riding;
    sd_ride* rides; /* [n_sequences] of the open texts in a round */
    int n_open;
    long n_begun;       /* prompts so far */
    int n_missed;       /* tokens of new prompts that a drafter which rests is not told of */
    int drafting;       /* some sequence may guess in this round */
    double waking_s;    /* seconds of reading what the drafter was told of late, since it drafted last */
    sd_record* records; /* [max_records] of the rounds of a call; the last n_open are of this round */
    int n_records, max_records;
    sd_verifier verifier;
    int32_t* kept; /* [max_nodes] the root and the accepted path of a sequence */
};

/* Tell a drafter that has rested of the texts that it has not been told of, and let it read a slice of them,
 * for which it gets its memory. *awake: it has read them all, so that it may draft. */
sd_status sd_session_wake(sd_session* session, int* awake);

/* What is said when no round can follow. */
sd_status sd_session_refuse(sd_session* session);

#endif
