/* A draft tree that grows by the draft's confidence: expand the best draft tokens, then propose the best of
 * all. (Sequoia, Chen et al. 2024; OPT-Tree, Wang et al. 2024; EAGLE-2, Li et al. 2024.) */
#include "tree_drafter.h"

#include <math.h>

#include "clock.h"
#include "drafter_policy.h"
#include "interrupt.h"

/* A draft token that may become a node. */
typedef struct candidate {
    int32_t token;
    int32_t parent;    /* its parent among the nodes read; 0: the root */
    int32_t node;      /* its own index among the nodes read; -1: not read */
    int depth;         /* 1: it follows the root */
    double confidence; /* the draft's confidence in its token */
    double value;      /* product of the confidences down to it: estimated chance that it is accepted */
} candidate;

/* The best candidates. Values never change, and a child's value never exceeds its parent's: a dropped
 * candidate never returns, and the set contains the parents of its members. */
typedef struct best_first {
    int capacity, n; /* most and current number of candidates */
    candidate* best; /* [capacity] in descending order of value; earlier ones first on ties */
} best_first;

/* Keep a candidate if it is among the best. */
static void offer(best_first* g, candidate offered) {
    if (g->n == g->capacity && !(g->n > 0 && offered.value > g->best[g->n - 1].value)) return;
    int at = g->n < g->capacity ? g->n++ : g->n - 1;
    for (; at > 0 && g->best[at - 1].value < offered.value; at--) g->best[at] = g->best[at - 1];
    g->best[at] = offered;
}

/* Value of the i-th least of the best, from 0, which the i-th better candidate replaces. */
static double least(const best_first* g, int i) {
    int at = g->capacity - 1 - i;
    return at >= g->n ? 0.0 : at < 0 ? g->best[0].value : g->best[at].value;
}

/* Choose the next candidates to read, at most `width`: the best unread ones above `depth` whose children may
 * be among the best. Writes their indices in `best`, ascending, to chosen [width]. Returns their number; 0 if
 * even certain children would raise the sum of the best values, each less the price of its row, by no more
 * than that of the step. */
static int choose_best(const best_first* g, int width, int depth, const sd_drafter_policy* policy,
                       int32_t* chosen) {
    double row = sd_drafter_policy_row_price(policy);
    int n = 0;
    double gain = 0.0;
    for (int i = 0; i < g->n && n < width; i++) {
        const candidate* c = &g->best[i];
        if (c->node >= 0 || c->depth >= depth) continue;
        if (!(c->value > least(g, 0))) break; /* no child of it would be among the best */
        gain += fmax(0.0, c->value - fmax(least(g, n), row));
        chosen[n++] = i;
    }
    return gain > sd_drafter_policy_step_price(policy) ? n : 0;
}

typedef struct draft {
    best_first search;
    sd_proposal read; /* the text with the tree of all nodes read, more than are proposed */
    int32_t* tokens;  /* [n_reads + 1] of that tree */
    int32_t* parents; /* [n_reads + 1] */
    int32_t* chosen;  /* [width] candidates read in this step; 0 for the root */
    int32_t* reads;   /* [width] their nodes in the tree of nodes read */
    int32_t* nodes;   /* [n_reads + 1] the proposal's node of each node read; -1: none */
    int n_reads;
} draft;

typedef struct dynamic_tree_drafter {
    sd_predicting base; /* must stay first */
    sd_dynamic_tree_options options;
    int n_nodes; /* of a tree, at most */
    sd_child_sampler children;
    draft* drafts;         /* [n_sequences] by proposal */
    sd_draft_nodes* batch; /* [n_sequences] of the sequences still drafting in this step */
    int* batch_proposals;  /* [n_sequences] the proposal of each entry of `batch` */
} dynamic_tree_drafter;

/* Nodes read in a round: the root alone, then `width` in each further step. */
static int most_reads(const sd_dynamic_tree_options* o) { return (o->steps - 1) * o->width; }

static void lay_out(dynamic_tree_drafter* d, const sd_drafting* drafting) {
    sd_arena* arena = &d->base.drafter.arena;
    size_t n = (size_t)drafting->n_sequences, width = (size_t)d->options.width;
    size_t nodes = (size_t)most_reads(&d->options) + 1;
    d->children = sd_child_sampler_take(arena, drafting, d->options.width, d->options.sharpness);
    d->drafts = sd_arena_take(arena, n, sizeof *d->drafts);
    d->batch = sd_arena_take(arena, n, sizeof *d->batch);
    d->batch_proposals = sd_arena_take(arena, n, sizeof *d->batch_proposals);
    for (size_t i = 0; i < n; i++) {
        const draft one = {
            .search.best = sd_arena_take(arena, (size_t)drafting->gamma, sizeof(candidate)),
            .tokens = sd_arena_take(arena, nodes, sizeof *one.tokens),
            .parents = sd_arena_take(arena, nodes, sizeof *one.parents),
            .chosen = sd_arena_take(arena, width, sizeof *one.chosen),
            .reads = sd_arena_take(arena, width, sizeof *one.reads),
            .nodes = sd_arena_take(arena, nodes, sizeof *one.nodes),
            .read.depths = sd_arena_take(arena, nodes, sizeof *one.read.depths),
            .read.path_prob = sd_arena_take(arena, nodes, sizeof *one.read.path_prob),
        };
        if (arena->base != NULL) d->drafts[i] = one;
    }
}

