#include "rules.h"

#include <math.h>

static const sd_distribution* drawn_from(const sd_tree_row* row, int i) {
    return &row->input->tree->drawn_from[row->draft_nodes[i]];
}
static int32_t token_of(const sd_tree_row* row, int i) {
    return row->input->tree->tokens[row->draft_nodes[i]];
}
static double uniform_of(const sd_tree_row* row, int i) { return row->input->uniforms[row->draft_nodes[i]]; }
static int32_t draw(const sd_tree_row* row, const sd_distribution* from) {
    return sd_sample(from, row->input->n_vocab, row->input->uniforms[row->input->tree->n_nodes]);
}

/* Accept x with probability min(1, T(x) / (factor · D(x))). The comparison is strict, so a token without
 * target mass is never accepted; it is a product, so D(x) may be arbitrarily small. */
static int accepts(const sd_tree_row* row, int i, const sd_distribution* target, double factor) {
    int32_t x = token_of(row, i);
    return uniform_of(row, i) * factor * sd_prob(drawn_from(row, i), x) < sd_prob(target, x);
}

/* ---------------------------------------------------------------------------- rejection (2.3, A.5) */

/* No token may be output with probability above T / l. A draft token gets min(T / l, D); the residual,
 * divided by the probability that it is needed, judges the next draft token. So any number of draft tokens
 * keeps the limit. With l = 1 the recovered token comes from norm(max(0, T − D)). */
int sd_judge_rejection(const sd_tree_row* row, int32_t* token) {
    const sd_verify_input* q = row->input;
    sd_distribution left = row->target; /* T / l, or its residual after rejected draft tokens */
    if (left.point < 0) left.factor /= q->lenience;
    for (int i = 0; i < row->n_draft_tokens; i++) {
        if (accepts(row, i, &left, 1.0)) return i;
        const sd_distribution* draft = drawn_from(row, i);
        /* overwrite neither the caller's target nor the residual being read */
        double* weights = left.weights == q->residual ? q->residual + q->n_vocab : q->residual;
        sd_distribution rest;
        double accepted, mass = sd_residual(&left, 1.0, draft, q->n_vocab, weights, &rest, &accepted);
        /* `rest` is normalized; with lenience its mass is the residual's over the probability of a
         * rejection */
        if (q->lenience < 1.0 && mass > 0.0 && accepted < 1.0) rest.factor *= mass / (1.0 - accepted);
        left = rest;
    }
    *token = draw(row, &left);
    return row->n_draft_tokens;
}

/* --------------------------------------------------------- the target's own token: greedy, coupled */

/* Lenience at temperature 0: accept a token nearly as probable as the most probable one. The paper prints
 * p(x) ≤ l · max p, where only ≥ makes sense. With l = 1 a tie goes to the lowest id. */
static int is_near_best(const sd_tree_row* row, int32_t x, int32_t best) {
    double l = row->input->lenience;
    const sd_distribution* t = &row->target;
    return x == best || (l < 1.0 && sd_prob(t, x) >= l * sd_prob(t, best));
}

int sd_judge_greedy(const sd_tree_row* row, int32_t* token) {
    *token = sd_most_probable(&row->target, row->input->n_vocab);
    int i = 0;
    while (i < row->n_draft_tokens && !is_near_best(row, token_of(row, i), *token)) i++;
    return i;
}

int sd_judge_coupled(const sd_tree_row* row, int32_t* token) {
    const sd_verify_input* q = row->input;
    *token = q->token_after(q->context, row->node, &row->target);
    int i = 0;
    while (i < row->n_draft_tokens && token_of(row, i) != *token) i++;
    return i;
}

/* ------------------------------------------------------------------ k-sequential selection (SpecTr) */

/* Probability that at least one of k draft tokens is accepted, each with probability b. */
static double any_of(int k, double b) { return b < 1.0 ? -expm1(k * log1p(-b)) : 1.0; }

/* May the target be divided by rho, so that no token exceeds its target probability? 1e-14 allows for
 * rounding: with T = D the sides differ by (rho - 1) squared, and the root is 1. */
static int divides(const sd_tree_row* row, double rho) {
    double b = sd_overlap(&row->target, 1.0 / rho, drawn_from(row, 0), row->input->n_vocab);
    return any_of(row->n_draft_tokens, b) <= rho * b + 1e-14;
}

/* Smallest ρ in [1, k], from above, with 1 − (1 − b)^k ≤ ρ b, where b = Σ min(D, T / ρ). A larger ρ is exact
 * too but accepts less, so its last bits do not matter. */
static double division_factor(const sd_tree_row* row) {
    double low = 1.0, high = row->n_draft_tokens;
    if (high == 1.0 || divides(row, low)) return low;
    for (int step = 0; step < 50; step++) {
        double middle = 0.5 * (low + high);
        if (divides(row, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

int sd_judge_k_sequential(const sd_tree_row* row, int32_t* token) {
    const sd_verify_input* q = row->input;
    const sd_distribution* target = &row->target;
    int k = row->n_draft_tokens;
    if (k == 0) {
        *token = draw(row, target);
        return 0;
    }
    const sd_distribution* draft = drawn_from(row, 0);
    double rho = division_factor(row);
    for (int i = 0; i < k; i++)
        if (accepts(row, i, target, rho)) return i;
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
    *token = draw(row, &rest);
    return k;
}

/* ------------------------------------------------------------------------------- classical (A.2) */

/* max T / D; infinite where D lacks a token of T. */
static double largest_ratio(const sd_tree_row* row, const sd_distribution* draft) {
    double largest = 0.0;
    for (int32_t x = 0; x < row->input->n_vocab; x++) {
        double t = sd_prob(&row->target, x);
        if (t > 0.0) largest = fmax(largest, t / sd_prob(draft, x));
    }
    return largest;
}

int sd_judge_classical(const sd_tree_row* row, int32_t* token) {
    for (int i = 0; i < row->n_draft_tokens; i++)
        if (accepts(row, i, &row->target, largest_ratio(row, drawn_from(row, i)))) return i;
    *token = draw(row, &row->target); /* unmodified */
    return row->n_draft_tokens;
}

/* ---------------------------------------------------------------------------------------------- */

double sd_tree_row_beta(const sd_tree_row* row, int accepted) {
    const sd_verify_input* q = row->input;
    if (row->n_draft_tokens > 1 || q->rule == SD_RULE_COUPLED) return accepted < row->n_draft_tokens;
    const sd_distribution *target = &row->target, *draft = drawn_from(row, 0);
    if (q->rule == SD_RULE_CLASSICAL) return fmin(1.0 / largest_ratio(row, draft), 1.0);
    if (q->rule != SD_RULE_GREEDY) {
        double scale = target->point < 0 ? 1.0 / q->lenience : 1.0;
        return sd_overlap(target, scale, draft, q->n_vocab);
    }
    int32_t best = sd_most_probable(target, q->n_vocab);
    if (q->lenience == 1.0 || target->point >= 0) return sd_prob(draft, best);
    double beta = 0.0;
    for (int32_t x = 0; x < q->n_vocab; x++)
        if (is_near_best(row, x, best)) beta += sd_prob(draft, x);
    return fmin(beta, 1.0);
}
