#include "verify.h"

#include <string.h>

#include "rules.h"

static const struct {
    const char* name;
    sd_judge judge;     /* NULL: the rule judges whole trees */
    sd_tree_type takes; /* the most general trees that it judges */
} RULES[SD_N_RULES] = {
    [SD_RULE_REJECTION] = {"rejection", sd_judge_rejection, SD_TREE_ANY},
    [SD_RULE_GREEDY] = {"greedy", sd_judge_greedy, SD_TREE_ANY},
    [SD_RULE_COUPLED] = {"coupled", sd_judge_coupled, SD_TREE_ANY},
    [SD_RULE_BLOCK] = {"block", NULL, SD_TREE_CHAINS},
    [SD_RULE_K_SEQUENTIAL] = {"k-sequential", sd_judge_k_sequential, SD_TREE_DRAWS},
    [SD_RULE_TRAVERSAL] = {"traversal", NULL, SD_TREE_ANY},
    [SD_RULE_CLASSICAL] = {"classical", sd_judge_classical, SD_TREE_ANY},
    [SD_RULE_AUTO] = {"auto", NULL, SD_TREE_ANY},
};

sd_status sd_rule_find(const char* name, sd_rule* rule) {
    for (int i = 0; i < SD_N_RULES; i++) {
        if (strcmp(name, RULES[i].name) != 0) continue;
        *rule = (sd_rule)i;
        return SD_OK;
    }
    return sd_fail(SD_ERR_VALUE,
                   "the rule is '%s', expected rejection, greedy, coupled, block, traversal, k-sequential, "
                   "classical or auto",
                   name);
}

const char* sd_rule_name(sd_rule rule) { return RULES[rule].name; }

sd_status sd_rule_check(sd_rule rule, double lenience) {
    if (!(lenience > 0.0 && lenience <= 1.0))
        return sd_fail(SD_ERR_VALUE, "lenience is %g, expected above 0 and at most 1", lenience);
    int lenient = rule == SD_RULE_REJECTION || rule == SD_RULE_GREEDY || rule == SD_RULE_AUTO;
    if (lenience < 1.0 && !lenient)
        return sd_fail(SD_ERR_VALUE, "lenience is %g, expected 1: the rule '%s' is never lenient", lenience,
                       RULES[rule].name);
    return SD_OK;
}

sd_rule sd_rule_for(sd_rule rule, double lenience, double temperature, sd_tree_type type, int draws) {
    sd_rule best = !draws || lenience < 1.0 ? SD_RULE_REJECTION
                   : type == SD_TREE_CHAINS ? SD_RULE_BLOCK
                                            : SD_RULE_TRAVERSAL;
    if (rule == SD_RULE_AUTO) rule = best;
    int walks = RULES[rule].judge != NULL && RULES[rule].takes == SD_TREE_ANY;
    return temperature == 0.0 && !walks ? SD_RULE_REJECTION : rule;
}

sd_status sd_rule_check_trees(sd_rule rule, sd_tree_type type, const char* argument) {
    if (type == SD_TREE_UNKNOWN || type <= RULES[rule].takes) return SD_OK;
    int chains = RULES[rule].takes == SD_TREE_CHAINS;
    return sd_fail(SD_ERR_SETTING, "%s is '%s', which judges %s; expected another rule for %s", argument,
                   RULES[rule].name, chains ? "chains" : "independent samples of one distribution",
                   chains ? "draft trees" : "other trees, and for a draft at temperature 0");
}

int sd_tree_is_chain(const sd_tree* tree) {
    for (int i = 0; i < tree->n_nodes; i++)
        if (tree->parents[i] != i - 1) return 0;
    return 1;
}

int sd_tree_number_rows(const sd_tree* t, int32_t* node_rows) {
    int n_rows = 1;
    node_rows[0] = 0;
    for (int i = 1; i < t->n_nodes; i++) {
        int32_t parent = node_rows[t->parents[i]];
        int duplicate = i - 1;
        while (duplicate > 0 &&
               (t->tokens[duplicate] != t->tokens[i] || node_rows[t->parents[duplicate]] != parent))
            duplicate--;
        node_rows[i] = duplicate > 0 ? node_rows[duplicate] : n_rows++;
    }
    return n_rows;
}

void sd_tree_merge(const sd_tree* t, const int32_t* node_rows, int32_t* tokens, int32_t* parents) {
    for (int node = t->n_nodes - 1; node >= 0; node--) { /* the first node of a row is written last */
        tokens[node_rows[node]] = t->tokens[node];
        parents[node_rows[node]] = node == 0 ? -1 : node_rows[t->parents[node]];
    }
}

void sd_verify_uniforms(sd_stream stream, uint32_t position, int n_nodes, double* uniforms) {
    for (int i = 1; i < n_nodes; i++) uniforms[i] = sd_uniform(stream, position, SD_DRAW_ACCEPT, (uint32_t)i);
    uniforms[n_nodes] = sd_uniform(stream, position, SD_DRAW_SAMPLE, 0);
}

/* Collect the draft tokens after a row, whose nodes have level[i] == depth, in the order they are tried.
 * Returns their number. */
static int collect_draft_nodes(const sd_verify_input* q, const int32_t* level, int32_t depth, int first,
                               int32_t* draft_nodes) {
    const sd_tree* tree = q->tree;
    int n = 0;
    for (int i = first + 1; i < tree->n_nodes; i++) {
        if (level[tree->parents[i]] != depth) continue;
        int at = n++;
        for (; at > 0 && q->order && q->order[draft_nodes[at - 1]] > q->order[i]; at--)
            draft_nodes[at] = draft_nodes[at - 1];
        draft_nodes[at] = i;
    }
    return n;
}

sd_status sd_verify(const sd_verify_input* q, sd_verdict* verdict) {
    if (RULES[q->rule].judge == NULL) return sd_verify_traversal(q, verdict);
    const sd_tree* tree = q->tree;
    int32_t *draft_nodes = q->nodes, *level = q->nodes + tree->n_nodes; /* 1 + depth of nodes on the path */
    memset(level, 0, (size_t)tree->n_nodes * sizeof *level);
    level[0] = 1;
    verdict->n_path = verdict->n_betas = 0;
    sd_tree_row row = {.input = q, .draft_nodes = draft_nodes};
    int node = 0; /* node of the accepted draft token */
    for (int first = 0;; first = row.node) {
        int32_t depth = verdict->n_path + 1;
        row.n_draft_tokens = collect_draft_nodes(q, level, depth, first, draft_nodes);
        SD_TRY(q->target_after(q->context, row.node, &row.target));
        int accepted = RULES[q->rule].judge(&row, &verdict->token);
        if (row.n_draft_tokens > 0) verdict->betas[verdict->n_betas++] = sd_tree_row_beta(&row, accepted);
        if (accepted == row.n_draft_tokens) break;
        node = draft_nodes[accepted];
        row.node = node;
        for (int i = 0; i < row.n_draft_tokens; i++) { /* its duplicates belong to the same row */
            if (tree->tokens[draft_nodes[i]] != tree->tokens[node]) continue;
            level[draft_nodes[i]] = depth + 1;
            if (draft_nodes[i] < row.node) row.node = draft_nodes[i];
        }
        verdict->n_path++;
    }
    for (int i = verdict->n_path; i > 0; i--, node = tree->parents[node]) verdict->path[i - 1] = node;
    return SD_OK;
}
