#include "adaptive_gamma.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

/* Memories, in guesses: of the rate lately; of the rates in general and by depth; of those by confidence. */
#define FEW 12.0
#define MANY 128.0
#define LONG 256.0
/* Rounds within which the machine's speed is followed; a round counts as at most FASTER times slower or
 * faster. */
#define SPEED 24.0
#define FASTER 1.5
/* Standard deviations between the rates of the last FEW and MANY guesses that mean that the text has
 * changed. */
#define CHANGED 3.0
/* Guesses that each rate counts for at most after such a change. */
#define UNCERTAIN 16.0
/* Rounds that the measured tokens per second are a mean of. */
#define ROUNDS 64.0
/* Acceptance rate before anything is known. */
#define FIRST_GUESS 0.7
/* Rounds that the computed rate counts for beside the measured one. */
#define MODEL_WEIGHT 8.0
/* Tokens without drafting when it does not pay: at first, and at most. */
#define FIRST_STRETCH 16.0
#define LAST_STRETCH 1024.0
/* Rounds of a trial after a stretch; rounds in which a guess is accepted do not count. */
#define N_TRIALS 2.0
/* Rounds of an earlier session that the measured rate keeps. */
#define N_CERTAIN 16.0
/* Tokens behind plain decoding at which drafting is given up for a stretch. */
#define LOSS 12.0
/* Guesses that each rate counts for at most after a stretch. */
#define LOOK_AGAIN 8.0
/* Rounds before the first exploration. The gap doubles with each, up to LAST_EXPLORE. */
#define EXPLORE 12.0
#define LAST_EXPLORE 96.0
/* An exploration makes at most so many guesses more than usual. */
#define FURTHER 8
/* Seconds of a step of an unknown draft, over those of plain decoding. */
#define DRAFT_PRIOR 0.05

#define ROUNDING 1e-9 /* that shares may be above 1 by */

/* Upper ends of the confidence bins but the last. Where guesses are good most confidences are near 1. */
static const double ENDS[SD_ADAPTIVE_GAMMA_CONFIDENCES - 1] = {0.05, 0.1, 0.2, 0.3,  0.4,  0.5,  0.6,
                                                               0.7,  0.8, 0.9, 0.95, 0.98, 0.995};

static int bin_of(double confidence) {
    int i = 0;
    while (i < SD_ADAPTIVE_GAMMA_CONFIDENCES - 1 && confidence >= ENDS[i]) i++;
    return i;
}

double sd_adaptive_gamma_confidence(int i) {
    return 0.5 * ((i > 0 ? ENDS[i - 1] : 0.0) + (i < SD_ADAPTIVE_GAMMA_CONFIDENCES - 1 ? ENDS[i] : 1.0));
}

static int row_of(int depth) {
    return (depth < SD_ADAPTIVE_GAMMA_DEPTHS ? depth : SD_ADAPTIVE_GAMMA_DEPTHS) - 1;
}

/* The share, with a prior that counts as `weight` guesses. */
static double share(sd_share s, double prior, double weight) {
    return (s.yes + weight * prior) / (s.n + weight);
}

static void add(sd_share* s, double yes, double memory) {
    s->yes += yes - s->yes / memory;
    s->n += 1.0 - s->n / memory;
}

/* Believe it less. */
static void weaken(sd_share* s, double n) {
    if (s->n > n) s->yes *= n / s->n, s->n = n;
}

void sd_adaptive_gamma_reset(sd_adaptive_gamma* p) {
    memset(p, 0, sizeof *p);
    sd_cost_model_anchor(&p->draft);
    p->stretch = FIRST_STRETCH;
    p->explore_at = p->explore_gap = EXPLORE;
    p->plain_at = p->plain_gap = 16.0;
}

/* What the numbers of a field may be. */
typedef struct range {
    size_t first, n; /* in doubles */
    double low, high;
    int whole; /* integers only */
} range;

#define LARGEST 1e15
#define FIELD(name, low, high, whole)                    \
    {offsetof(sd_adaptive_gamma, name) / sizeof(double), \
     sizeof(((sd_adaptive_gamma*)0)->name) / (sizeof(double)), low, high, whole}
#define COST(name)                                                                              \
    FIELD(name.known, 0, 1, 1), FIELD(name.slope, 0, LARGEST, 0), FIELD(name.n, 0, LARGEST, 0), \
        FIELD(name.at, 0, LARGEST, 0), FIELD(name.mean, 0, LARGEST, 0)

