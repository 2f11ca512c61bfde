/* Traversal Verification: a tree judged from its leaves to its root (Weng et al. 2025, arXiv 2505.12398).
 *
 * A row whose *chance* is p gives the round's output (a path through it, and a token) with probability p, and
 * this output then has the target's distribution. The root's chance is 1. A draft token x drawn from D after
 * the row has the chance min(1, p · T(x) / D(x)). If its row gives no output, max(0, p · T − D) is left of
 * p · T: normalized it is the T of the next draft token, and the row's chance is S / (S + 1 − p) with its sum
 * S. The chance left after the last draft token is that of ending at the row itself.
 *
 * Chances do not depend on what happens below a draft token. So rows are visited from the root, each once,
 * and only those that can still give the output. On a chain this is block verification. */
#include <string.h>

#include "rules.h"

/* Entry of walk.betas for a row with several draft tokens: β is the outcome. */
#define OUTCOME (-1.0)

/* Entries of walk.chances before a row is tried, by the draft tokens below it. */
enum { LEAF = -1, DETERMINISTIC = -2, SAMPLED = -3 };

typedef struct walk {
    const sd_verify_input* input;
    int32_t* rows;    /* [n_nodes] row of each node */
    int32_t* waiting; /* [n_nodes] nodes to visit, the next one last */
    int n_waiting;
    double* chances; /* [n_nodes] by row: its chance once it is tried */
    double* betas;   /* [n_nodes] by row, of those visited */
    /* The node where the path ends unless a waiting one gives the output, and the distribution of the token
     * after it. At a leaf that is the target's, requested last. */
    int end, ends_at_leaf;
    sd_distribution after_end;
    double *of_after_end, *of_row[2]; /* [n_vocab] each: weights of after_end and of the row visited now */
} walk;

/* Mark each row as a leaf, as having only deterministic draft tokens (probability 1) below it, or as having
 * sampled ones. */
static void look_below(walk* w) {
    const sd_tree* tree = w->input->tree;
    for (int i = 0; i < tree->n_nodes; i++) w->chances[i] = LEAF;
    for (int i = tree->n_nodes - 1; i > 0; i--) {
        double* above = &w->chances[w->rows[tree->parents[i]]];
        int sampled =
            w->chances[w->rows[i]] == SAMPLED || sd_prob(&tree->drawn_from[i], tree->tokens[i]) != 1.0;
        double below = sampled ? SAMPLED : DETERMINISTIC;
        *above = below < *above ? below : *above;
    }
}

/* Collect the draft tokens after a row in the order they are tried. Returns their number. */
static int collect(const walk* w, int32_t row, int32_t* children) {
    const sd_tree* tree = w->input->tree;
    const double* order = w->input->order;
    int n = 0;
    for (int i = 1; i < tree->n_nodes; i++) {
        if (w->rows[tree->parents[i]] != row) continue;
        int at = n++;
        for (; at > 0 && order && order[children[at - 1]] > order[i]; at--) children[at] = children[at - 1];
        children[at] = i;
    }
    return n;
}

/* Ask for the target's distribution after a row, by its first node. */
static sd_status target_after(const walk* w, int32_t row, sd_distribution* target) {
    int node = 0;
    while (w->rows[node] != row) node++;
    return w->input->target_after(w->input->context, node, target);
}

/* Chance of a draft token after a row of chance p and target `left`. Where nothing below depends on it, it is
 * decided at once, 1 or 0: at a leaf, and where all is deterministic, as rejection does. */
static double try_child(walk* w, int child, double p, const sd_distribution* left) {
    const sd_verify_input* q = w->input;
    double *chance = &w->chances[w->rows[child]], below = *chance;
    if (below >= 0.0) return 0.0; /* an equal token was rejected: nothing is left of it */
    double t = p * sd_prob(left, q->tree->tokens[child]);
    double d = sd_prob(&q->tree->drawn_from[child], q->tree->tokens[child]);
    *chance = t < d ? t / d : (t > 0.0); /* compared before dividing, so d may be arbitrarily small */
    int settled = q->rule == SD_RULE_TRAVERSAL && below == DETERMINISTIC && p == 1.0 && d == 1.0;
    if (below == LEAF || settled) *chance = q->uniforms[child] < *chance;
    return *chance;
}

/* Let the path end at `node`, with this distribution of the next token, unless one of the n children gives
 * the output. No other node can give it any more. */
