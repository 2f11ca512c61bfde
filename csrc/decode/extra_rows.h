/* Extra query tokens in the rounds of a session: rows appended to the rows of its trees, and their logits.
 *
 * After every row of a tree follow up to n rows, each the parent of the next, whose inputs are a drafter's
 * embeddings (sd_extra_queries). They attend to what a node in their place would attend to, and only later
 * ones of the same row attend to them. In the target's cache they are pending and never kept. */
#ifndef SD_EXTRA_ROWS_H
#define SD_EXTRA_ROWS_H

#include "drafter.h"
#include "forward.h"

/* Extra rows after the last accepted node of a text. */
typedef struct sd_extra_run {
    int sequence;
    int n_text; /* with the root of the next round */
    int row, n; /* the first of them in the forward, and their number */
} sd_extra_run;

/* Arrays are owned by the arena that they were taken from. */
typedef struct sd_extra_rows {
    int n;              /* after each row, at most; 0: there are none */
    int max_nodes;      /* of a tree */
    sd_drafter* active; /* whose rows this round has; borrowed; NULL: nobody's */
    int32_t* first;     /* [n_sequences, max_nodes + 1] where those after each row of a tree begin */
    int32_t* rows;      /* [n_sequences, n] rows of the forward whose logits the drafter observes */
    sd_extra_run* runs; /* [n_sequences] */
} sd_extra_rows;

/* Set extra->n to what a drafter (NULL: none) appends for n_sequences texts. Fails where its embeddings do
 * not fit the target, or the rows of a round (node_budget; 0: no limit). */
sd_status sd_extra_rows_begin(sd_extra_rows* extra, sd_drafter* drafter, const sd_config* target,
                              int n_sequences, int node_budget);

/* Take the arrays from the arena (which may be counting); n and max_nodes are set. */
void sd_extra_rows_take(sd_extra_rows* extra, sd_arena* arena, int n_sequences);

/* Append up to n_each extra rows to each of the n_rows rows of tree i: tokens and parents have room for
 * n_rows · (1 + n_each). depth: most draft tokens in a row; a row whose draft token the text has no room for
 * is left out. Returns the number of all rows. */
int sd_extra_rows_append(const sd_extra_rows* extra, int i, int n_each, int n_rows, int depth,
                         int32_t* tokens, int32_t* parents);

/* The extra rows after row `row` of tree i, whose own rows begin at first_row of the forward. */
sd_extra_run sd_extra_rows_after(const sd_extra_rows* extra, int i, int row, int first_row);

/* Compute the logits of the first n_runs runs and pass them to the active drafter. */
sd_status sd_extra_rows_observe(const sd_extra_rows* extra, sd_workspace* forward, int n_runs);

#endif
