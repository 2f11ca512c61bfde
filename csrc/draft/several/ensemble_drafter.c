#include "ensemble_drafter.h"

#include "clock.h"
#include "drafter_policy.h"
#include "memory.h"

typedef struct inner {
    sd_drafter* drafter; /* owned */
    int gamma;
    sd_drafter_policy policy;
    sd_drafter_round round; /* its part in this round */
    /* [n_sequences] the first round.n_asked are in use; capacity gamma + 1 nodes each */
    sd_proposal* proposals;
    int32_t** nodes;  /* [n_sequences][gamma + 1] index in the round's tree of each of their nodes */
    double* expected; /* [n_sequences] accepted tokens expected before it was asked */
    int* slots;       /* [n_sequences] by sequence of the session: its entry above; -1: none */
    int has_extra;    /* it, or a drafter within it, has extra query tokens */
} inner;

typedef struct ensemble_drafter {
    sd_drafter base; /* must stay first */
    sd_drafting drafting;
    sd_ensemble_options options;
    inner* inners;       /* [n_drafters] */
    sd_drafter** within; /* [n_drafters] the same drafters */
    int* n_text;         /* [n_sequences] length of the text proposed for */
    uint64_t* drafters;  /* [n_sequences] drafters that may draft */
    double* sums;        /* [gamma + 1] expected accepted tokens down to a node */
    int* right;          /* [gamma + 1] is a node on the committed path? */
    int32_t* path;       /* [gamma + 1] nodes on the committed path */
    int32_t* node_rows;  /* [gamma + 1] the rows of one drafter's nodes */
    double* best;        /* [n_sequences] accepted tokens expected so far in a round */
    sd_throughput throughput;
    double begun, proposed;     /* when this round's proposing began and ended */
    double committed;           /* when the last sequence was committed */
    int n_tokens, n_rows;       /* of this round */
    int n_extra;                /* extra query tokens after a row, in rounds with their drafter */
    int n_other;                /* the same for this round; until that is known, for the last */
    int n_proposed, n_observed; /* sequences of this round, and those whose outcome is known */
    int shows_draft_tokens;     /* a nested drafter asks: the text may end with draft tokens */
} ensemble_drafter;

static sd_status begin(sd_drafter* base, int sequence, const sd_prompt* prompt) {
    ensemble_drafter* d = (ensemble_drafter*)base;
    sd_settings settings = *prompt->settings;
    sd_prompt own = *prompt;
    own.settings = &settings;
    uint64_t drafters = sd_settings_drafted(&settings) ? settings.drafters : 0;
    sd_status status = SD_OK;
    for (int i = 0; i < d->options.n_drafters && status == SD_OK; i++) {
        int drafts = drafters != 0 && sd_may_draft(drafters, i);
        settings.drafters = drafts ? SD_EVERY_DRAFTER : 0; /* of the drafters within drafter i */
        own.n = drafts ? prompt->n : 1;
        d->inners[i].slots[sequence] = -1;
        status = sd_drafter_begin(d->inners[i].drafter, sequence, &own);
    }
    d->drafters[sequence] = drafters;
    d->n_text[sequence] = 0;
    return status;
}

/* Read prompts with one drafter after the other; each reads all prompts together. */
static sd_status read_prompts(sd_drafter* base, int* done) {
    ensemble_drafter* d = (ensemble_drafter*)base;
    *done = 1;
    for (int i = 0; i < d->options.n_drafters && *done; i++)
        SD_TRY(sd_drafter_read(d->inners[i].drafter, done));
    return SD_OK;
}

/* ------------------------------------------------------------------------------------------- propose */

static int may_draft(const sd_proposal* p, int i) { return sd_may_draft(p->drafters, i); }

/* Random numbers that no other drafter of the round uses, at any depth of nesting. A drafter that is a
 * sequence's only one draws as outside an ensemble. */
static sd_stream stream_of(const ensemble_drafter* d, const sd_proposal* p, int i) {
    int alone = p->drafters != SD_EVERY_DRAFTER && sd_count_drafters(p->drafters, d->options.n_drafters) == 1;
    return p->rule == SD_RULE_COUPLED || alone ? p->stream : sd_stream_inner(p->stream, 0, (uint32_t)i);
}

