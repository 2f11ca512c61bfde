#include "bigram_drafter.h"

#include <math.h>
#include <string.h>

typedef struct bigram_drafter {
    sd_drafter base; /* must stay first */
    const sd_bigram* bigram;
    sd_arena arena; /* owns the arrays below */
    sd_guesser guesser;
    float* logits; /* [n_vocab] */
} bigram_drafter;

static sd_status check_finite(const char* name, const float* row, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(row[i]))
            return sd_fail(SD_ERR_VALUE, "%s[%lld] is %g, expected a finite number", name, (long long)i,
                           (double)row[i]);
    return SD_OK;
}

sd_status sd_bigram_check(const sd_bigram* b, int64_t n_pairs) {
    for (int y = 0; y <= b->n_vocab; y++) {
        int64_t low = y == 0 ? 0 : b->starts[y - 1], high = y == 0 ? 0 : n_pairs;
        if (y == b->n_vocab) low = n_pairs;
        if (b->starts[y] < low || b->starts[y] > high)
            return sd_fail(SD_ERR_VALUE, "starts[%d] is %lld, expected %lld to %lld", y,
                           (long long)b->starts[y], (long long)low, (long long)high);
    }
    for (int64_t i = 0; i < n_pairs; i++)
        if (b->successors[i] < 0 || b->successors[i] >= b->n_vocab)
            return sd_fail(SD_ERR_VALUE, "successors[%lld] is %d, expected 0 to %d", (long long)i,
                           (int)b->successors[i], b->n_vocab - 1);
    sd_status status = check_finite("base", b->base, b->n_vocab);
    if (status == SD_OK) status = check_finite("shifts", b->shifts, b->n_vocab);
    return status == SD_OK ? check_finite("logits", b->logits, n_pairs) : status;
}

/* The row of token y. */
static void fill(const sd_bigram* b, int32_t y, float* logits) {
    for (int x = 0; x < b->n_vocab; x++) logits[x] = b->base[x] + b->shifts[y];
    for (int64_t i = b->starts[y]; i < b->starts[y + 1]; i++) logits[b->successors[i]] = b->logits[i];
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    bigram_drafter* d = (bigram_drafter*)base;
    for (int i = 0; i < n; i++) {
        sd_proposal* p = &proposals[i];
        for (int node = 0; sd_proposal_wants(p, node);) {
            fill(d->bigram, p->tree.tokens[node], d->logits);
            node = sd_guess(&d->guesser, p, node, d->logits);
        }
    }
    return SD_OK;
}

static void release(sd_drafter* base) {
    sd_arena_free(&((bigram_drafter*)base)->arena);
    sd_free(base);
}

static void lay_out(bigram_drafter* d, const sd_guessing* guessing) {
    d->guesser = sd_guesser_take(&d->arena, guessing, d->bigram->n_vocab);
    d->logits = sd_arena_take(&d->arena, (size_t)d->bigram->n_vocab, sizeof *d->logits);
}

sd_status sd_bigram_drafter_create(const sd_bigram* bigram, const sd_guessing* guessing, int gamma,
                                   sd_drafter** drafter) {
    sd_status status = sd_gamma_check(gamma);
    if (status == SD_OK) status = sd_guessing_check(guessing, bigram->n_vocab);
    if (status != SD_OK) return status;
    bigram_drafter* d = sd_alloc(sizeof *d);
    if (d == NULL) return SD_ERR_MEMORY;
    d->base = (sd_drafter){.propose = propose, .free = release};
    d->bigram = bigram;
    lay_out(d, guessing);
    if ((status = sd_arena_commit(&d->arena)) != SD_OK) {
        sd_free(d);
        return status;
    }
    lay_out(d, guessing);
    *drafter = &d->base;
    return SD_OK;
}
