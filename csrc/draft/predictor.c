#include "predictor.h"

sd_status sd_predictor_reserve(sd_predictor* p) { return p->reserve ? p->reserve(p) : SD_OK; }

void sd_predictor_begin(sd_predictor* p, int sequence, const sd_prompt* prompt) {
    if (p->begin) p->begin(p, sequence, prompt);
}

sd_status sd_predictor_read(sd_predictor* p, int* done) {
    *done = 1;
    return p->read ? p->read(p, done) : SD_OK;
}

void sd_predictor_share(sd_predictor* p, const sd_proposal* proposal, int32_t duplicate, int32_t node) {
    if (p->share) p->share(p, proposal, duplicate, node);
}

void sd_predictor_free(sd_predictor* p) {
    if (p) p->free(p);
}

void sd_predictor_release(sd_predictor* p) {
    sd_arena_free(&p->arena);
    sd_free(p);
}

sd_status sd_predictor_made(sd_predictor* made, sd_status status, sd_predictor** predictor) {
    if (status == SD_OK)
        *predictor = made;
    else
        made->free(made);
    return status;
}

void sd_drafter_predicts(sd_drafter* drafter, const sd_predictor* predictor) {
    drafter->captures = predictor->captures;
    drafter->in_target = predictor->in_target;
    drafter->extra = predictor->extra;
    drafter->caches = predictor->caches;
    drafter->own_ids = predictor->own_ids;
    if (predictor->observe == NULL) drafter->observe = NULL;
    if (predictor->observe_extra == NULL) drafter->observe_extra = NULL;
}

static sd_predictor* predictor_of(sd_drafter* drafter) { return ((sd_predicting*)drafter)->predictor; }
static sd_status reserve(sd_drafter* drafter) { return sd_predictor_reserve(predictor_of(drafter)); }

static sd_status begin(sd_drafter* drafter, int sequence, const sd_prompt* prompt) {
    sd_predictor_begin(predictor_of(drafter), sequence, prompt);
    return SD_OK;
}

static sd_status read_prompts(sd_drafter* drafter, int* done) {
    return sd_predictor_read(predictor_of(drafter), done);
}

static sd_status observe(sd_drafter* drafter, const sd_proposal* proposal, const int32_t* node_rows,
                         const float* logits, ptrdiff_t stride) {
    sd_predictor* predictor = predictor_of(drafter);
    return predictor->observe(predictor, proposal, node_rows, logits, stride);
}

static sd_status observe_extra(sd_drafter* drafter, int sequence, int n_text, const float* logits,
                               ptrdiff_t stride, int n) {
    sd_predictor* predictor = predictor_of(drafter);
    return predictor->observe_extra(predictor, sequence, n_text, logits, stride, n);
}

sd_status sd_predicting_make(sd_predicting* p, sd_predictor_maker maker, const sd_prediction* prediction) {
    SD_TRY(maker.make(maker.options, prediction, &p->predictor));
    p->drafter.reserve = reserve;
    p->drafter.begin = begin;
    p->drafter.read = read_prompts;
    p->drafter.observe = observe;
    p->drafter.observe_extra = observe_extra;
    sd_drafter_predicts(&p->drafter, p->predictor);
    return SD_OK;
}

void sd_predicting_free(sd_drafter* drafter) {
    sd_predictor_free(predictor_of(drafter));
    sd_drafter_release(drafter);
}