/* Budget of drafter i: its share of the remaining budget, and what later drafters cannot use. */
static int budget_for(const ensemble_drafter* d, int i, const sd_proposal* p) {
    int left = p->budget - (p->tree.n_nodes - 1), total = 0, later = 0, last = i;
    for (int j = 0; j < d->options.n_drafters; j++)
        if (may_draft(p, j)) total += d->inners[j].gamma, last = j;
    double weight = 0.0, own = 0.0;
    for (int j = i; j < d->options.n_drafters; j++) {
        if (!may_draft(p, j)) continue;
        double w = d->options.adaptive ? sd_drafter_policy_right(&d->inners[j].policy) : 1.0;
        weight += w;
        if (j == i)
            own = w;
        else
            later += d->inners[j].gamma;
    }
    int most = d->inners[i].gamma;
    if (p->budget > total) { /* more than their sum: divide it in their ratio, the last takes the rest */
        most = (int)((int64_t)p->budget * most / total);
        return i == last ? left : most < left ? most : left;
    }
    int share = (int)(left * own / weight + 0.999); /* rounded up */
    if (share < left - later) share = left - later;
    if (share > left) share = left;
    return share < most ? share : most;
}

/* Open an empty tree for drafter i on the same text; a share `new` of its accepted tokens is expected to be
 * new in the round. Its nodes' distributions are written in place, after the round's last node. */
static sd_proposal* open_proposal(const ensemble_drafter* d, int i, int slot, const sd_proposal* p,
                                  int budget, double new) {
    const inner* in = &d->inners[i];
    sd_proposal* own = &in->proposals[slot];
    sd_proposal opened = *p;
    opened.budget = budget;
    opened.policy = d->options.adaptive ? &in->policy : NULL; /* an outer policy prices the round's tree */
    opened.stream = stream_of(d, p, i);
    opened.rejected_at = 0;
    opened.drafters = SD_EVERY_DRAFTER; /* of the drafters within drafter i */
    opened.origins = NULL;
    opened.tree = own->tree;
    opened.depths = own->depths;
    opened.path_prob = own->path_prob;
    opened.confidences = own->confidences;
    *own = opened;
    own->tree.tokens[0] = p->tree.tokens[0];
    own->tree.parents[0] = -1;
    own->tree.n_nodes = 1;
    own->depths[0] = 0;
    own->path_prob[0] = new;
    for (int j = 1; j <= budget; j++)
        own->tree.drawn_from[j].weights = p->tree.drawn_from[p->tree.n_nodes + j - 1].weights;
    return own;
}

/* Append the tree in `slot` of drafter i to the round's. Returns the accepted tokens it is expected to
 * add. */
static double merge(const ensemble_drafter* d, int i, int slot, sd_proposal* p) {
    const sd_proposal* own = &d->inners[i].proposals[slot];
    int32_t* nodes = d->inners[i].nodes[slot];
    double most = 0.0;
    nodes[0] = 0;
    d->sums[0] = 0.0;
    p->origin = i;
    for (int j = 1; j < own->tree.n_nodes; j++) {
        int32_t parent = own->tree.parents[j];
        double above = own->path_prob[parent];
        nodes[j] = sd_proposal_add(p, nodes[parent], own->tree.tokens[j],
                                   above > 0.0 ? own->path_prob[j] / above : 0.0);
        p->tree.drawn_from[nodes[j]] = own->tree.drawn_from[j];
        d->sums[j] = d->sums[parent] + own->path_prob[j];
        if (d->sums[j] > most) most = d->sums[j];
    }
    return most;
}

static void count_draft_tokens(inner* in) {
    for (int slot = 0; slot < in->round.n_asked; slot++) {
        const sd_proposal* own = &in->proposals[slot];
        int deepest = own->rejected_at;
        for (int j = 1; j < own->tree.n_nodes; j++)
            if (own->depths[j] > deepest) deepest = own->depths[j];
        in->round.n_draft_tokens += own->tree.n_nodes - 1;
        in->round.n_steps += deepest;
    }
}

