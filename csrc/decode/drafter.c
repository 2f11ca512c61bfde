#include "drafter.h"

#include "pace.h"

int sd_proposal_fits(const sd_proposal* p, int node) {
    return p->tree.n_nodes <= p->budget && p->depths[node] < p->depth;
}

int sd_proposal_wants(const sd_proposal* p, int node) {
    if (!sd_proposal_fits(p, node)) return 0;
    return p->pace == NULL ||
           sd_pace_pays(p->pace, p->reach[node], p->depths[node], p->tree.n_nodes - 1, -1.0);
}

int sd_proposal_takes(sd_proposal* p, int node, double confidence) {
    if (p->pace == NULL) return 1;
    int depth = p->depths[node] + 1;
    double known = sd_pace_chance(p->pace, confidence, depth);
    if (sd_pace_pays(p->pace, p->reach[node], depth - 1, p->tree.n_nodes - 1, known)) return 1;
    p->declined_at = depth;
    p->declined = confidence;
    return 0;
}

int sd_proposal_add(sd_proposal* p, int parent, int32_t token, double confidence) {
    int node = p->tree.n_nodes++;
    p->tree.tokens[node] = token;
    p->tree.parents[node] = parent;
    p->depths[node] = p->depths[parent] + 1;
    if (p->pace != NULL) {
        p->confidences[node] = confidence;
        confidence = sd_pace_chance(p->pace, confidence, p->depths[node]);
    }
    p->reach[node] = p->reach[parent] * confidence;
    return node;
}

int sd_slice_take(int n, int n_read, int* room) {
    int left = n > n_read ? n - n_read : 0, n_here = left < *room ? left : *room;
    *room -= n_here;
    return n_here;
}

sd_status sd_drafter_begin(sd_drafter* d, int sequence, const int32_t* prompt, int n_prompt) {
    return d->begin ? d->begin(d, sequence, prompt, n_prompt) : SD_OK;
}

sd_status sd_drafter_read(sd_drafter* d, int* done) {
    *done = 1;
    return d->read ? d->read(d, done) : SD_OK;
}

sd_status sd_drafter_commit(sd_drafter* d, int sequence, const int32_t* text, int n_text) {
    return d->commit ? d->commit(d, sequence, text, n_text) : SD_OK;
}

static sd_status check(sd_yield yield, sd_rule rule) {
    if (rule == SD_RULE_BLOCK && (yield == SD_YIELD_DRAWS || yield == SD_YIELD_TREES))
        return sd_fail(SD_ERR_VALUE,
                       "the rule 'block' judges chains, expected a draft that proposes no trees");
    if (rule == SD_RULE_K_SEQUENTIAL && yield == SD_YIELD_TREES)
        return sd_fail(
            SD_ERR_VALUE,
            "the rule 'k-sequential' judges independent draws of one distribution, expected a draft "
            "whose trees are made of such, sampled above temperature 0");
    return SD_OK;
}

sd_status sd_drafter_check(const sd_drafter* drafter, sd_rule rule) { return check(drafter->yield, rule); }

/* Guesses if nobody may have more than `most`. */
static int count_guesses(const sd_proposal* proposals, int n, int most) {
    int n_guesses = 0;
    for (int i = 0; i < n; i++) n_guesses += proposals[i].budget < most ? proposals[i].budget : most;
    return n_guesses;
}

void sd_proposals_share(sd_proposal* proposals, int n, int n_rows, int* turn) {
    int room = n_rows - n, most = 0, n_wanting = 0, at = 0;
    if (count_guesses(proposals, n, SD_MAX_GAMMA) <= room) return;
    while (count_guesses(proposals, n, most + 1) <= room) most++;
    int left = room - count_guesses(proposals, n, most);
    for (int i = 0; i < n; i++) n_wanting += proposals[i].budget > most;
    *turn %= n_wanting;
    for (int i = 0; i < n; i++) {
        if (proposals[i].budget <= most) continue;
        proposals[i].budget = most + ((at++ - *turn + n_wanting) % n_wanting < left);
    }
    *turn += left;
}
