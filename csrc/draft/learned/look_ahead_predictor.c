/* Look-ahead embeddings: the target's logits after learned vectors predict the next draft tokens. */
#include "predictors.h"

#include <string.h>

#include "pass.h"

/* The target's logits after a sequence's extra query tokens. */
typedef struct outlook {
    int n_text;          /* length of the text before them, including the root of the next round */
    int n;               /* number of tokens; 0: none */
    float* logits;       /* [extra.n, ld_logits] */
    sd_failure* failure; /* of the sequence alone; borrowed */
} outlook;

typedef struct look_ahead_predictor {
    sd_predictor base; /* must stay first */
    int n_vocab;
    outlook* outlooks; /* [n_sequences] */
    float* logits;     /* [n_sequences · n_rows, ld_logits] */
} look_ahead_predictor;

static void lay_out(look_ahead_predictor* r, const sd_prediction* of) {
    size_t n = (size_t)of->drafting->n_sequences, row = (size_t)r->base.ld_logits * sizeof(float);
    r->outlooks = sd_arena_take(&r->base.arena, n, sizeof *r->outlooks);
    r->base.logits = r->logits = sd_arena_take(&r->base.arena, n * (size_t)of->n_rows, row);
    for (size_t i = 0; i < n; i++) {
        float* logits = sd_arena_take(&r->base.arena, (size_t)r->base.extra.n, row);
        if (r->base.arena.base != NULL) r->outlooks[i].logits = logits;
    }
}

static void begin(sd_predictor* base, int sequence, const sd_prompt* prompt) {
    outlook* o = &((look_ahead_predictor*)base)->outlooks[sequence];
    o->n = 0;
    o->failure = prompt->failure;
}

static sd_status follow(sd_predictor* base, sd_proposal* p) {
    const outlook* o = &((const look_ahead_predictor*)base)->outlooks[p->sequence];
    int limit = p->n_text == o->n_text ? o->n : 0;
    if (p->depth > limit) p->depth = limit;
    return SD_OK;
}

static sd_status predict(sd_predictor* base, const sd_draft_nodes* batch, int n) {
    look_ahead_predictor* r = (look_ahead_predictor*)base;
    float* to = r->logits;
    for (int i = 0; i < n; i++) {
        const sd_proposal* p = batch[i].proposal;
        for (int j = 0; j < batch[i].n_nodes; j++, to += base->ld_logits) {
            ptrdiff_t row = p->depths[batch[i].nodes[j]];
            memcpy(to, r->outlooks[p->sequence].logits + row * base->ld_logits,
                   (size_t)r->n_vocab * sizeof *to);
        }
    }
    return SD_OK;
}

static sd_status observe_extra(sd_predictor* base, int sequence, int n_text, const float* logits,
                               ptrdiff_t stride, int n) {
    const look_ahead_predictor* r = (const look_ahead_predictor*)base;
    outlook* o = &r->outlooks[sequence];
    o->n_text = n_text;
    o->n = n;
    for (int k = 0; k < n; k++, logits += stride) {
        if (!sd_all_finite(logits, r->n_vocab)) {
            sd_failure_note(
                o->failure,
                sd_fail(SD_ERR_OVERFLOW,
                        "the draft: the target's logits after look-ahead embedding %d are not finite", k));
            o->n = 0;
            break;
        }
        memcpy(o->logits + k * base->ld_logits, logits, (size_t)r->n_vocab * sizeof *logits);
    }
    return SD_OK;
}

sd_status sd_look_ahead_predictor_make(const void* options, const sd_prediction* of, sd_predictor** out) {
    SD_NEW(look_ahead_predictor, r);
    *r = (look_ahead_predictor){
        .base = SD_MAKE(sd_predictor, .begin = begin, .follow = follow, .predict = predict,
                        .observe_extra = observe_extra, .free = sd_predictor_release),
        .n_vocab = of->drafting->n_vocab};
    sd_extra_queries* extra = &r->base.extra;
    *extra = *(const sd_extra_queries*)options;
    if (extra->n > of->n_levels) extra->n = of->n_levels; /* more would never be draft tokens */
    r->base.ld_logits = sd_whole_panels(r->n_vocab);
    return sd_predictor_made(&r->base, SD_ARENA_BUILD(&r->base.arena, lay_out(r, of)), out);
}