/* Numbers of other fields may be negative: the start of a line, tokens won. */
static const range RANGES[] = {
    FIELD(slowness, 0, LARGEST, 0),
    COST(target),
    COST(draft),
    FIELD(lately, 0, LARGEST, 0),
    FIELD(whole, 0, LARGEST, 0),
    FIELD(by_depth, 0, LARGEST, 0),
    FIELD(by_confidence, 0, LARGEST, 0),
    FIELD(by_both, 0, LARGEST, 0),
    FIELD(confidences, 0, LARGEST, 0),
    FIELD(looks, 0, 1, 1),
    FIELD(tokens, 0, LARGEST, 0),
    FIELD(seconds, 0, LARGEST, 0),
    FIELD(n_drafted, 0, LARGEST, 0),
    FIELD(loss, 0, LARGEST, 0),
    FIELD(rows, 0, SD_MAX_GAMMA + 1, 0),
    FIELD(steps, 0, SD_MAX_GAMMA, 0),
    FIELD(plain_left, 0, LARGEST, 0),
    FIELD(stretch, 0, LARGEST, 0),
    FIELD(trial_left, 0, N_TRIALS, 1),
    FIELD(n_rounds, 0, LARGEST, 1),
    FIELD(explore_at, 0, LARGEST, 0),
    FIELD(explore_gap, 0, LARGEST, 0),
    FIELD(plain_at, 0, LARGEST, 0),
    FIELD(plain_gap, 0, LARGEST, 0),
    FIELD(idle, 0, LARGEST, 1),
    FIELD(n_open, 0, INT_MAX, 1),
    FIELD(horizon, 0, SD_ADAPTIVE_GAMMA_HORIZON, 1),
    FIELD(drafting, 0, 1, 1),
    FIELD(starting, 0, 1, 1),
    FIELD(explore_to, 0, SD_MAX_GAMMA + 1 + FURTHER, 1),
    FIELD(rate, 0, LARGEST, 0),
    FIELD(plain_rate, 0, LARGEST, 0),
    FIELD(target_s, 0, LARGEST, 0),
    FIELD(draft_s, 0, LARGEST, 0),
    FIELD(chance, 0, 1.0 + ROUNDING, 0),
};

/* Not NaN either. */
static sd_status check_range(const double* numbers, const range* r) {
    for (size_t i = r->first; i < r->first + r->n; i++)
        if (!(numbers[i] >= r->low && numbers[i] <= r->high) || (r->whole && numbers[i] != rint(numbers[i])))
            return sd_fail(
                SD_ERR_VALUE,
                "adaptive_gamma[%d] is %g, expected %s from %g to %g, as a session can have learnt it",
                (int)i, numbers[i], r->whole ? "an integer" : "a number", r->low, r->high);
    return SD_OK;
}

/* How often something was so is at most how often it was looked at. */
static sd_status check_shares(const double* numbers) {
    size_t first = offsetof(sd_adaptive_gamma, lately) / sizeof(double);
    size_t end = offsetof(sd_adaptive_gamma, confidences) / sizeof(double);
    for (size_t i = first; i < end; i += 2)
        if (numbers[i] > numbers[i + 1] * (1.0 + ROUNDING) + ROUNDING)
            return sd_fail(SD_ERR_VALUE, "adaptive_gamma[%d] is %g, expected at most adaptive_gamma[%d], %g",
                           (int)i, numbers[i], (int)i + 1, numbers[i + 1]);
    return SD_OK;
}

sd_status sd_adaptive_gamma_check(const double* numbers) {
    const range any = {0, SD_ADAPTIVE_GAMMA_SIZE, -LARGEST, LARGEST, 0};
    sd_status status = check_range(numbers, &any);
    for (size_t i = 0; i < sizeof RANGES / sizeof *RANGES && status == SD_OK; i++)
        status = check_range(numbers, &RANGES[i]);
    return status == SD_OK ? check_shares(numbers) : status;
}

void sd_adaptive_gamma_start(sd_adaptive_gamma* p) {
    if (p->plain_left > FIRST_STRETCH) p->plain_left = FIRST_STRETCH; /* another text may be another matter */
    double less = p->n_drafted > N_CERTAIN ? N_CERTAIN / p->n_drafted : 1.0;
    p->tokens *= less, p->seconds *= less, p->n_drafted *= less;
    p->starting = 1.0;
    p->idle = 0.0;
}

static double whole(const sd_adaptive_gamma* p) { return share(p->whole, FIRST_GUESS, 4.0); }