/* Ask drafter i for the sequences for which it pays. *reading_s: seconds of its forward passes. */
static sd_status ask(ensemble_drafter* d, int i, sd_proposal* proposals, int n, double* reading_s) {
    inner* in = &d->inners[i];
    double begun = sd_now();
    in->round = (sd_drafter_round){0};
    in->policy.n_other = in->has_extra ? 0 : d->n_other;
    in->drafter->paused = 1;
    if (in->has_extra) d->n_other = 0;
    for (int k = 0; k < n; k++) {
        in->slots[proposals[k].sequence] = -1;
        if (d->options.adaptive) in->round.n_rows += sd_tree_number_rows(&proposals[k].tree, d->node_rows);
    }
    if (d->options.adaptive &&
        !sd_drafter_policy_begin(&in->policy, &d->throughput, in->gamma, in->round.n_rows))
        return SD_OK;
    for (int k = 0; k < n; k++) {
        sd_proposal* p = &proposals[k];
        if (!may_draft(p, i)) continue;
        if (d->options.adaptive && !sd_drafter_policy_asks(&in->policy, &d->throughput, k)) continue;
        int budget = budget_for(d, i, p), slot = in->round.n_asked;
        if (budget < 1 || !sd_proposal_may_draft(p, 0)) continue;
        double new = d->options.adaptive ? sd_drafter_policy_new_share(&in->policy, d->best[k]) : 1.0;
        if (!sd_proposal_may_draft(open_proposal(d, i, slot, p, budget, new), 0)) continue;
        in->slots[p->sequence] = slot;
        in->expected[slot] = d->best[k];
        in->round.n_asked++;
    }
    in->drafter->paused = in->round.n_asked == 0;
    if (in->has_extra) d->n_other = in->drafter->paused ? 0 : d->n_extra;
    if (in->round.n_asked == 0) return SD_OK;
    in->drafter->other_s = 0.0;
    SD_TRY(in->drafter->propose(in->drafter, in->proposals, in->round.n_asked));
    in->round.draft_s = sd_now() - begun;
    *reading_s += in->round.draft_s - in->drafter->other_s;
    count_draft_tokens(in);
    for (int k = 0; k < n; k++) {
        int slot = in->slots[proposals[k].sequence];
        if (slot >= 0 && proposals[k].failure->status == SD_OK)
            d->best[k] += merge(d, i, slot, &proposals[k]);
    }
    return SD_OK;
}

/* Find the path of a tree along the committed tokens new [n_new]: d->path. Returns its length. */
static int find_path(const ensemble_drafter* d, const sd_proposal* own, const int32_t* new, int n_new) {
    int last = 0;
    d->right[0] = 1;
    for (int j = 1; j < own->tree.n_nodes; j++) {
        int depth = own->depths[j];
        d->right[j] =
            d->right[own->tree.parents[j]] && depth <= n_new && own->tree.tokens[j] == new[depth - 1];
        if (d->right[j] && depth > own->depths[last]) last = j;
    }
    for (int j = last; j > 0; j = own->tree.parents[j]) d->path[own->depths[j] - 1] = j;
    return own->depths[last];
}

/* Learn from the committed text, tokens [n_tokens], how the proposals for a sequence did. */
static void judge(ensemble_drafter* d, int sequence, const int32_t* tokens, int n_tokens) {
    int n_old = d->n_text[sequence], before = 0;
    for (int i = 0; i < d->options.n_drafters; i++) {
        inner* in = &d->inners[i];
        int slot = in->slots[sequence];
        if (slot < 0) continue;
        const sd_proposal* own = &in->proposals[slot];
        int n = find_path(d, own, tokens + n_old, n_tokens - n_old), n_added = n > before ? n - before : 0;
        if (d->options.adaptive)
            sd_drafter_policy_observe(&in->policy, own, d->path, n, in->expected[slot], n_added);
        in->round.n_added += n_added;
        if (n > before) before = n;
    }
    d->n_tokens += n_tokens - n_old;
    d->n_observed++;
}

/* Drop the last proposals for a sequence. */
static void forget(ensemble_drafter* d, int sequence) {
    for (int i = 0; i < d->options.n_drafters; i++) d->inners[i].slots[sequence] = -1;
    d->n_text[sequence] = 0;
}

/* If a sequence has not been committed since the last round, a nested drafter ran that round, and the text
 * has its outcome. */
static void judge_by_text(ensemble_drafter* d, const sd_proposal* p) {
    int n_old = d->n_text[p->sequence];
    if (n_old == 0 || p->n_text <= n_old) return;
    judge(d, p->sequence, p->text, p->n_text);
    forget(d, p->sequence);
    d->committed = sd_now();
    d->shows_draft_tokens = 1;
}

/* End the last round when the next begins. It teaches nothing if the outcome of a sequence is unknown. */
static void end_round(ensemble_drafter* d) {
    double expected_s = 0.0, draft_s = 0.0;
    int n_asked = 0;
    if (d->options.adaptive && d->n_observed == d->n_proposed && d->n_rows > 0) {
        for (int i = 0; i < d->options.n_drafters; i++) {
            const inner* in = &d->inners[i];
            if (in->round.n_asked == 0) continue;
            double seconds =
                sd_drafter_policy_expects(&in->policy, &d->throughput, in->round.n_asked, in->round.n_steps);
            expected_s = seconds < 0.0 || expected_s < 0.0 ? -1.0 : expected_s + seconds;
            n_asked += in->round.n_asked;
        }
        double rest_s = d->committed - d->proposed;
        sd_throughput_measure(&d->throughput, d->n_rows, d->proposed - d->begun, rest_s, expected_s);
        for (int i = 0; i < d->options.n_drafters; i++) {
            d->inners[i].round.n_tokens = d->n_tokens;
            draft_s += sd_drafter_policy_end(&d->inners[i].policy, &d->throughput, &d->inners[i].round);
        }
        if (n_asked > 0) sd_throughput_add(&d->throughput, d->n_rows, d->n_tokens, draft_s);
    }
    d->n_tokens = d->n_rows = d->n_observed = 0;
}

