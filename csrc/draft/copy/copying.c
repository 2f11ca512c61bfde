#include "copying.h"

#include <string.h>

/* Weight of the prior in cases, and the number of cases after which old ones are halved. */
#define PRIOR_CASES 4.0
#define MEMORY 64.0

static int capped(int length) { return length < SD_COPY_LENGTHS ? length : SD_COPY_LENGTHS - 1; }
void sd_odds_clear(sd_odds* o) { memset(o, 0, sizeof *o); }

void sd_odds_learn(sd_odds* o, int length, int right) {
    int i = capped(length);
    if (o->tried[i] >= MEMORY) {
        o->tried[i] /= 2.0;
        o->right[i] /= 2.0;
    }
    o->tried[i] += 1.0;
    o->right[i] += right ? 1.0 : 0.0;
}

double sd_odds_of(const sd_odds* o, int length) {
    int i = capped(length);
    double prior = (i + 0.5) / (i + 2.5);
    return (o->right[i] + PRIOR_CASES * prior) / (o->tried[i] + PRIOR_CASES);
}

int32_t sd_copy_token(const sd_copy* c, int i) {
    int left = c->n_text - c->at;
    if (left <= 0 || (i >= left && !c->periodic)) return -1;
    return c->text[c->at + i % left];
}

void sd_copies_grow(sd_proposal* p, const sd_copy* copies, int n) {
    int nodes[SD_MAX_COPIES] = {0}, n_made[SD_MAX_COPIES] = {0}, ended[SD_MAX_COPIES] = {0}, n_open = 0;
    const sd_copy* open[SD_MAX_COPIES];
    for (int i = 0; i < n; i++) {
        int32_t token = sd_copy_token(&copies[i], 0);
        int known = token < 0;
        for (int j = 0; j < n_open; j++) known |= sd_copy_token(open[j], 0) == token;
        if (!known) open[n_open++] = &copies[i];
    }
    for (;;) {
        int best = -1;
        double best_path_prob = 0.0, best_confidence = 0.0;
        for (int i = 0; i < n_open; i++) {
            if (ended[i] || !sd_proposal_has_capacity(p, nodes[i]) || sd_copy_token(open[i], n_made[i]) < 0)
                continue;
            double confidence = sd_odds_of(open[i]->odds, open[i]->length + n_made[i]);
            double path_prob = p->path_prob[nodes[i]] * confidence;
            if (path_prob > best_path_prob)
                best = i, best_path_prob = path_prob, best_confidence = confidence;
        }
        if (best < 0) return;
        int32_t token = sd_copy_token(open[best], n_made[best]);
        if (!sd_proposal_allows(p, nodes[best], token)) { /* the constraint ends the copy */
            ended[best] = 1;
            continue;
        }
        if (!sd_proposal_worth_verifying(p, nodes[best], best_confidence)) return; /* nor do the others pay */
        n_made[best]++;
        nodes[best] = sd_proposal_add_point(p, nodes[best], token, best_confidence);
    }
}
