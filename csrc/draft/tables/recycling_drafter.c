/* Token recycling: a tree of the most probable next tokens, updated from every row of the target. */
#include "tables.h"

#include <stddef.h>
#include <string.h>

#include "interrupt.h"

static _Atomic int32_t* row_of(const sd_token_matrix* m, int32_t token) {
    return m->rows + (ptrdiff_t)token * m->k;
}

int32_t sd_token_matrix_at(const sd_token_matrix* m, int32_t token, int rank) {
    return rank < m->k ? atomic_load_explicit(row_of(m, token) + rank, memory_order_relaxed) : -1;
}

void sd_token_matrix_set(const sd_token_matrix* m, int32_t token, const float* logits) {
    int32_t best[SD_TOKEN_MATRIX_MAX_K];
    int n = 0;
    for (int32_t i = 0; i < m->n_vocab; i++) {
        if (n == m->k && !(logits[i] > logits[best[n - 1]])) continue;
        int at = n < m->k ? n++ : n - 1;
        for (; at > 0 && logits[i] > logits[best[at - 1]]; at--) best[at] = best[at - 1];
        best[at] = i;
    }
    for (int rank = 0; rank < m->k; rank++)
        atomic_store_explicit(row_of(m, token) + rank, rank < n ? best[rank] : -1, memory_order_relaxed);
}

typedef struct recycling_drafter {
    sd_drafter base; /* must stay first */
    const sd_token_matrix* matrix;
    sd_shape shape;
    double* chances; /* [matrix->k] */
    int32_t* nodes;  /* [shape.n_nodes + 1] the proposal's node of each node of the shape; -1: none */
} recycling_drafter;

/* Append the token of a rank after a node; -1 if there is none, no capacity for it, or it does not pay. */
static int draft_token(const recycling_drafter* d, sd_proposal* p, int parent, int rank) {
    if (parent < 0 || !sd_proposal_has_capacity(p, parent)) return -1;
    int32_t token = sd_token_matrix_at(d->matrix, p->tree.tokens[parent], rank);
    if (token < 0 || !sd_proposal_allows(p, parent, token) ||
        !sd_proposal_worth_verifying(p, parent, d->chances[rank]))
        return -1;
    return sd_proposal_add_point(p, parent, token, d->chances[rank]);
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    recycling_drafter* d = (recycling_drafter*)base;
    d->nodes[0] = 0;
    for (int i = 0; i < n; i++)
        for (int at = 0; at <= d->shape.n_nodes; at++)
            for (int rank = 0; rank < d->shape.n_children[at]; rank++)
                d->nodes[d->shape.first_child[at] + rank] = draft_token(d, &proposals[i], d->nodes[at], rank);
    return SD_OK;
}

static sd_status observe(sd_drafter* base, const sd_proposal* p, const int32_t* node_rows,
                         const float* logits, ptrdiff_t stride) {
    const recycling_drafter* d = (const recycling_drafter*)base;
    for (int i = 0; i < p->tree.n_nodes; i++) {
        SD_TRY(sd_interrupted());
        sd_token_matrix_set(d->matrix, p->tree.tokens[i], logits + node_rows[i] * stride);
    }
    return SD_OK;
}

static void lay_out(recycling_drafter* d, const sd_recycling_options* o, int gamma) {
    d->shape = sd_shape_take(&d->base.arena, &o->shape, gamma);
    d->chances = sd_arena_copy(&d->base.arena, o->chances, d->matrix->k, sizeof *d->chances);
    d->nodes = sd_arena_take(&d->base.arena, (size_t)d->shape.n_nodes + 1, sizeof *d->nodes);
}

sd_status sd_recycling_drafter_create(const sd_drafting* drafting, const sd_recycling_options* options,
                                      sd_drafter** drafter) {
    const sd_token_matrix* m = options->matrix;
    SD_TRY(sd_shape_check(&options->shape));
    if (m->n_vocab != drafting->n_vocab)
        return sd_fail(SD_ERR_VALUE, "the draft has %d tokens and the target %d, expected one vocabulary",
                       m->n_vocab, drafting->n_vocab);
    for (int rank = 0; rank < m->k; rank++)
        if (!(options->chances[rank] >= 0.0 && options->chances[rank] <= 1.0))
            return sd_fail(SD_ERR_VALUE, "chances[%d] is %g, expected 0 to 1", rank, options->chances[rank]);
    SD_NEW(recycling_drafter, d);
    d->matrix = m;
    d->base = (sd_drafter){.points = 1, .propose = propose, .observe = observe, .free = sd_drafter_release};
    sd_status status = SD_ARENA_BUILD(&d->base.arena, lay_out(d, options, drafting->gamma));
    d->base.tree_type = d->shape.most_children > 1 ? SD_TREE_ANY : SD_TREE_CHAINS;
    if (status == SD_OK && d->shape.most_children > m->k)
        status = sd_fail(SD_ERR_VALUE, "a node of the tree has %d children, expected at most %d",
                         d->shape.most_children, m->k);
    return sd_drafter_made(&d->base, status, drafter);
}
