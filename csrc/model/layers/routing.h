/* Routing of the rows of a pass to experts, with their weights (mixture.c). */
#pragma once

#include <stdint.h>

#include "weights.h"

/* Rows of a pass that go through one expert. All pointers are borrowed. */
typedef struct sd_expert_rows {
    const sd_mlp* mlp;
    int n_rows;
    const int32_t* rows;  /* [n_rows] ascending */
    const float* weights; /* [n_rows] factors of the expert's output for these rows */
    const void* input;    /* n_rows rows of d_model, prepared */
    void* activated;      /* n_rows rows of mlp->width, prepared */
    int first_group;      /* groups of panels of earlier experts */
} sd_expert_rows;

/* Routing of one layer, and its scratch: borrowed from the arena that it was taken from. */
typedef struct sd_routing {
    /* Experts with rows; the shared one among them; groups of panels of all. */
    int n_touched, n_shared, n_groups;
    sd_expert_rows* touched; /* [n_touched] experts ascending, the shared one last */
    float* logits;           /* [max_rows, ld_logits] of the router; the caller writes them */
    ptrdiff_t ld_logits;     /* floats */
    void* input;             /* max_rows rows of d_model, prepared for a product in f32 */
    int32_t* chosen;         /* [max_rows, n_chosen] experts of each row, ascending */
    float* chosen_weights;   /* [max_rows, n_chosen] */
    int32_t* starts;         /* [n_experts] */
    /* Rows of the touched experts, one expert after the other: max_rows · n_chosen, and max_rows of the
     * shared expert */
    int32_t* rows;
    float* weights;
    char *inputs, *activated; /* prepared; the shared expert's inputs belong to the caller */
} sd_routing;

/* Insert x[first .. end), each plus its correction (NULL: none), into the n so far among the k largest:
 * chosen [k], descending, lower index on ties. NaN is larger than nothing. Returns the new n. */
int sd_insert_largest(const float* x, const float* correction, int first, int end, int k, int n,
                      int32_t* chosen);

/* Take scratch for passes of up to max_rows rows from the arena (which may be counting); zeros for a model
 * without experts. */
sd_routing sd_routing_take(sd_arena* arena, const sd_config* config, int max_rows);

/* Choose experts and weights from the logits of rows [first, end), which are overwritten. Rows are
 * independent. */
void sd_routing_choose(const sd_routing* routing, const sd_config* config, const sd_layer* layer, int first,
                       int end);

/* Group the n_rows rows of a pass by expert; input: these rows, prepared, for the shared expert. The caller
 * prepares the inputs of the others. */
void sd_routing_group(sd_routing* routing, const sd_config* config, const sd_layer* layer, int n_rows,
                      const void* input);