double sd_adaptive_gamma_chance(const sd_adaptive_gamma* p, double confidence, int depth) {
    int i = bin_of(confidence);
    double prior = 0.5 * (fmin(1.0, fmax(0.0, confidence)) + whole(p));
    prior = share(p->by_confidence[i], prior, 4.0);
    return share(p->by_both[i][row_of(depth)], prior, 16.0);
}

/* Chances by depth: one that was seen little is as the one before it. */
static void fill_chances(sd_adaptive_gamma* p) {
    double last = whole(p);
    p->chance[0] = 1.0;
    for (int depth = 1; depth <= SD_ADAPTIVE_GAMMA_HORIZON; depth++) {
        if (depth <= SD_ADAPTIVE_GAMMA_DEPTHS) last = share(p->by_depth[depth - 1], last, 6.0);
        p->chance[depth] = last;
    }
}

static double draft_seconds(const sd_adaptive_gamma* p, int n_steps) {
    if (p->draft.known > 0.0) return sd_cost_model_seconds(&p->draft, n_steps);
    return DRAFT_PRIOR * n_steps / p->plain_rate;
}

/* The best rate of rounds with k guesses in every sequence, as the estimates have it, joined with what the
 * last rounds gave. */
static double find_rate(const sd_adaptive_gamma* p, int n, int gamma) {
    double path_prob = 1.0, tokens = n, best = p->plain_rate, best_tokens = n,
           best_seconds = n / p->plain_rate;
    for (int k = 1; k <= gamma; k++) {
        path_prob *= p->chance[k];
        tokens += n * path_prob;
        double seconds = sd_cost_model_seconds(&p->target, n * (1 + k)) + draft_seconds(p, n * k);
        if (tokens / seconds > best) best = tokens / seconds, best_tokens = tokens, best_seconds = seconds;
    }
    double rate = (p->tokens + MODEL_WEIGHT * best_tokens) / (p->seconds + MODEL_WEIGHT * best_seconds);
    return fmax(rate, p->plain_rate);
}

static void plan(sd_adaptive_gamma* p, int n, int gamma) {
    int others = (int)fmin(1e6, p->rows * (n - 1) + 0.5), steps = (int)fmin(1e6, p->steps * (n - 1) + 0.5);
    double plain_s = sd_cost_model_seconds(&p->target, n);
    if (gamma > SD_ADAPTIVE_GAMMA_HORIZON) gamma = SD_ADAPTIVE_GAMMA_HORIZON;
    p->plain_rate = plain_s > 0.0 ? n / plain_s : 0.0;
    if (plain_s == 0.0) return;
    fill_chances(p);
    p->horizon = gamma;
    for (int k = 0; k <= gamma; k++) {
        p->target_s[k] = sd_cost_model_seconds(&p->target, others + 1 + k);
        p->draft_s[k] = draft_seconds(p, steps + k);
    }
    p->rate = find_rate(p, n, gamma);
}

int sd_adaptive_gamma_pays(const sd_adaptive_gamma* p, double path_prob, int depth, int n_guesses,
                           double known) {
    if (p->plain_rate <= 0.0) return 0;
    if (n_guesses < p->explore_to || (n_guesses == 0 && p->trial_left > 0.0)) return 1;
    int last = (int)p->horizon;
    if (n_guesses >= last || depth >= last) return path_prob >= sd_adaptive_gamma_node_price(p);
    double worth = p->rate, gain = 0.0, chance = path_prob;
    /* By itself or with those that may follow: another row is not always dearer than the one before. */
    for (int k = 1; n_guesses + k <= last && depth + k <= last && k <= 8; k++) {
        chance *= k == 1 && known >= 0.0 ? known : p->chance[depth + k];
        gain += chance;
        double rows_s = p->target_s[n_guesses + k] - p->target_s[n_guesses];
        double steps_s = p->draft_s[depth + k] - p->draft_s[known >= 0.0 ? depth + 1 : depth];
        if (gain >= worth * (rows_s + steps_s)) return 1;
    }
    if (known >= 0.0 || p->looks == 0.0) return 0;
    /* A step of the draft may also pay by the confidences at which its guess is then worth a row. */
    const double* occurs = p->confidences[depth > 0];
    double row = worth * (p->target_s[n_guesses + 1] - p->target_s[n_guesses]), value = 0.0, n = 0.0;
    for (int i = 0; i < SD_ADAPTIVE_GAMMA_CONFIDENCES; i++) {
        n += occurs[i];
        value +=
            occurs[i] *
            fmax(0.0,
                 path_prob * sd_adaptive_gamma_chance(p, sd_adaptive_gamma_confidence(i), depth + 1) - row);
    }
    return n > 0.0 && value / n >= worth * (p->draft_s[depth + 1] - p->draft_s[depth]);
}