/* Begin a round: plan the price of a second from what each drafter could add. */
static void begin_round(ensemble_drafter* d, int n) {
    sd_throughput_begin(&d->throughput, n);
    for (int i = 0; i < d->options.n_drafters; i++)
        sd_drafter_policy_plan(&d->inners[i].policy, &d->throughput, d->inners[i].gamma);
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    ensemble_drafter* d = (ensemble_drafter*)base;
    for (int k = 0; k < n; k++) judge_by_text(d, &proposals[k]);
    end_round(d);
    d->n_proposed = n;
    if (d->options.adaptive) begin_round(d, n);
    d->begun = sd_now();
    double reading_s = 0.0;
    for (int k = 0; k < n; k++) {
        d->best[k] = 0.0;
        d->n_text[proposals[k].sequence] = proposals[k].n_text;
    }
    for (int i = 0; i < d->options.n_drafters; i++) SD_TRY(ask(d, i, proposals, n, &reading_s));
    d->proposed = sd_now();
    base->other_s = d->proposed - d->begun - reading_s;
    return SD_OK;
}

/* -------------------------------------------------------------------------------------------- after it */

static sd_status observe(sd_drafter* base, const sd_proposal* p, const int32_t* node_rows,
                         const float* logits, ptrdiff_t stride) {
    ensemble_drafter* d = (ensemble_drafter*)base;
    int last = 0; /* rows of the target's forward pass */
    for (int j = 0; j < p->tree.n_nodes; j++)
        if (node_rows[j] > last) last = node_rows[j];
    d->n_rows += (last + 1) * (1 + d->n_other);
    for (int i = 0; i < d->options.n_drafters; i++) {
        const inner* in = &d->inners[i];
        int slot = in->slots[p->sequence];
        if (slot < 0 || in->drafter->observe == NULL) continue;
        const sd_proposal* own = &in->proposals[slot];
        for (int j = 0; j < own->tree.n_nodes; j++) d->node_rows[j] = node_rows[in->nodes[slot][j]];
        SD_TRY(in->drafter->observe(in->drafter, own, d->node_rows, logits, stride));
    }
    return SD_OK;
}

static sd_status commit(sd_drafter* base, int sequence, const int32_t* tokens, int n_tokens) {
    ensemble_drafter* d = (ensemble_drafter*)base;
    /* the time since a nested drafter's last round belongs mostly to the outer session */
    if (d->n_text[sequence] > 0 && d->n_text[sequence] < n_tokens && !d->shows_draft_tokens) {
        judge(d, sequence, tokens, n_tokens);
        d->committed = sd_now();
    }
    forget(d, sequence);
    for (int i = 0; i < d->options.n_drafters; i++)
        if (sd_may_draft(d->drafters[sequence], i))
            SD_TRY(sd_drafter_commit(d->inners[i].drafter, sequence, tokens, n_tokens));
    return SD_OK;
}

/* ----------------------------------------------------------------------------------------------------- */

static void release(sd_drafter* base) {
    ensemble_drafter* d = (ensemble_drafter*)base;
    for (int i = 0; d->base.arena.base && i < d->options.n_drafters; i++)
        d->inners[i].drafter->free(d->inners[i].drafter);
    sd_drafter_release(base);
}

static void lay_out_proposal(ensemble_drafter* d, sd_proposal* p, int32_t** map) {
    size_t n_nodes = (size_t)d->drafting.gamma + 1;
    sd_proposal made = {0};
    made.tree.tokens = sd_arena_take(&d->base.arena, n_nodes, sizeof *made.tree.tokens);
    made.tree.parents = sd_arena_take(&d->base.arena, n_nodes, sizeof *made.tree.parents);
    made.tree.drawn_from = sd_arena_take(&d->base.arena, n_nodes, sizeof *made.tree.drawn_from);
    made.depths = sd_arena_take(&d->base.arena, n_nodes, sizeof *made.depths);
    made.path_prob = sd_arena_take(&d->base.arena, n_nodes, sizeof *made.path_prob);
    made.confidences = sd_arena_take(&d->base.arena, n_nodes, sizeof *made.confidences);
    int32_t* nodes = sd_arena_take(&d->base.arena, n_nodes, sizeof *nodes);
    if (d->base.arena.base == NULL) return;
    *p = made;
    *map = nodes;
}