static void open_draft(draft* f, const sd_proposal* p, int capacity) {
    f->search.n = 0;
    f->search.capacity = p->budget < capacity ? p->budget : capacity;
    int32_t* depths = f->read.depths;
    double* path_prob = f->read.path_prob;
    f->read = *p;
    f->read.policy = NULL; /* the policy is asked when they are proposed */
    f->read.origins = NULL;
    f->read.depths = depths;
    f->read.path_prob = path_prob;
    f->read.tree = (sd_tree){.n_nodes = 1, .tokens = f->tokens, .parents = f->parents};
    f->tokens[0] = p->tree.tokens[0];
    f->parents[0] = -1;
    depths[0] = 0;
    path_prob[0] = 1.0;
}

static void choose(const dynamic_tree_drafter* d, const sd_proposal* p, draft* f, int step) {
    f->n_reads = 0;
    if (!sd_proposal_may_draft(p, 0)) return;
    if (step == 0) {
        f->reads[f->n_reads++] = 0;
        return;
    }
    f->n_reads = choose_best(&f->search, d->options.width, p->depth, p->policy, f->chosen);
    for (int i = 0; i < f->n_reads; i++) {
        candidate* c = &f->search.best[f->chosen[i]];
        c->node = f->reads[i] = sd_proposal_add(&f->read, c->parent, c->token, c->confidence);
    }
}

static int step(dynamic_tree_drafter* d, const sd_proposal* proposals, int n, int index, sd_status* status) {
    int n_drafting = 0;
    for (int i = 0; i < n; i++) {
        draft* f = &d->drafts[i];
        choose(d, &proposals[i], f, index);
        if (f->n_reads == 0) continue;
        d->batch_proposals[n_drafting] = i;
        d->batch[n_drafting++] = (sd_draft_nodes){&f->read, f->reads, f->n_reads};
    }
    if (n_drafting == 0) return 0;
    if ((*status = d->base.predictor->predict(d->base.predictor, d->batch, n_drafting)) != SD_OK) return 0;
    double begun = sd_now();
    const float* logits = d->base.predictor->logits;
    for (int i = 0; i < n_drafting; i++) {
        draft* f = &d->drafts[d->batch_proposals[i]];
        for (int j = 0; j < f->n_reads; j++, logits += d->base.predictor->ld_logits) {
            if ((*status = sd_interrupted()) != SD_OK) return 0;
            int32_t node = f->reads[j];
            if (!sd_proposal_goes_on(&f->read, node)) continue;
            int n_children = sd_child_sampler_rank(&d->children, &f->read, node, logits, d->options.width);
            for (int c = 0; c < n_children; c++) {
                double confidence = d->children.scores[c];
                offer(&f->search,
                      SD_MAKE(candidate, .token = d->children.order[c], .parent = node, .node = -1,
                              .depth = f->read.depths[node] + 1, .confidence = confidence,
                              .value = f->read.path_prob[node] * confidence));
            }
        }
    }
    d->base.drafter.other_s += sd_now() - begun;
    return 1;
}

/* Is a candidate worth a row of the target? It is a point mass, so its token may be looked at (drafter.h). */
static int pays(const sd_proposal* p, int parent, const candidate* c) {
    if (p->policy == NULL) return 1;
    int depth = p->depths[parent];
    double chance = sd_acceptance_chance(&p->policy->acceptance, c->confidence, depth + 1);
    return sd_drafter_policy_pays(p->policy, p->path_prob[parent], depth, p->tree.n_nodes - 1, chance);
}

/* Propose the best candidates, parents before their children. */
static void emit(draft* f, sd_proposal* p) {
    for (int i = 1; i < f->read.tree.n_nodes; i++) f->nodes[i] = -1;
    f->nodes[0] = 0;
    for (int i = 0; i < f->search.n; i++) {
        const candidate* c = &f->search.best[i];
        int32_t parent = f->nodes[c->parent];
        if (parent < 0 || !sd_proposal_has_capacity(p, parent) || !pays(p, parent, c)) continue;
        int node = sd_proposal_add_point(p, parent, c->token, c->confidence);
        if (c->node >= 0) f->nodes[c->node] = node;
    }
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    dynamic_tree_drafter* d = (dynamic_tree_drafter*)base;
    base->other_s = 0.0;
    for (int i = 0; i < n; i++) {
        SD_TRY(d->base.predictor->follow(d->base.predictor, &proposals[i]));
        open_draft(&d->drafts[i], &proposals[i], d->n_nodes);
    }
    sd_status status = SD_OK;
    for (int i = 0; i < d->options.steps && step(d, proposals, n, i, &status); i++) continue;
    for (int i = 0; i < n && status == SD_OK; i++) emit(&d->drafts[i], &proposals[i]);
    return status;
}

sd_status sd_dynamic_tree_drafter_create(const sd_drafting* drafting, sd_predictor_maker maker,
                                         const sd_dynamic_tree_options* dynamic, sd_drafter** drafter) {
    SD_TRY(sd_check_range("width", dynamic->width, 1, SD_MAX_GAMMA));
    SD_TRY(sd_check_range("steps", dynamic->steps, 1, SD_MAX_GAMMA));
    SD_FAIL_IF(!(dynamic->sharpness > 0.0 && dynamic->sharpness <= 1000.0), SD_ERR_VALUE,
               "sharpness is %g, expected above 0 and at most 1000", dynamic->sharpness);
    SD_NEW(dynamic_tree_drafter, d);
    d->base.drafter =
        (sd_drafter){.tree_type = SD_TREE_ANY, .points = 1, .propose = propose, .free = sd_predicting_free};
    d->options = *dynamic;
    d->n_nodes = drafting->gamma;
    sd_status status = SD_ARENA_BUILD(&d->base.drafter.arena, lay_out(d, drafting));
    const sd_prediction prediction = {drafting, drafting->n_text, most_reads(dynamic), dynamic->width,
                                      dynamic->steps};
    if (status == SD_OK) status = sd_predicting_make(&d->base, maker, &prediction);
    return sd_drafter_made(&d->base.drafter, status, drafter);
}
