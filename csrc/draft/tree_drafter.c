#include "tree_drafter.h"

#include "clock.h"
#include "interrupt.h"

sd_status sd_shape_check(const sd_shape_options* o) {
    if (o->n_chains < 0 || (o->n_chains == 0 && o->n_nodes < 1))
        return sd_fail(SD_ERR_VALUE,
                       "the shape has %d chains and %d nodes, expected at least one chain or node",
                       o->n_chains, o->n_nodes);
    for (int i = 0; o->n_chains == 0 && i < o->n_nodes; i++) {
        int low = i == 0 ? 0 : o->parents[i - 1];
        SD_FAIL_IF(o->parents[i] < low || o->parents[i] > i, SD_ERR_VALUE,
                   "the parent of node %d is %d, expected %d to %d", i + 1, (int)o->parents[i], low, i);
    }
    return SD_OK;
}

static int32_t parent_of(const sd_shape_options* o, int node) {
    if (o->n_chains == 0) return o->parents[node - 1];
    return node <= o->n_chains ? 0 : node - o->n_chains;
}

sd_shape sd_shape_take(sd_arena* arena, const sd_shape_options* o, int gamma) {
    sd_shape s = {.n_nodes = o->n_chains > 0 || o->n_nodes > gamma ? gamma : o->n_nodes, .how = o->how};
    s.n_children = sd_arena_take(arena, (size_t)s.n_nodes + 1, sizeof *s.n_children);
    s.first_child = sd_arena_take(arena, (size_t)s.n_nodes + 1, sizeof *s.first_child);
    /* a level ends where a node's parent is the first node of its own level or a later one */
    int level = 1, n_siblings = 0, n_parents = 0, last = -1;
    s.n_levels = s.n_nodes > 0;
    for (int node = 1; node <= s.n_nodes; node++) {
        int32_t parent = parent_of(o, node);
        if (parent >= level) level = node, n_parents = 0, s.n_levels++;
        if (parent != last) n_siblings = 0, n_parents++;
        last = parent;
        n_siblings++;
        if (n_siblings > s.most_children) s.most_children = n_siblings;
        if (n_parents > s.widest) s.widest = n_parents;
        if (arena->base == NULL) continue;
        if (n_siblings == 1) s.first_child[parent] = node;
        s.n_children[parent] = n_siblings;
    }
    return s;
}

typedef struct parent {
    int32_t shape_node; /* its node in the shape */
    int32_t row;        /* its row of logits */
} parent;

typedef struct draft {
    /* [n_nodes + 1] by node of the shape: the proposal's node, -1 if it was not drawn */
    int32_t* nodes;
    /* [n_nodes + 1] by node of the proposal: the first with the same tokens from the root */
    int32_t* duplicates;
    int32_t* reads; /* [widest] nodes read in this step */
    /* [widest] nodes that get children in this step */
    parent* parents;
    int n_reads, n_parents;
    int first, end; /* the shape's nodes of this level */
} draft;

typedef struct tree_drafter {
    sd_predicting base; /* must stay first */
    sd_shape shape;
    sd_child_sampler children;
    draft* drafts;         /* [n_sequences] by proposal */
    sd_draft_nodes* batch; /* [n_sequences] of the sequences still drafting in this step */
    int* batch_proposals;  /* [n_sequences] the proposal of each entry of `batch` */
} tree_drafter;

static void lay_out(tree_drafter* d, const sd_drafting* drafting, const sd_shape_options* shape) {
    sd_arena* arena = &d->base.drafter.arena;
    size_t n = (size_t)drafting->n_sequences;
    d->shape = sd_shape_take(arena, shape, drafting->gamma);
    size_t nodes = (size_t)d->shape.n_nodes + 1, widest = (size_t)d->shape.widest;
    d->children = sd_child_sampler_take(arena, drafting, d->shape.most_children, 1.0);
    d->drafts = sd_arena_take(arena, n, sizeof *d->drafts);
    d->batch = sd_arena_take(arena, n, sizeof *d->batch);
    d->batch_proposals = sd_arena_take(arena, n, sizeof *d->batch_proposals);
    for (size_t i = 0; i < n; i++) {
        const draft one = SD_MAKE(draft, .nodes = sd_arena_take(arena, nodes, sizeof *one.nodes),
                                  .duplicates = sd_arena_take(arena, nodes, sizeof *one.duplicates),
                                  .reads = sd_arena_take(arena, widest, sizeof *one.reads),
                                  .parents = sd_arena_take(arena, widest, sizeof *one.parents));
        if (arena->base != NULL) d->drafts[i] = one;
    }
}

/* The first node read in this step with the tokens of `node` from the root; or itself. */
static int32_t duplicate_of(const draft* f, const sd_tree* tree, int32_t node) {
    for (int i = 0; i < f->n_reads && node > 0; i++) {
        int32_t other = f->reads[i];
        if (tree->tokens[other] == tree->tokens[node] &&
            f->duplicates[tree->parents[other]] == f->duplicates[tree->parents[node]])
            return other;
    }
    return node;
}

/* Collect the nodes of this level that get children, and so are read: as far as the budget allows, equal ones
 * once. */
