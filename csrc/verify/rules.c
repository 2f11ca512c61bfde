#include "rules.h"

#include <math.h>

static const sd_distribution* drawn_from(const sd_place* place, int i) {
    return &place->question->tree->drawn_from[place->guesses[i]];
}
static int32_t token_of(const sd_place* place, int i) {
    return place->question->tree->tokens[place->guesses[i]];
}
static double uniform_of(const sd_place* place, int i) {
    return place->question->uniforms[place->guesses[i]];
}
static int32_t draw(const sd_place* place, const sd_distribution* from) {
    return sd_sample(from, place->question->n_vocab,
                     place->question->uniforms[place->question->tree->n_nodes]);
}

/* x is accepted with probability min(1, T(x) / (factor · D(x))). The comparison is strict, so a
 * token without target mass is never accepted, and it is a product, so that D(x) may be as small as
 * it likes. */
static int accepts(const sd_place* place, int i, const sd_distribution* target, double factor) {
    int32_t x = token_of(place, i);
    return uniform_of(place, i) * factor * sd_prob(drawn_from(place, i), x) < sd_prob(target, x);
}

/* ---------------------------------------------------------------------------- rejection (2.3, A.5) */

/* Against T / l, what each token may get at most: guesses get min(T / l, D), and what is left, over
 * the chance that it is needed, is what the next guess is held against. So for any number of guesses
 * no token gets more than T / l. With l = 1 this is norm(max(0, T − D)). */
int sd_judge_rejection(const sd_place* place, int32_t* token) {
    const sd_question* q = place->question;
    sd_distribution left = place->target; /* T / l, or what rejected guesses have left of it */
    if (left.point < 0) left.factor /= q->lenience;
    for (int i = 0; i < place->n_guesses; i++) {
        if (accepts(place, i, &left, 1.0)) return i;
        const sd_distribution* draft = drawn_from(place, i);
        double accepted = q->lenience < 1.0 ? sd_overlap(&left, 1.0, draft, q->n_vocab) : 0.0;
        /* neither the caller's target nor the residual it is taken from is written over */
        double* weights = left.weights == q->residual ? q->residual + q->n_vocab : q->residual;
        sd_distribution rest;
        double mass = sd_residual(&left, 1.0, draft, q->n_vocab, weights, &rest);
        /* `rest` is normalised; with lenience its mass is that of the residual over the chance of a rejection */
        if (q->lenience < 1.0 && mass > 0.0 && accepted < 1.0) rest.factor *= mass / (1.0 - accepted);
        left = rest;
    }
    *token = draw(place, &left);
    return place->n_guesses;
}

/* --------------------------------------------------------- the target's own token: greedy, coupled */

/* Lenience for argmax: a token nearly as probable as the most probable one will do. The paper
 * prints p(x) ≤ l · max p, which cannot be meant. With l = 1 a tie goes to the lowest id. */
static int will_do(const sd_place* place, int32_t x, int32_t best) {
    double l = place->question->lenience;
    const sd_distribution* t = &place->target;
    return x == best || (l < 1.0 && sd_prob(t, x) >= l * sd_prob(t, best));
}

int sd_judge_greedy(const sd_place* place, int32_t* token) {
    *token = sd_most_probable(&place->target, place->question->n_vocab);
    int i = 0;
    while (i < place->n_guesses && !will_do(place, token_of(place, i), *token)) i++;
    return i;
}

int sd_judge_coupled(const sd_place* place, int32_t* token) {
    const sd_question* q = place->question;
    *token = q->token_after(q->context, place->node, &place->target);
    int i = 0;
    while (i < place->n_guesses && token_of(place, i) != *token) i++;
    return i;
}

/* ------------------------------------------------------------------ k-sequential selection (SpecTr) */

/* Chance that k guesses are not all rejected, one being accepted with chance b. */
static double any_of(int k, double b) { return b < 1.0 ? -expm1(k * log1p(-b)) : 1.0; }

