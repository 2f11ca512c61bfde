/* The function `verify`: a rule on NumPy arrays. */
#include <string.h>

#include "kernels.h"
#include "module.h"
#include "verify.h"

/* State of a call. */
typedef struct call {
    Py_buffer target, draft, uniforms, order, noise; /* views; obj NULL: none */
    int32_t *tokens, *parents;                       /* PyMem_Free, like the two below */
    int32_t *target_points, *draft_points;           /* [n] or NULL: the rows are probabilities */
    sd_arena arena;                                  /* owns the arrays below */
    int32_t *path, *nodes, *depths;
    sd_distribution *target_rows, *drawn_from;
    double *betas, *residual, *chances;
    int n, n_vocab;
} call;

static void lay_out(call* c) {
    size_t n = (size_t)c->n;
    c->path = sd_arena_take(&c->arena, n, sizeof *c->path);
    c->nodes = sd_arena_take(&c->arena, 2 * n, sizeof *c->nodes);
    c->depths = sd_arena_take(&c->arena, n, sizeof *c->depths);
    c->target_rows = sd_arena_take(&c->arena, n, sizeof *c->target_rows);
    c->drawn_from = sd_arena_take(&c->arena, n, sizeof *c->drawn_from);
    c->betas = sd_arena_take(&c->arena, n, sizeof *c->betas);
    c->residual = sd_arena_take(&c->arena, 3 * (size_t)c->n_vocab, sizeof *c->residual);
    c->chances = sd_arena_take(&c->arena, n, sizeof *c->chances);
}

static void free_call(call* c) {
    int32_t* ids[] = {c->tokens, c->parents, c->target_points, c->draft_points};
    for (int i = 0; i < 4; i++) PyMem_Free(ids[i]);
    Py_buffer* views[] = {&c->target, &c->draft, &c->uniforms, &c->order, &c->noise};
    for (int i = 0; i < 5; i++) PyBuffer_Release(views[i]);
    sd_arena_free(&c->arena);
}

/* Check the tree. */
static int check_nodes(const call* c) {
    for (int i = 0; i < c->n; i++) {
        int root = i == 0;
        if (root ? c->parents[0] != -1 : c->parents[i] < 0 || c->parents[i] >= i)
            return sd_refuse("parents[%d] is %d, expected %s", i, (int)c->parents[i],
                             root ? "-1" : "an earlier node");
        if (!root && (c->tokens[i] < 0 || c->tokens[i] >= c->n_vocab))
            return sd_refuse("tokens[%d] is %d, expected 0 to %d", i, (int)c->tokens[i], c->n_vocab - 1);
    }
    return 0;
}

/* Read points=(target_points, draft_points), [n] each: rows are then weights of any sum, as in a session; a
 * point other than -1 has all mass, and its row is ignored. */
static int take_points(call* c, PyObject* points) {
    PyObject *target, *draft;
    int n_target, n_draft;
    if (points == Py_None) return 0;
    if (!PyTuple_Check(points) || !PyArg_ParseTuple(points, "OO", &target, &draft))
        return sd_set_error(PyExc_TypeError, "points: expected (target_points, draft_points)");
    if (sd_ids_from(target, "target_points", &c->target_points, &n_target) < 0) return -1;
    if (sd_ids_from(draft, "draft_points", &c->draft_points, &n_draft) < 0) return -1;
    int wrong = n_target != c->n || n_draft != c->n;
    for (int i = 0; i < c->n && !wrong; i++)
        wrong = c->target_points[i] < -1 || c->target_points[i] >= c->n_vocab || c->draft_points[i] < -1 ||
                c->draft_points[i] >= c->n_vocab;
    return wrong ? sd_refuse("points: expected two lists [n] of tokens, -1 for rows of weights") : 0;
}

/* A row as a distribution: probabilities, or with `points` weights or a point mass. */
static sd_distribution row_of(double* weights, int n_vocab, const int32_t* points, int i) {
    if (points == NULL) return (sd_distribution){-1, weights, 1.0, 1.0};
    if (points[i] >= 0) return (sd_distribution){points[i], weights, 0.0, 0.0};
    double mass = sd_kernels_get()->mass(n_vocab, weights);
    return (sd_distribution){-1, weights, mass, 1.0 / mass};
}

