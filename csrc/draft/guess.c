#include "guess.h"

sd_status sd_guessing_check(const sd_guessing* how, int n_vocab) {
    sd_status status = sd_sampling_check(&how->sampling);
    return status == SD_OK ? sd_adjustment_check(&how->adjustment, n_vocab) : status;
}

sd_guesser sd_guesser_take(sd_arena* arena, const sd_guessing* how, int n_vocab) {
    return (sd_guesser){
        .how = *how,
        .n_vocab = n_vocab,
        .scratch = sd_arena_take(arena, 2 * (size_t)n_vocab, sizeof(double)),
        .adjusted = sd_arena_take(arena, (size_t)n_vocab, sizeof(float)),
    };
}

int sd_guess(const sd_guesser* g, sd_proposal* p, int parent, const float* logits) {
    int node = p->tree.n_nodes;
    sd_distribution* from = &p->tree.drawn_from[node];
    logits = sd_logits_adjust(&g->how.adjustment, g->n_vocab, logits, p->text, p->n_text, &p->tree, parent,
                              g->adjusted);
    sd_standardise(&g->how.sampling, g->n_vocab, logits, g->scratch, from);
    int32_t token;
    if (g->how.coupled) { /* with the noise that the target will draw with at the same place */
        uint32_t position = (uint32_t)(p->n_text + p->depths[parent]);
        if (from->point < 0) sd_noise(p->stream, position, g->n_vocab, g->scratch);
        token = sd_race(from, g->n_vocab, g->scratch);
    } else {
        double u = sd_uniform(p->stream, (uint32_t)p->n_text, SD_DRAW_DRAFT, (uint32_t)node);
        token = sd_sample(from, g->n_vocab, u);
    }
    return sd_proposal_add(p, parent, token, sd_prob(from, token));
}
