#include "dialled_drafter.h"

#include <string.h>

#include "memory.h"

typedef struct dialled_drafter {
    sd_drafter base;   /* must stay first */
    sd_drafter* inner; /* owned */
    double alpha;
    int n_vocab;
    sd_arena arena;        /* owns the arrays below */
    sd_foreseen* foreseen; /* [n] */
} dialled_drafter;

static sd_status begin(sd_drafter* base, int sequence, const int32_t* prompt, int n_prompt, int* done) {
    sd_drafter* inner = ((dialled_drafter*)base)->inner;
    return inner->begin(inner, sequence, prompt, n_prompt, done);
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    dialled_drafter* d = (dialled_drafter*)base;
    sd_status status = d->inner->propose(d->inner, proposals, n);
    if (status != SD_OK) return status;
    for (int i = 0; i < n; i++) {
        sd_proposal* p = &proposals[i];
        const sd_foreseen* known = &d->foreseen[p->sequence];
        for (int node = 1; node < p->tree.n_nodes && p->n_text + node - 1 < known->n; node++) {
            int32_t token = known->text[p->n_text + node - 1];
            double u = sd_uniform(p->stream, (uint32_t)p->n_text, SD_DRAW_DIAL, (uint32_t)node);
            if (!(u < d->alpha)) token = (token + 1) % d->n_vocab;
            p->tree.tokens[node] = token;
            p->tree.drawn_from[node].point = token; /* it was no sample of the draft's */
        }
    }
    base->other_s = d->inner->other_s;
    return SD_OK;
}

static sd_status commit(sd_drafter* base, int sequence, const int32_t* path, int n_path) {
    sd_drafter* inner = ((dialled_drafter*)base)->inner;
    return inner->commit(inner, sequence, path, n_path);
}

static void release(sd_drafter* base) {
    dialled_drafter* d = (dialled_drafter*)base;
    d->inner->free(d->inner);
    sd_arena_free(&d->arena);
    sd_free(d);
}

static void lay_out(dialled_drafter* d, const sd_foreseen* foreseen, int n) {
    d->foreseen = sd_arena_take(&d->arena, (size_t)n, sizeof *d->foreseen);
    for (int i = 0; i < n; i++) {
        int32_t* text = sd_arena_take(&d->arena, (size_t)foreseen[i].n, sizeof *text);
        if (d->arena.base == NULL) continue;
        memcpy(text, foreseen[i].text, (size_t)foreseen[i].n * sizeof *text);
        d->foreseen[i] = (sd_foreseen){text, foreseen[i].n};
    }
}

sd_status sd_dialled_drafter_create(sd_drafter* inner, double alpha, int n_vocab, const sd_foreseen* foreseen,
                                    int n, sd_drafter** drafter) {
    sd_status status = SD_OK;
    dialled_drafter* d = NULL;
    if (!(alpha >= 0.0 && alpha <= 1.0)) {
        status = sd_fail(SD_ERR_VALUE, "dial: alpha is %g, expected 0 to 1", alpha);
        goto fail;
    }
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < foreseen[i].n; j++) {
            if (foreseen[i].text[j] >= 0 && foreseen[i].text[j] < n_vocab) continue;
            status = sd_fail(SD_ERR_VALUE, "dial: text %d: token %d is %d, expected 0 to %d", i, j,
                             (int)foreseen[i].text[j], n_vocab - 1);
            goto fail;
        }
    }
    status = SD_ERR_MEMORY;
    if ((d = sd_alloc(sizeof *d)) == NULL) goto fail;
    lay_out(d, foreseen, n);
    if ((status = sd_arena_commit(&d->arena)) != SD_OK) goto fail;
    lay_out(d, foreseen, n);
    d->base = (sd_drafter){0.0, begin, propose, commit, release};
    d->inner = inner;
    d->alpha = alpha;
    d->n_vocab = n_vocab;
    *drafter = &d->base;
    return SD_OK;
fail:
    sd_free(d);
    inner->free(inner);
    return status;
}
