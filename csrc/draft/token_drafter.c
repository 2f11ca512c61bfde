#include "token_drafter.h"

#include <math.h>
#include <string.h>

#include "kernels.h"
#include "row_distribution.h"

sd_token_drafter sd_token_drafter_take(sd_arena* arena, const sd_drafting* drafting) {
    size_t n_vocab = (size_t)drafting->n_vocab;
    int n_text = drafting->n_text + drafting->gamma + drafting->max_forced + 1;
    return SD_MAKE(sd_token_drafter, .n_vocab = drafting->n_vocab,
                   .scratch = sd_arena_take(arena, 2 * n_vocab, sizeof(double)),
                   .adjustment = sd_adjustment_take(arena, drafting->n_vocab, n_text));
}

/* The draft's probability of a token. */
static double softmax_of(const sd_token_drafter* g, const float* logits, int32_t token) {
    return isfinite(logits[token]) ? 1.0 / sd_row_mass(logits, g->n_vocab, logits[token]) : 0.0;
}

const float* sd_draft_token_distribute(const sd_token_drafter* g, const sd_proposal* p, int node,
                                       const float* logits, sd_distribution* from) {
    const sd_history history = {p->text, p->n_text, p->n_prompt, &p->tree};
    logits = sd_logits_adjust(p->sampling, g->n_vocab, logits, &history, node, &g->adjustment);
    const sd_mask mask = sd_proposal_mask(p, node);
    logits = sd_mask_logits(&mask, g->n_vocab, logits, g->adjustment.logits);
    if (!sd_standardize(p->sampling, g->n_vocab, logits, g->scratch, from) && mask.words != NULL)
        from->point = sd_mask_first(&mask, g->n_vocab);
    return logits;
}

int32_t sd_draft_token_draw(const sd_proposal* p, int parent, const sd_distribution* from, int n_vocab,
                            double* noise) {
    if (p->rule == SD_RULE_COUPLED)
        return sd_coupled_token(from, p->stream, (uint32_t)(p->n_text + p->depths[parent]), n_vocab, noise);
    double u = sd_uniform(p->stream, (uint32_t)p->n_text, SD_DRAW_DRAFT, (uint32_t)p->tree.n_nodes);
    return sd_sample(from, n_vocab, u);
}

int sd_draft_token_add_if_it_pays(const sd_token_drafter* g, sd_proposal* p, int parent,
                                  const float* logits) {
    sd_distribution* from = &p->tree.drawn_from[p->tree.n_nodes];
    logits = sd_draft_token_distribute(g, p, parent, logits, from);
    if (p->constraint != NULL && from->point >= 0 && !isfinite(logits[from->point]))
        return -1; /* the draft knows no allowed token */
    int32_t token = sd_draft_token_draw(p, parent, from, g->n_vocab, g->scratch);
    double confidence = 1.0;
    if (from->point < 0)
        confidence = sd_prob(from, token);
    else if (p->policy != NULL)
        confidence = softmax_of(g, logits, token);
    if ((from->point >= 0 || p->rule == SD_RULE_COUPLED) &&
        !sd_proposal_worth_verifying(p, parent, confidence))
        return -1;
    return sd_proposal_add(p, parent, token, confidence);
}

/* Tokens per block: the largest logit of each block is kept, so finding the next largest rescans one
 * block. */
#define BLOCK 256

/* Least racers that scores are normalized over. */
#define RACERS 8

static int racers_for(int capacity) { return capacity > RACERS ? capacity : RACERS; }

sd_child_sampler sd_child_sampler_take(sd_arena* arena, const sd_drafting* drafting, int capacity,
                                       double sharpness) {
    size_t n_vocab = (size_t)drafting->n_vocab;
    return SD_MAKE(sd_child_sampler, .token_drafter = sd_token_drafter_take(arena, drafting),
                   .capacity = capacity, .sharpness = sharpness,
                   .order = sd_arena_take(arena, (size_t)racers_for(capacity), sizeof(int32_t)),
                   .scores = sd_arena_take(arena, (size_t)racers_for(capacity), sizeof(double)),
                   .weights = sd_arena_take(arena, n_vocab, sizeof(double)),
                   .heads = sd_arena_take(arena, n_vocab / BLOCK + 1, sizeof(int32_t)));
}

/* Index in x [n] of the largest of block b, the lowest on ties. */
static int32_t head_of(int n, const float* x, int b) {
    int first = b * BLOCK;
    return first + sd_kernels_get()->argmax(n - first < BLOCK ? n - first : BLOCK, x + first);
}

/* Find the k largest of x [n], which is overwritten; the lowest index on ties, without −infinity. Returns
 * their number. */
static int largest(int n, float* x, int k, int32_t* order, int32_t* heads) {
    int n_blocks = (n + BLOCK - 1) / BLOCK;
    for (int b = 0; b < n_blocks; b++) heads[b] = head_of(n, x, b);
    for (int found = 0; found < k; found++) {
        int best = 0;
        for (int b = 1; b < n_blocks; b++)
            if (x[heads[b]] > x[heads[best]]) best = b;
        order[found] = heads[best];
        if (x[heads[best]] == -INFINITY) return found;
        x[heads[best]] = -INFINITY;
        heads[best] = head_of(n, x, best);
    }
    return k;
}

/* Rank by the draft's probabilities; at temperature 0, where all mass is on one token, by those of the logits
 * times the sharpness. */
