/* Uniform random tokens: the lower bound of every draft. */
#include "tables.h"

#include "interrupt.h"
#include "memory.h"
#include "token_drafter.h"

typedef struct random_drafter {
    sd_drafter base; /* must stay first */
    int n_vocab;
    double* noise; /* [n_vocab] */
} random_drafter;

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    random_drafter* d = (random_drafter*)base;
    for (int i = 0; i < n; i++) {
        sd_proposal* p = &proposals[i];
        for (int parent = 0; sd_proposal_may_draft(p, parent);) {
            SD_TRY(sd_interrupted());
            sd_distribution* uniform = &p->tree.drawn_from[p->tree.n_nodes];
            uniform->point = -1;
            const sd_mask mask = sd_proposal_mask(p, parent);
            int n = mask.words ? mask.n_allowed : d->n_vocab;
            uniform->mass = n;
            uniform->factor = 1.0 / n;
            for (int j = 0; j < d->n_vocab; j++) uniform->weights[j] = sd_mask_allows(&mask, j);
            int32_t token = sd_draft_token_draw(p, parent, uniform, d->n_vocab, d->noise);
            parent = sd_proposal_add(p, parent, token, 1.0 / n);
        }
    }
    return SD_OK;
}

static void lay_out(random_drafter* d) {
    d->noise = sd_arena_take(&d->base.arena, (size_t)d->n_vocab, sizeof *d->noise);
}

sd_status sd_random_drafter_create(const sd_drafting* drafting, sd_drafter** drafter) {
    SD_NEW(random_drafter, d);
    d->base = (sd_drafter){.propose = propose, .free = sd_drafter_release};
    d->n_vocab = drafting->n_vocab;
    return sd_drafter_made(&d->base, SD_ARENA_BUILD(&d->base.arena, lay_out(d)), drafter);
}
