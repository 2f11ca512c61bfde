/* The interface of a drafting method: begin, propose, commit, free.
 *
 * A drafter serves all sequences of one session. It may guess as it likes: the output's
 * distribution is the target's for every drafter (appendix A.1). */
#ifndef SD_DRAFTER_H
#define SD_DRAFTER_H

#include "rng.h"
#include "tree.h"

/* The longest chain a round may ask for. */
#define SD_MAX_GAMMA 1024

static inline sd_status sd_gamma_check(int gamma) {
    if (gamma >= 0 && gamma <= SD_MAX_GAMMA) return SD_OK;
    return sd_fail(SD_ERR_VALUE, "gamma is %d, expected 0 to %d", gamma, SD_MAX_GAMMA);
}

/* One sequence's part of a round. */
typedef struct sd_proposal {
    int sequence;        /* index in the session */
    const int32_t* text; /* [n_text] all tokens so far; text[n_text - 1] is the root. Borrowed. */
    int n_text;
    int budget;       /* guesses wanted at most, ≥ 0 */
    sd_stream stream; /* random numbers of this sequence */
    sd_tree tree;     /* out: node 0 is set; room for budget more nodes, and each of their
                             * drawn_from has room for [n_vocab] weights */
} sd_proposal;

typedef struct sd_drafter sd_drafter;

struct sd_drafter {
    double other_s; /* of the last propose: seconds that were not the draft's forward passes */
    /* Read the next part of a sequence's prompt; *done is set when all of it is in. */
    sd_status (*begin)(sd_drafter* self, int sequence, const int32_t* prompt, int n_prompt, int* done);
    /* Fill the trees of n proposals, each of another sequence. */
    sd_status (*propose)(sd_drafter* self, sd_proposal* proposals, int n);
    /* The tree nodes path [n_path] (root not counted) of the last proposal were accepted. */
    sd_status (*commit)(sd_drafter* self, int sequence, const int32_t* path, int n_path);
    void (*free)(sd_drafter* self); /* NULL is not allowed */
};

#endif
