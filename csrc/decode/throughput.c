#include "throughput.h"

#include <math.h>

/* Rounds over which the machine's speed is averaged; a round counts as at most FASTER times slower or faster,
 * as in a cost model, so that both converge together. */
#define SPEED 24.0
#define FASTER 1.3
/* Rounds in a row, all slower or all faster by more than FASTER, that show a new speed. */
#define SUDDEN 4
/* Rounds over which a lasting speed becomes the usual one. Slow rounds deviate further than fast ones, so the
 * slowness would otherwise rise forever. */
#define USUAL 1024.0
/* Rounds that the measured tokens per second average over. */
#define ROUNDS 64.0
/* Weight of the planned rate against the measured one, in rounds. */
#define PLAN_WEIGHT 8.0
/* Weight kept of the measured rate of an earlier session, in rounds. */
#define N_CERTAIN 16.0

sd_expert_reads sd_expert_reads_of(const sd_config* c) {
    const sd_experts* e = &c->experts;
    double d = c->d_model;
    double of_width = d * (c->gated ? 3.0 : 2.0), experts = 0.0, rest = d * c->n_vocab;
    for (int i = 0; i < c->n_layer; i++) {
        const sd_layer_config* layer = &c->layers[i];
        int dense = !layer->mixture || e->with_dense;
        double heads = 2.0 * (sd_query_width(layer) + sd_key_width(layer));
        rest += d * heads + of_width * (dense ? layer->d_ff : e->shared_width);
        if (layer->mixture) experts += of_width * e->width * e->n_chosen;
    }
    if (experts == 0.0) return (sd_expert_reads){0};
    return (sd_expert_reads){experts / (experts + rest), 1.0 - (double)e->n_chosen / e->n};
}

void sd_throughput_start(sd_throughput* t, sd_expert_reads expert_reads) {
    sd_cost_model_reads(&t->target, expert_reads);
    double less = t->n_drafted > N_CERTAIN ? N_CERTAIN / t->n_drafted : 1.0;
    t->tokens *= less, t->seconds *= less, t->n_drafted *= less;
    t->starting = 1;
}

void sd_throughput_begin(sd_throughput* t, int n_open) {
    double plain_s = sd_cost_model_seconds(&t->target, n_open);
    t->n_open = n_open;
    t->plain_rate = plain_s > 0.0 ? n_open / plain_s : 0.0;
    t->best_tokens = n_open;
    t->best_seconds = plain_s;
}

void sd_throughput_plan(sd_throughput* t, double tokens, double seconds) {
    if (tokens * t->best_seconds <= t->best_tokens * seconds) return;
    t->best_tokens = tokens;
    t->best_seconds = seconds;
}

int sd_throughput_knows_plain(const sd_throughput* t) {
    int n = t->n_open;
    return sd_cost_model_seen(&t->target, (n + 1) / 2, n + n / 2) > 0.0;
}

double sd_throughput_rate(const sd_throughput* t) {
    if (t->plain_rate <= 0.0) return 0.0;
    double rate = (t->tokens + PLAN_WEIGHT * t->best_tokens) / (t->seconds + PLAN_WEIGHT * t->best_seconds);
    return fmax(rate, t->plain_rate);
}

double sd_throughput_gain(const sd_throughput* t) {
    return t->plain_rate > 0.0 ? t->best_tokens / (t->best_seconds * t->plain_rate) : 1.0;
}

/* Follow the speed of the machine, which is shared and changes within milliseconds. All learned seconds are
 * scaled to one speed, so measurements of different times can be compared. */
static void follow_speed(sd_throughput* t, int n_rows, double seconds, double expected_draft_s) {
    if (t->slowness == 0.0) t->slowness = 1.0;
    if (t->starting || sd_cost_model_seen(&t->target, n_rows, n_rows) < 3.0 || expected_draft_s < 0.0) return;
    double expected = sd_cost_model_seconds(&t->target, n_rows) + expected_draft_s;
    double ratio = seconds / (expected * t->slowness);
    int side = (ratio > FASTER) - (ratio < 1.0 / FASTER);
    if (side * t->n_apart <= 0) t->n_apart = 0, t->nearest = ratio;
    t->nearest = side > 0 ? fmin(t->nearest, ratio) : fmax(t->nearest, ratio);
    t->n_apart += side;
    if (t->n_apart == SUDDEN || t->n_apart == -SUDDEN) {
        t->slowness *= t->nearest;
        t->n_apart = 0;
        return;
    }
    t->slowness *= 1.0 + (fmin(FASTER, fmax(1.0 / FASTER, ratio)) - 1.0) / SPEED - log(t->slowness) / USUAL;
}

void sd_throughput_measure(sd_throughput* t, int n_rows, double draft_s, double rest_s,
                           double expected_draft_s) {
    follow_speed(t, n_rows, draft_s + rest_s, expected_draft_s);
    /* The first round has cold caches: its time is only better than none for a plain round. */
    if (!t->starting || (!t->target.known && n_rows == t->n_open))
        sd_cost_model_learn(&t->target, n_rows, rest_s / t->slowness);
    t->starting = 0;
}

void sd_throughput_add(sd_throughput* t, int n_rows, int n_tokens, double draft_s) {
    double keep = 1.0 - 1.0 / ROUNDS;
    t->tokens = keep * t->tokens + n_tokens;
    t->seconds = keep * t->seconds + draft_s + sd_cost_model_seconds(&t->target, n_rows);
    t->n_drafted = keep * t->n_drafted + 1.0;
}