static void collect(const tree_drafter* d, const sd_proposal* p, draft* f) {
    int n_free = p->budget + 1 - p->tree.n_nodes;
    f->n_reads = f->n_parents = 0;
    for (int s = f->first; s < f->end && n_free > 0; s++) {
        int32_t node = f->nodes[s];
        if (d->shape.n_children[s] == 0 || node < 0 || !sd_proposal_may_draft(p, node)) continue;
        n_free -= d->shape.n_children[s];
        int32_t read = duplicate_of(f, &p->tree, node);
        f->duplicates[node] = read;
        int row = 0;
        if (read == node)
            f->reads[row = f->n_reads++] = node;
        else
            while (f->reads[row] != read) row++;
        f->parents[f->n_parents++] = (parent){s, row};
    }
}

/* Add children to the collected nodes; logits: from the first row of this proposal on. */
static sd_status grow(tree_drafter* d, sd_proposal* p, draft* f, const float* logits) {
    const sd_shape* shape = &d->shape;
    int end = f->end; /* of the level below */
    for (int s = f->first; s < f->end; s++) {
        for (int c = 0; c < shape->n_children[s]; c++) f->nodes[shape->first_child[s] + c] = -1;
        end += shape->n_children[s];
    }
    for (int i = 0; i < f->n_parents; i++) {
        SD_TRY(sd_interrupted());
        const parent* from = &f->parents[i];
        int s = from->shape_node, first = p->tree.n_nodes;
        int n = sd_child_sampler_draw(&d->children, p, f->nodes[s],
                                      logits + from->row * d->base.predictor->ld_logits, shape->how,
                                      shape->n_children[s]);
        for (int c = 0; c < n; c++) f->nodes[shape->first_child[s] + c] = first + c;
    }
    f->first = f->end;
    f->end = end;
    return SD_OK;
}

static sd_status step(tree_drafter* d, sd_proposal* proposals, int n, int* n_drafting) {
    *n_drafting = 0;
    for (int i = 0; i < n; i++) {
        draft* f = &d->drafts[i];
        collect(d, &proposals[i], f);
        if (f->n_reads == 0) continue;
        d->batch_proposals[*n_drafting] = i;
        d->batch[(*n_drafting)++] = (sd_draft_nodes){&proposals[i], f->reads, f->n_reads};
    }
    if (*n_drafting == 0) return SD_OK;
    SD_TRY(d->base.predictor->predict(d->base.predictor, d->batch, *n_drafting));
    double begun = sd_now();
    const float* logits = d->base.predictor->logits;
    for (int i = 0; i < *n_drafting; i++) {
        draft* f = &d->drafts[d->batch_proposals[i]];
        sd_proposal* p = &proposals[d->batch_proposals[i]];
        for (int j = 0; j < f->n_parents; j++)
            sd_predictor_share(d->base.predictor, p, f->nodes[f->parents[j].shape_node],
                               f->reads[f->parents[j].row]);
        SD_TRY(grow(d, p, f, logits));
        logits += f->n_reads * d->base.predictor->ld_logits;
    }
    d->base.drafter.other_s += sd_now() - begun;
    return SD_OK;
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    tree_drafter* d = (tree_drafter*)base;
    base->other_s = 0.0;
    for (int i = 0; i < n; i++) {
        SD_TRY(d->base.predictor->follow(d->base.predictor, &proposals[i]));
        draft* f = &d->drafts[i];
        f->first = 0;
        f->end = 1;
        f->nodes[0] = f->duplicates[0] = 0;
    }
    for (int n_drafting = 1; n_drafting > 0;) SD_TRY(step(d, proposals, n, &n_drafting));
    return SD_OK;
}

/* Siblings are independent draws at a temperature above 0 only (sd_drafter_find_rule). The coupled rule does
 * not check this. */
static sd_tree_type tree_type_of(const sd_shape_options* shape) {
    if (shape->n_chains == 1) return SD_TREE_CHAINS;
    return shape->how == SD_CHOOSE_DRAWS ? SD_TREE_DRAWS : SD_TREE_ANY;
}

/* Does it take the most probable tokens instead of sampling? Under the coupled rule it samples. */
static int is_top(const sd_drafting* drafting, const sd_shape_options* shape) {
    return shape->n_chains == 0 && shape->how == SD_CHOOSE_TOP && !drafting->couples;
}

sd_status sd_tree_drafter_create(const sd_drafting* drafting, sd_predictor_maker maker,
                                 const sd_shape_options* shape, sd_drafter** drafter) {
    SD_TRY(sd_shape_check(shape));
    SD_NEW(tree_drafter, d);
    d->base.drafter = SD_MAKE(sd_drafter, .tree_type = tree_type_of(shape),
                              .points = !drafting->draws || is_top(drafting, shape), .propose = propose,
                              .free = sd_predicting_free);
    sd_status status = SD_ARENA_BUILD(&d->base.drafter.arena, lay_out(d, drafting, shape));
    const sd_prediction prediction = {drafting, drafting->n_text, drafting->gamma,
                                      d->shape.widest > 0 ? d->shape.widest : 1, d->shape.n_levels};
    if (status == SD_OK) status = sd_predicting_make(&d->base, maker, &prediction);
    return sd_drafter_made(&d->base.drafter, status, drafter);
}
