/* What the target said after a token when it last read it drafts: token recycling (Luo et al. 2024, arXiv
 * 2408.08696).
 *
 * A matrix has the most promising next tokens of every token. A tree of a given shape is filled with them
 * from the root down: child number r of a node is the token of rank r behind the node's. After each round the
 * rows of all nodes' tokens are replaced by what the target said after the nodes, of those too that were not
 * accepted. */
#ifndef SD_RECYCLING_DRAFTER_H
#define SD_RECYCLING_DRAFTER_H

#include "shape.h"
#include "token_matrix.h"

typedef struct sd_recycling_options {
    /* Of the target's vocabulary; borrowed, must outlive the drafter. */
    const sd_token_matrix* matrix;
    sd_shape_options shape; /* A tree */
    /* [matrix->k] how often the token of each rank comes, in [0, 1]; borrowed while the drafter is made. */
    const double* chances;
} sd_recycling_options;

/* Create a drafter. Owned by the caller, who hands it to a session. */
sd_status sd_recycling_drafter_create(const sd_drafting* drafting, const sd_recycling_options* options,
                                      sd_drafter** drafter);

#endif
