/* What rides in the rounds of a session: rows behind those of its trees, and what the target says of them. */
#ifndef SD_RIDING_H
#define SD_RIDING_H

#include "drafter.h"
#include "forward.h"

/* Arrays belong to the arena that they were taken from. */
typedef struct sd_riding {
    int n;          /* behind a row, at most; 0: nothing rides */
    int max_nodes;  /* of a tree */
    int32_t* first; /* [n_sequences, max_nodes + 1] where those behind each row of a tree begin */
    int32_t* rows;  /* [n_sequences, n] rows of the forward that the drafter is told of */
} sd_riding;

/* What rides behind the last accepted node of a text. */
typedef struct sd_ride {
    int sequence;
    int n_text; /* with the root of the next round */
    int row, n; /* the first of them in the forward, and how many they are */
} sd_ride;

/* riding->n: what rides for a drafter (NULL: none) of n_sequences texts. Fails where it does not fit the
 * target, or the rows of a round (node_budget; 0: no limit). */
sd_status sd_riding_begin(sd_riding* riding, sd_drafter* drafter, const sd_config* target, int n_sequences,
                          int node_budget);

/* Take the arrays from the arena (which may be counting); n and max_nodes are set. */
void sd_riding_take(sd_riding* riding, sd_arena* arena, int n_sequences);

/* sd_riders_append for tree i of a round, whose beginnings are kept. */
int sd_riding_append(const sd_riding* riding, int i, const sd_riders* riders, int n_rows, int depth,
                     int32_t* tokens, int32_t* parents);

/* What rides behind row `row` of tree i, whose own rows begin at first_row of the forward. */
sd_ride sd_riding_behind(const sd_riding* riding, int i, int row, int first_row);

/* Tell the drafter what the target says after what rode for some texts; all pointers borrowed. */
sd_status sd_riding_tell(const sd_riding* riding, sd_drafter* rider, sd_workspace* forward,
                         const sd_ride* rides, int n_rides);

#endif