static void lay_out(ensemble_drafter* d, sd_drafter* const* drafters) {
    const sd_ensemble_options* o = &d->options;
    size_t n = (size_t)d->drafting.n_sequences, n_nodes = (size_t)d->drafting.gamma + 1;
    d->inners = sd_arena_take(&d->base.arena, (size_t)o->n_drafters, sizeof *d->inners);
    d->within = sd_arena_take(&d->base.arena, (size_t)o->n_drafters, sizeof *d->within);
    d->n_text = sd_arena_take(&d->base.arena, n, sizeof *d->n_text);
    d->drafters = sd_arena_take(&d->base.arena, n, sizeof *d->drafters);
    d->best = sd_arena_take(&d->base.arena, n, sizeof *d->best);
    d->sums = sd_arena_take(&d->base.arena, n_nodes, sizeof *d->sums);
    d->node_rows = sd_arena_take(&d->base.arena, n_nodes, sizeof *d->node_rows);
    d->right = sd_arena_take(&d->base.arena, n_nodes, sizeof *d->right);
    d->path = sd_arena_take(&d->base.arena, n_nodes, sizeof *d->path);
    for (int i = 0; i < o->n_drafters; i++) {
        inner in = {.drafter = drafters[i], .gamma = o->gammas[i]};
        in.proposals = sd_arena_take(&d->base.arena, n, sizeof *in.proposals);
        in.nodes = sd_arena_take(&d->base.arena, n, sizeof *in.nodes);
        in.expected = sd_arena_take(&d->base.arena, n, sizeof *in.expected);
        in.slots = sd_arena_take(&d->base.arena, n, sizeof *in.slots);
        int counting = d->base.arena.base == NULL;
        for (size_t k = 0; k < n; k++) {
            if (!counting) in.slots[k] = -1;
            lay_out_proposal(d, counting ? NULL : &in.proposals[k], counting ? NULL : &in.nodes[k]);
        }
        sd_drafter_policy_reset(&in.policy);
        if (!counting) d->inners[i] = in, d->within[i] = drafters[i];
    }
}

static void expect_extra(ensemble_drafter* d, inner* in) {
    sd_drafter* found = NULL;
    if (sd_drafter_find_queries(in->drafter, &found) != SD_OK || found == NULL) return;
    in->has_extra = 1;
    in->policy.n_extra = d->n_extra = found->extra.n;
}

sd_status sd_ensemble_drafter_create(const sd_drafting* drafting, const sd_ensemble_options* o,
                                     sd_drafter* const* drafters, sd_drafter** drafter) {
    ensemble_drafter* d = NULL;
    sd_status status = SD_OK;
    for (int i = 0; i < o->n_drafters && status == SD_OK; i++)
        status = sd_check_range("ensemble: gamma of a draft", o->gammas[i], 1, SD_MAX_GAMMA);
    if (status != SD_OK) goto fail;
    status = SD_ERR_MEMORY;
    if ((d = sd_alloc(sizeof *d)) == NULL) goto fail;
    d->base = SD_MAKE(sd_drafter, .tree_type = SD_TREE_ANY, .points = 1, .begin = begin, .read = read_prompts,
                      .propose = propose, .observe = observe, .commit = commit, .free = release);
    for (int i = 0; i < o->n_drafters; i++) d->base.points &= drafters[i]->points;
    d->drafting = *drafting;
    d->options = *o;
    if ((status = SD_ARENA_BUILD(&d->base.arena, lay_out(d, drafters))) != SD_OK) goto fail;
    d->base.within = d->within, d->base.n_within = o->n_drafters, d->base.several = 1;
    sd_throughput_start(&d->throughput, drafting->expert_reads);
    for (int i = 0; i < o->n_drafters; i++) {
        sd_drafter_schedule_start(&d->inners[i].policy.schedule);
        expect_extra(d, &d->inners[i]);
    }
    d->options.gammas = NULL; /* was borrowed */
    *drafter = &d->base;
    return SD_OK;
fail:
    sd_free(d);
    for (int i = 0; i < o->n_drafters; i++) drafters[i]->free(drafters[i]);
    return status;
}