static int rank_by_mass(const sd_child_sampler* s, const float* logits, const sd_distribution* from, int k) {
    const sd_token_drafter* g = &s->token_drafter;
    int n_vocab = g->n_vocab;
    if (logits != g->adjustment.logits)
        memcpy(g->adjustment.logits, logits, (size_t)n_vocab * sizeof *logits);
    const double* weights = from->weights;
    double factor = from->factor;
    if (from->point >= 0) {
        weights = g->scratch;
        factor =
            1.0 / sd_kernels_get()->weigh(n_vocab, g->adjustment.logits, g->adjustment.logits[from->point],
                                          (float)s->sharpness, g->scratch);
    }
    int n = largest(n_vocab, g->adjustment.logits, k, s->order, s->heads);
    for (int i = 0; i < n; i++) s->scores[i] = weights[s->order[i]] * factor;
    while (n > 0 && !(s->scores[n - 1] > 0.0)) n--; /* cut off by the draft's settings */
    return n;
}

/* Rank by times in the Gumbel race under the noise that the target will use. Score = 1 / time^sharpness,
 * normalized: with sharpness 1 the chance that the target agrees, if the error of the draft's logits is as
 * large as the race's noise. */
static int rank_by_race(const sd_child_sampler* s, const sd_proposal* p, int node,
                        const sd_distribution* from, int k) {
    const sd_token_drafter* g = &s->token_drafter;
    sd_noise(p->stream, (uint32_t)(p->n_text + p->depths[node]), g->n_vocab, g->scratch);
    int n = sd_race_order(from, g->n_vocab, g->scratch, racers_for(k), s->order, s->scores);
    double best = n > 0 ? fmax(s->scores[0], 1e-300) : 0.0, sum = 0.0;
    for (int i = 0; i < n; i++) sum += s->scores[i] = pow(best / fmax(s->scores[i], 1e-300), s->sharpness);
    for (int i = 0; i < n; i++) s->scores[i] /= sum;
    return n < k ? n : k;
}

int sd_child_sampler_rank(const sd_child_sampler* s, const sd_proposal* p, int node, const float* logits,
                          int k) {
    sd_distribution from = {.weights = s->weights};
    logits = sd_draft_token_distribute(&s->token_drafter, p, node, logits, &from);
    return p->rule == SD_RULE_COUPLED && from.point < 0 ? rank_by_race(s, p, node, &from, k)
                                                        : rank_by_mass(s, logits, &from, k);
}

/* Set the distribution of the next node: that of its previous sibling, with `distinct` without that sibling's
 * token. Returns 0 if nothing is left. */
static int inherit(const sd_child_sampler* s, const sd_proposal* p, int distinct) {
    int node = p->tree.n_nodes, n_vocab = s->token_drafter.n_vocab;
    const sd_distribution* previous = &p->tree.drawn_from[node - 1];
    sd_distribution* from = &p->tree.drawn_from[node];
    double* weights = from->weights;
    memcpy(weights, previous->weights, (size_t)n_vocab * sizeof *weights);
    *from = (sd_distribution){-1, weights, previous->mass, previous->factor};
    if (!distinct) return 1;
    weights[p->tree.tokens[node - 1]] = 0.0;
    from->mass = sd_kernels_get()->mass(n_vocab, weights);
    from->factor = 1.0 / from->mass;
    return from->mass > 0.0 && isfinite(from->factor);
}

/* Draw n siblings, the first from the distribution that is already set. */
static int draw(const sd_child_sampler* s, sd_proposal* p, int parent, int distinct, int n) {
    int first = p->tree.n_nodes, coupled = p->rule == SD_RULE_COUPLED;
    double whole =
        p->tree.drawn_from[first].factor; /* scores are shares of all tokens, including previous siblings */
    if (coupled) {
        int n_racers = rank_by_race(s, p, parent, &p->tree.drawn_from[first], n);
        if (n > n_racers) n = n_racers;
        distinct = 1;
    }
    for (int i = 0; i < n; i++) {
        int node = p->tree.n_nodes;
        if (i > 0 && (!sd_proposal_may_draft(p, parent) || !inherit(s, p, distinct))) return i;
        const sd_distribution* from = &p->tree.drawn_from[node];
        int32_t token =
            coupled ? s->order[i]
                    : sd_sample(from, s->token_drafter.n_vocab,
                                sd_uniform(p->stream, (uint32_t)p->n_text, SD_DRAW_DRAFT, (uint32_t)node));
        sd_proposal_add(p, parent, token, coupled ? s->scores[i] : from->weights[token] * whole);
    }
    return n;
}

int sd_child_sampler_draw(const sd_child_sampler* s, sd_proposal* p, int parent, const float* logits,
                          sd_choosing how, int n) {
    if (n == 0 || !sd_proposal_may_draft(p, parent)) return 0;
    if (n == 1 && how != SD_CHOOSE_TOP)
        return sd_draft_token_add_if_it_pays(&s->token_drafter, p, parent, logits) >= 0;
    int chosen = how == SD_CHOOSE_TOP && p->rule != SD_RULE_COUPLED; /* not sampled, at any temperature */
    sd_distribution ranked = {.weights = s->weights};
    sd_distribution* from = chosen ? &ranked : &p->tree.drawn_from[p->tree.n_nodes];
    logits = sd_draft_token_distribute(&s->token_drafter, p, parent, logits, from);
    if (from->point < 0 && !chosen) return draw(s, p, parent, how == SD_CHOOSE_DISTINCT, n);
    n = rank_by_mass(s, logits, from, n);
    for (int i = 0; i < n; i++) {
        if (!sd_proposal_may_draft(p, parent)) return i;
        sd_proposal_add_point(p, parent, s->order[i], s->scores[i]);
    }
    return n;
}
