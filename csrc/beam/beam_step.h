/* One step of beam search: of hypotheses and all their continuations, the best ones. Pure. */
#ifndef SD_BEAM_STEP_H
#define SD_BEAM_STEP_H

#include <stddef.h>
#include <stdint.h>

/* A hypothesis, as the step that chose it knows it. */
typedef struct sd_beam {
    double score;    /* Σ ln p of its new tokens at temperature 1 */
    int32_t token;   /* the last one; -1: it had ended before this step, which left it as it was */
    int parent;      /* the hypothesis that it continues, among those of the step before */
    int ended;       /* a stop id was reached: it is not continued */
    int node;        /* the caller's: node of its last token in a tree; -1: none */
    int parent_node; /* the caller's: node of the token before; -1: it is committed text */
} sd_beam;

/* Ids that end a hypothesis. */
typedef struct sd_stop_ids {
    const int32_t* ids; /* [n] borrowed */
    int n;
} sd_stop_ids;

/* The `width` best among the continuations of beams [n] by one token and the ended ones themselves,
 * best first: higher score, then the lower hypothesis, then the lower token id. Logits after a
 * hypothesis that has not ended lie in row (node - first_node) of logits [rows, ld] f32, n_vocab a
 * row. Fills next [width], which is not `beams`, and returns how many there are: fewer than width
 * where there are fewer continuations, 0 where some logits are not finite numbers. node and parent_node
 * are not set. */
int sd_beam_step(const sd_beam* beams, int n, const float* logits, ptrdiff_t ld, int first_node, int n_vocab,
                 sd_stop_ids stop, int width, sd_beam* next);

#endif
