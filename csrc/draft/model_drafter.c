#include "model_drafter.h"

#include "clock.h"

typedef struct model_drafter {
    sd_drafter base; /* must stay first */
    sd_reader reader;
    sd_arena arena; /* owns the arrays below */
    int n_sequences;
    sd_reading* readings; /* [n_sequences] of the sequences still drafting in this step */
    int32_t* nodes;       /* [n_sequences] the last node of each proposal */
    sd_guesser guesser;
} model_drafter;

static void lay_out(model_drafter* d, const sd_model_drafter_options* options) {
    size_t n = (size_t)options->n_sequences;
    d->readings = sd_arena_take(&d->arena, n, sizeof *d->readings);
    d->nodes = sd_arena_take(&d->arena, n, sizeof *d->nodes);
    d->guesser = sd_guesser_take(&d->arena, &options->guessing, options->model->config.n_vocab);
}

static sd_status begin(sd_drafter* base, int sequence, const int32_t* prompt, int n_prompt, int* done) {
    return sd_reader_begin(&((model_drafter*)base)->reader, sequence, prompt, n_prompt, done);
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    model_drafter* d = (model_drafter*)base;
    base->other_s = 0.0;
    for (int i = 0; i < n; i++) {
        sd_status status = sd_reader_follow(&d->reader, &proposals[i]);
        if (status != SD_OK) return status;
        d->nodes[i] = 0;
    }
    for (;;) { /* one token for every sequence that wants another */
        int n_drafting = 0;
        for (int i = 0; i < n; i++)
            if (sd_proposal_wants(&proposals[i], d->nodes[i]))
                d->readings[n_drafting++] = (sd_reading){&proposals[i], &d->nodes[i], 1};
        if (n_drafting == 0) return SD_OK;
        sd_status status = sd_reader_read(&d->reader, d->readings, n_drafting);
        if (status != SD_OK) return status;
        double begun = sd_now();
        const sd_workspace* w = &d->reader.workspace;
        for (int i = 0; i < n_drafting; i++) {
            int32_t* node = &d->nodes[d->readings[i].proposal - proposals];
            *node = sd_guess(&d->guesser, d->readings[i].proposal, *node, w->logits + i * w->ld_logits);
        }
        base->other_s += sd_now() - begun;
    }
}

static void release(sd_drafter* base) {
    model_drafter* d = (model_drafter*)base;
    sd_reader_free(&d->reader);
    sd_arena_free(&d->arena);
    sd_free(d);
}

sd_status sd_model_drafter_create(const sd_model_drafter_options* options, sd_drafter** drafter) {
    sd_status status = sd_gamma_check(options->gamma);
    if (status == SD_OK) status = sd_guessing_check(&options->guessing, options->model->config.n_vocab);
    if (status != SD_OK) return status;
    model_drafter* d = sd_alloc(sizeof *d);
    if (d == NULL) return SD_ERR_MEMORY;
    d->base = (sd_drafter){.begin = begin, .propose = propose, .free = release};
    d->n_sequences = options->n_sequences;
    lay_out(d, options);
    if ((status = sd_arena_commit(&d->arena)) != SD_OK) goto fail;
    lay_out(d, options);
    const sd_reader_options reading = {
        options->model,     options->n_sequences, options->n_text, options->gamma, 1,
        options->n_threads, options->skipped};
    if ((status = sd_reader_create(&d->reader, &reading)) != SD_OK) goto fail;
    *drafter = &d->base;
    return SD_OK;
fail:
    release(&d->base);
    return status;
}