/* Check the arguments and allocate memory for verification. */
static int prepare(call* c, PyObject* tokens, PyObject* parents, PyObject* order, PyObject* noise,
                   PyObject* points) {
    int n_parents;
    if (sd_ids_from(tokens, "tokens", &c->tokens, &c->n) < 0) return -1;
    if (sd_ids_from(parents, "parents", &c->parents, &n_parents) < 0) return -1;
    if (order != Py_None && sd_view(order, "order", 'd', 1, &c->order) < 0) return -1;
    if (noise != Py_None && sd_view(noise, "noise", 'd', 2, &c->noise) < 0) return -1;
    int n = c->n;
    c->n_vocab = (int)c->target.shape[1];
    if (n < 1 || n_parents != n || c->n_vocab < 1 || c->target.shape[0] != n || c->draft.shape[0] != n ||
        c->draft.shape[1] != c->n_vocab || c->uniforms.shape[0] != n + 1 ||
        (c->order.obj && c->order.shape[0] != n))
        return sd_refuse(
            "expected tokens, parents and order [n], target_probs and draft_probs [n, n_vocab], "
            "uniforms [n + 1]");
    if (check_nodes(c) < 0 || take_points(c, points) < 0) return -1;
    if (sd_passed(SD_ARENA_BUILD(&c->arena, lay_out(c))) < 0) return -1;
    int32_t deepest = 0;
    for (int i = 0; i < n; i++) {
        ptrdiff_t row = (ptrdiff_t)i * c->n_vocab;
        c->target_rows[i] = row_of((double*)c->target.buf + row, c->n_vocab, c->target_points, i);
        if (i > 0) c->drawn_from[i] = row_of((double*)c->draft.buf + row, c->n_vocab, c->draft_points, i);
        c->depths[i] = i == 0 ? 0 : c->depths[c->parents[i]] + 1;
        deepest = c->depths[i] > deepest ? c->depths[i] : deepest;
    }
    if (c->noise.obj && (c->noise.shape[0] <= deepest || c->noise.shape[1] != c->n_vocab))
        return sd_refuse("noise: expected at least %d rows of %d", (int)deepest + 1, c->n_vocab);
    return 0;
}

static sd_status target_after(void* context, int node, sd_distribution* target) {
    *target = ((const call*)context)->target_rows[node];
    return SD_OK;
}

static int32_t token_after(void* context, int node, const sd_distribution* target) {
    const call* c = context;
    return sd_race(target, c->n_vocab, (const double*)c->noise.buf + (ptrdiff_t)c->depths[node] * c->n_vocab);
}

/* Can the rule verify this tree, with the given arguments? */
static int check_rule(const call* c, const char* name, double lenience, sd_rule* rule) {
    const sd_tree tree = {.n_nodes = c->n, .parents = c->parents};
    sd_status status = sd_rule_find(name, rule);
    if (status == SD_OK && *rule == SD_RULE_AUTO)
        status = sd_fail(
            SD_ERR_VALUE,
            "the rule is 'auto', expected rejection, greedy, coupled, block, traversal, k-sequential or "
            "classical");
    if (status == SD_OK) status = sd_rule_check(*rule, lenience);
    /* the caller ensures that siblings are draws */
    if (status == SD_OK)
        status = sd_rule_check_trees(*rule, sd_tree_is_chain(&tree) ? SD_TREE_CHAINS : SD_TREE_DRAWS, "rule");
    if (status == SD_OK && *rule == SD_RULE_COUPLED && c->noise.obj == NULL)
        status = sd_fail(SD_ERR_VALUE, "the rule 'coupled' needs noise");
    return sd_passed(status);
}

PyObject* sd_verify_arrays(PyObject* module, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"tokens",   "parents", "target_probs", "draft_probs", "uniforms", "rule",
                            "lenience", "order",   "noise",        "points",      NULL};
    PyObject *tokens, *parents, *target, *draft, *uniforms, *order = Py_None, *noise = Py_None,
                                                            *points = Py_None, *result = NULL;
    const char* name = "rejection";
    double lenience = 1.0;
    sd_rule rule;
    call c = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO|$sdOOO", names, &tokens, &parents, &target, &draft,
                                     &uniforms, &name, &lenience, &order, &noise, &points))
        return NULL;
    if (sd_view(target, "target_probs", 'd', 2, &c.target) < 0) goto end;
    if (sd_view(draft, "draft_probs", 'd', 2, &c.draft) < 0) goto end;
    if (sd_view(uniforms, "uniforms", 'd', 1, &c.uniforms) < 0) goto end;
    if (prepare(&c, tokens, parents, order, noise, points) < 0) goto end;
    if (check_rule(&c, name, lenience, &rule) < 0) goto end;
    const sd_tree tree = {c.n, c.tokens, c.parents, c.drawn_from};
    const sd_verify_input input = {.rule = rule,
                                   .lenience = lenience,
                                   .tree = &tree,
                                   .n_vocab = c.n_vocab,
                                   .target_after = target_after,
                                   .token_after = token_after,
                                   .context = &c,
                                   .uniforms = c.uniforms.buf,
                                   .order = c.order.buf,
                                   .residual = c.residual,
                                   .chances = c.chances,
                                   .nodes = c.nodes};
    sd_verdict v = {.path = c.path, .betas = c.betas};
    sd_verify(&input, &v); /* cannot fail: all distributions are there */
    result = Py_BuildValue("NiN", sd_list_of_ints(v.path, v.n_path), (int)v.token,
                           sd_list_of_floats(v.betas, v.n_betas));
end:
    free_call(&c);
    return result;
}