/* May the target be divided by rho? Then no token is given out more often than the target allows. The
 * 1e-14 is for rounding: with T = D the sides differ by (rho - 1) squared, and the root is 1. */
static int divides(const sd_place* place, double rho) {
    double b = sd_overlap(&place->target, 1.0 / rho, drawn_from(place, 0), place->question->n_vocab);
    return any_of(place->n_guesses, b) <= rho * b + 1e-14;
}

/* The smallest ρ of [1, k], from above, with 1 − (1 − b)^k ≤ ρ b, where b = Σ min(D, T / ρ). Larger
 * ones are exact too and accept less, so the last bits do not matter. */
static double division_factor(const sd_place* place) {
    double low = 1.0, high = place->n_guesses;
    if (high == 1.0 || divides(place, low)) return low;
    for (int step = 0; step < 50; step++) {
        double middle = 0.5 * (low + high);
        if (divides(place, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

int sd_judge_k_sequential(const sd_place* place, int32_t* token) {
    const sd_question* q = place->question;
    const sd_distribution* target = &place->target;
    int k = place->n_guesses;
    if (k == 0) {
        *token = draw(place, target);
        return 0;
    }
    const sd_distribution* draft = drawn_from(place, 0);
    double rho = division_factor(place);
    for (int i = 0; i < k; i++)
        if (accepts(place, i, target, rho)) return i;
    /* T − min(D, T / ρ) · (1 − (1 − b)^k) / b */
    sd_distribution rest = *target;
    double b = sd_overlap(target, 1.0 / rho, draft, q->n_vocab);
    if (target->point < 0 && b > 0.0) {
        double given = any_of(k, b) / b, mass = 0.0;
        for (int32_t x = 0; x < q->n_vocab; x++) {
            double p = sd_prob(target, x);
            q->residual[x] = fmax(0.0, p - fmin(sd_prob(draft, x), p / rho) * given);
            mass += q->residual[x];
        }
        if (mass > 0.0) rest = (sd_distribution){-1, q->residual, mass, 1.0 / mass};
    }
    *token = draw(place, &rest);
    return k;
}

/* ------------------------------------------------------------------------------- classical (A.2) */

/* max T / D; infinite where D lacks a token of T. */
static double largest_ratio(const sd_place* place, const sd_distribution* draft) {
    double largest = 0.0;
    for (int32_t x = 0; x < place->question->n_vocab; x++) {
        double t = sd_prob(&place->target, x);
        if (t > 0.0) largest = fmax(largest, t / sd_prob(draft, x));
    }
    return largest;
}

int sd_judge_classical(const sd_place* place, int32_t* token) {
    for (int i = 0; i < place->n_guesses; i++)
        if (accepts(place, i, &place->target, largest_ratio(place, drawn_from(place, i)))) return i;
    *token = draw(place, &place->target); /* unmodified */
    return place->n_guesses;
}

/* ---------------------------------------------------------------------------------------------- */

double sd_place_beta(const sd_place* place, int accepted) {
    const sd_question* q = place->question;
    if (place->n_guesses > 1 || q->rule == SD_RULE_COUPLED) return accepted < place->n_guesses;
    const sd_distribution *target = &place->target, *draft = drawn_from(place, 0);
    if (q->rule == SD_RULE_CLASSICAL) return fmin(1.0 / largest_ratio(place, draft), 1.0);
    if (q->rule != SD_RULE_GREEDY) {
        double scale = target->point < 0 ? 1.0 / q->lenience : 1.0;
        return sd_overlap(target, scale, draft, q->n_vocab);
    }
    int32_t best = sd_most_probable(target, q->n_vocab);
    if (q->lenience == 1.0 || target->point >= 0) return sd_prob(draft, best);
    double beta = 0.0;
    for (int32_t x = 0; x < q->n_vocab; x++)
        if (will_do(place, x, best)) beta += sd_prob(draft, x);
    return fmin(beta, 1.0);
}
