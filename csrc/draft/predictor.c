#include "predictor.h"

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

void sd_drafter_predicts(sd_drafter* drafter, const sd_predictor* predictor) {
    drafter->taps = predictor->taps;
    drafter->riders = predictor->riders;
    drafter->caches = predictor->caches;
    if (predictor->observe == NULL) drafter->observe = NULL;
    if (predictor->ride == NULL) drafter->ride = NULL;
}