/* Guesses to explore: one more than usual, or the least number above it whose time is not known (lately). */
static int unknown(const sd_adaptive_gamma* p) {
    int usual = (int)(p->rows + 0.5), low = (int)p->n_open;
    for (int k = usual; k < usual + FURTHER && k <= p->horizon; k++)
        if (sd_cost_model_seen(&p->target, low * (1 + k), low * (1 + k)) <= 3.0) return k;
    return usual;
}

int sd_adaptive_gamma_begin(sd_adaptive_gamma* p, int n_open, int gamma) {
    p->n_open = n_open;
    p->drafting = p->explore_to = 0.0;
    plan(p, n_open, gamma);
    if (gamma == 0) return 0;
    /* what drafting is held against must be known, from about so many sequences */
    if (sd_cost_model_seen(&p->target, (n_open + 1) / 2, n_open + n_open / 2) == 0.0) return 0;
    if (p->plain_left > 0.0) return 0;
    if (p->trial_left == 0.0) {
        if (p->n_rounds >= p->plain_at) {
            int close = p->rate < 1.25 * p->plain_rate;
            p->plain_gap = fmin(4.0 * p->plain_gap, close ? 64.0 : 384.0);
            p->plain_at = p->n_rounds + p->plain_gap;
            return 0;
        }
        /* as it is expected and as it has been measured */
        if (!sd_adaptive_gamma_pays(p, 1.0, 0, 0, -1.0) || p->loss > LOSS) {
            p->plain_left = p->stretch;
            p->stretch = fmin(2.0 * p->stretch, LAST_STRETCH);
            return 0;
        }
        if (p->n_rounds >= p->explore_at) {
            p->explore_to = unknown(p);
            p->explore_gap = fmin(2.0 * p->explore_gap, LAST_EXPLORE);
            p->explore_at = p->n_rounds + p->explore_gap;
        }
    }
    p->drafting = 1.0;
    return 1;
}

/* Believe all shares less. */
static void forget(sd_adaptive_gamma* p, double n) {
    weaken(&p->whole, n);
    for (int i = 0; i < SD_ADAPTIVE_GAMMA_DEPTHS; i++) weaken(&p->by_depth[i], n);
    for (int i = 0; i < SD_ADAPTIVE_GAMMA_CONFIDENCES; i++) {
        weaken(&p->by_confidence[i], n);
        for (int j = 0; j < SD_ADAPTIVE_GAMMA_DEPTHS; j++) weaken(&p->by_both[i][j], n);
    }
}

/* Long memories are exact, short ones are up to date: when the last few guesses contradict the many before
 * them, these count less. */
static void notice_change(sd_adaptive_gamma* p) {
    double before = share(p->whole, FIRST_GUESS, 1.0), now = share(p->lately, before, 1.0);
    double deviation = sqrt(before * (1.0 - before) * 0.5 * (1.0 / FEW + 1.0 / MANY));
    /* one guess more or less is never a change */
    if (p->lately.n > 0.6 * FEW && fabs(now - before) > CHANGED * deviation + 1.0 / FEW) forget(p, UNCERTAIN);
}

/* The first guess at a depth. */
static void observe_first(sd_adaptive_gamma* p, double confidence, int depth, double yes) {
    add(&p->lately, yes, FEW);
    add(&p->whole, yes, MANY);
    add(&p->by_depth[row_of(depth)], yes, MANY);
    double* occurs = p->confidences[depth > 1];
    for (int i = 0; i < SD_ADAPTIVE_GAMMA_CONFIDENCES; i++) occurs[i] *= 1.0 - 1.0 / LONG;
    occurs[bin_of(confidence)] += 1.0;
}

void sd_adaptive_gamma_observe(sd_adaptive_gamma* p, const sd_proposal* proposal, const int32_t* path,
                               int n_path) {
    int deepest = 0; /* nodes that hang on the path come in the order of their depths */
    for (int node = 1; node < proposal->tree.n_nodes; node++) {
        int parent = proposal->tree.parents[node], depth = proposal->depths[node];
        if (depth > 1 && (n_path < depth - 1 || path[depth - 2] != parent)) continue;
        double yes = n_path >= depth && path[depth - 1] == node, confidence = proposal->confidences[node];
        if (depth > deepest) observe_first(p, confidence, deepest = depth, yes);
        add(&p->by_confidence[bin_of(confidence)], yes, LONG);
        add(&p->by_both[bin_of(confidence)][row_of(depth)], yes, LONG);
    }
    /* A guess that was looked at and not made: nobody knows, but of its like one does. */
    int depth = proposal->rejected_at;
    if (depth > 0) p->looks = 1.0;
    if (depth > 0 && n_path == depth - 1)
        observe_first(p, proposal->rejected_confidence, depth,
                      sd_adaptive_gamma_chance(p, proposal->rejected_confidence, depth));
    notice_change(p);
}

