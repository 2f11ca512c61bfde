#include "guess.h"

#include <math.h>

#include "row_law.h"

sd_guesser sd_guesser_take(sd_arena* arena, const sd_drafting* drafting) {
    size_t n_vocab = (size_t)drafting->n_vocab;
    int n_text = drafting->n_text + drafting->gamma + drafting->max_forced + 1;
    return (sd_guesser){
        .n_vocab = drafting->n_vocab,
        .scratch = sd_arena_take(arena, 2 * n_vocab, sizeof(double)),
        .adjustment = sd_adjustment_take(arena, drafting->n_vocab, n_text),
    };
}

/* What the draft thinks of its most probable token. */
static double softmax_of(const sd_guesser* g, const float* logits, int32_t token) {
    return isfinite(logits[token]) ? 1.0 / sd_row_mass(logits, g->n_vocab, logits[token]) : 0.0;
}

const float* sd_guess_distribute(const sd_guesser* g, const sd_proposal* p, int node, const float* logits,
                                 sd_distribution* from) {
    const sd_history history = {p->text, p->n_text, p->n_prompt, &p->tree};
    logits = sd_logits_adjust(p->sampling, g->n_vocab, logits, &history, node, &g->adjustment);
    const sd_mask mask = sd_proposal_mask(p, node);
    logits = sd_mask_logits(&mask, g->n_vocab, logits, g->adjustment.logits);
    if (!sd_standardise(p->sampling, g->n_vocab, logits, g->scratch, from) && mask.words != NULL)
        from->point = sd_mask_first(&mask, g->n_vocab);
    return logits;
}

int32_t sd_guess_draw(const sd_proposal* p, int parent, const sd_distribution* from, int n_vocab,
                      double* noise) {
    if (p->rule == SD_RULE_COUPLED)
        return sd_coupled_token(from, p->stream, (uint32_t)(p->n_text + p->depths[parent]), n_vocab, noise);
    double u = sd_uniform(p->stream, (uint32_t)p->n_text, SD_DRAW_DRAFT, (uint32_t)p->tree.n_nodes);
    return sd_sample(from, n_vocab, u);
}

int sd_guess_if_it_pays(const sd_guesser* g, sd_proposal* p, int parent, const float* logits) {
    sd_distribution* from = &p->tree.drawn_from[p->tree.n_nodes];
    logits = sd_guess_distribute(g, p, parent, logits, from);
    if (p->constraint != NULL && from->point >= 0 && !isfinite(logits[from->point]))
        return -1; /* the draft knows none of the tokens that may come */
    int32_t token = sd_guess_draw(p, parent, from, g->n_vocab, g->scratch);
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