static void end_at(walk* w, int node, const sd_distribution* rest, const int32_t* children, int n) {
    size_t n_vocab = (size_t)w->input->n_vocab;
    memmove(w->waiting, children, (size_t)n * sizeof *children);
    w->n_waiting = n;
    w->end = node;
    w->after_end = *rest;
    if (rest->point >= 0) return; /* has no weights */
    int at = rest->weights == w->of_row[1];
    if (rest->weights != w->of_row[at]) memcpy(w->of_row[at], rest->weights, n_vocab * sizeof(double));
    w->after_end.weights = w->of_row[at];
    w->of_row[at] = w->of_after_end;
    w->of_after_end = w->after_end.weights;
}

/* Visit a row by its first node that is tried: find the chances of its draft tokens, and whether the path may
 * end here. */
static sd_status visit(walk* w, int node) {
    const sd_verify_input* q = w->input;
    int32_t row = w->rows[node], *children = w->waiting + w->n_waiting;
    double p = node > 0 ? w->chances[row] : 1.0, u = q->uniforms[node];
    int n = collect(w, row, children), n_open = 0;
    w->ends_at_leaf = n == 0;
    if (n == 0) { /* its chance was decided: 1 */
        w->end = node;
        w->n_waiting = 0;
        return SD_OK;
    }
    sd_distribution left;
    SD_TRY(target_after(w, row, &left));
    double* beta = &w->betas[row];
    int ends = 1;
    for (int i = 0; i < n; i++) {
        int child = children[i];
        const sd_distribution* draft = &q->tree->drawn_from[child];
        double chance = try_child(w, child, p, &left);
        if (chance > 0.0) children[n_open++] = child;
        /* not if the child gives the output for certain, or if the chance left cannot exceed u */
        ends = chance != 1.0 && (node == 0 || i < n - 1 || u < p);
        if (!ends && n == 1) *beta = sd_overlap(&left, 1.0, draft, q->n_vocab);
        if (!ends) break;
        sd_distribution rest = left;
        double* weights = w->of_row[left.weights == w->of_row[0]];
        int is_last = i == n - 1 && node > 0; /* then what is left is rarely needed */
        double mass = sd_residual(&left, p, draft, q->n_vocab, weights, is_last ? NULL : &rest, beta);
        double after = mass + (1.0 - p) > 0.0 ? mass / (mass + (1.0 - p)) : 1.0;
        if (is_last && u < after) sd_residual(&left, p, draft, q->n_vocab, weights, &rest, beta);
        p = after;
        left = rest;
    }
    if (n > 1) *beta = OUTCOME;
    for (int a = 0, b = n_open - 1; a < b; a++, b--) { /* the first one is visited first */
        int32_t first = children[a];
        children[a] = children[b];
        children[b] = first;
    }
    if (ends && (node == 0 || u < p))
        end_at(w, node, &left, children, n_open);
    else
        w->n_waiting += n_open;
    return SD_OK;
}

/* Write the path to the end, and β of the rows on it that have draft tokens. */
static void write_path(const walk* w, sd_verdict* verdict) {
    const int32_t* parents = w->input->tree->parents;
    int depth = 0;
    for (int i = w->end; i > 0; i = parents[i]) depth++;
    verdict->n_path = depth;
    for (int i = w->end; i > 0; i = parents[i]) verdict->path[--depth] = i;
    verdict->n_betas = 0;
    for (int i = 0; i <= verdict->n_path; i++) { /* rows ascend along a path, so no entry is lost */
        int last = i == verdict->n_path;
        if (last && w->ends_at_leaf) break;
        double beta = w->betas[i == 0 ? 0 : w->rows[verdict->path[i - 1]]];
        verdict->betas[verdict->n_betas++] = beta == OUTCOME ? !last : beta;
    }
}

sd_status sd_verify_traversal(const sd_verify_input* q, sd_verdict* verdict) {
    ptrdiff_t n = q->tree->n_nodes, n_vocab = q->n_vocab;
    walk w = {.input = q,
              .rows = q->nodes,
              .waiting = q->nodes + n,
              .n_waiting = 1,
              .chances = q->chances,
              .betas = verdict->betas,
              .of_after_end = q->residual,
              .of_row = {q->residual + n_vocab, q->residual + 2 * n_vocab}};
    sd_tree_number_rows(q->tree, w.rows);
    look_below(&w);
    w.waiting[0] = 0;
    while (w.n_waiting > 0) SD_TRY(visit(&w, w.waiting[--w.n_waiting]));
    if (w.ends_at_leaf) SD_TRY(target_after(&w, w.rows[w.end], &w.after_end));
    write_path(&w, verdict);
    verdict->token = sd_sample(&w.after_end, q->n_vocab, q->uniforms[n]);
    return SD_OK;
}