/* After a stretch without drafting: look again, with little trust in what was. */
static void begin_trial(sd_adaptive_gamma* p) {
    p->plain_left = 0.0;
    p->trial_left = N_TRIALS;
    p->tokens = p->seconds = p->n_drafted = p->loss = p->won = 0.0;
    forget(p, LOOK_AGAIN);
}

static void end_drafting(sd_adaptive_gamma* p, const sd_adaptive_gamma_round* r) {
    /* the draft may have had to read what it missed */
    if (p->starting == 0.0 && p->idle < 4.0) sd_cost_model_learn(&p->draft, r->n_steps, r->draft_s);
    double expected = sd_cost_model_seconds(&p->target, r->n_rows) + draft_seconds(p, r->n_steps);
    double keep = 1.0 - 1.0 / ROUNDS;
    p->tokens = keep * p->tokens + r->n_tokens;
    double seconds = fmin(r->draft_s + r->rest_s, 3.0 * expected);
    p->seconds = keep * p->seconds + seconds;
    /* Tokens behind plain decoding since the last time level with it; ahead of it since the last stretch. */
    double lost = p->plain_rate * seconds - r->n_tokens;
    p->loss = fmax(0.0, p->loss + lost / p->n_open);
    p->won -= lost / p->n_open;
    if (p->won > LOSS) p->stretch = FIRST_STRETCH;
    p->n_drafted = keep * p->n_drafted + 1.0;
    double rate = 1.0 / fmin(ROUNDS, p->n_rounds + 1.0);
    p->rows += (r->n_rows / p->n_open - p->rows) * rate;
    p->steps += (r->n_steps / p->n_open - p->steps) * rate;
    if (p->trial_left > 0.0 && r->n_tokens <= p->n_open) p->trial_left--;
    p->idle = 0.0;
}

/* Follow the speed of the machine, which is shared and changes within milliseconds: all that is learnt is in
 * seconds of a machine of one speed, and so what was seen at one time can be held against another. */
static void follow_speed(sd_adaptive_gamma* p, const sd_adaptive_gamma_round* r) {
    if (p->slowness == 0.0) p->slowness = 1.0;
    if (p->starting > 0.0 || sd_cost_model_seen(&p->target, r->n_rows, r->n_rows) < 3.0) return;
    if (p->drafting > 0.0 && (p->idle >= 4.0 || sd_cost_model_seen(&p->draft, r->n_steps, r->n_steps) < 3.0))
        return;
    double expected = sd_cost_model_seconds(&p->target, r->n_rows);
    if (p->drafting > 0.0) expected += draft_seconds(p, r->n_steps);
    double ratio = (r->draft_s + r->rest_s) / (expected * p->slowness);
    p->slowness *= 1.0 + (fmin(FASTER, fmax(1.0 / FASTER, ratio)) - 1.0) / SPEED;
}

void sd_adaptive_gamma_end(sd_adaptive_gamma* p, const sd_adaptive_gamma_round* measured) {
    follow_speed(p, measured);
    sd_adaptive_gamma_round round = *measured, *r = &round;
    round.draft_s /= p->slowness;
    round.rest_s /= p->slowness;
    /* the first round finds cold caches */
    if (p->starting == 0.0 || p->target.known == 0.0) sd_cost_model_learn(&p->target, r->n_rows, r->rest_s);
    if (p->drafting > 0.0) {
        end_drafting(p, r);
    } else {
        p->idle++;
        if (p->plain_left > 0.0 && (p->plain_left -= r->n_tokens / p->n_open) <= 0.0) begin_trial(p);
    }
    p->starting = 0.0;
    p->n_rounds++;
}

double sd_adaptive_gamma_node_price(const sd_adaptive_gamma* p) {
    return p == NULL ? 0.0 : p->rate * p->target.slope;
}

double sd_adaptive_gamma_step_price(const sd_adaptive_gamma* p) {
    return p == NULL ? 0.0 : p->rate * p->draft.slope;
}
