#include "text_tree.h"

#include <stdlib.h>

/* So many tokens in common make a text join a group, however many more it has. */
#define WORTH_JOINING 16

static int compare_ids(const int32_t* a, int n_a, const int32_t* b, int n_b) {
    for (int i = 0; i < n_a && i < n_b; i++)
        if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
    return (n_a > n_b) - (n_a < n_b);
}

static int compare(const void* one, const void* two) {
    const sd_scored_text *a = one, *b = two;
    int order = compare_ids(a->source, a->n_source, b->source, b->n_source);
    if (order == 0) order = compare_ids(a->tokens, a->n, b->tokens, b->n);
    return order != 0 ? order : (a->first > b->first) - (a->first < b->first);
}

void sd_texts_sort(sd_scored_text* texts, int n) { qsort(texts, (size_t)n, sizeof *texts, compare); }

/* Tokens that are read of a text. */
static int n_read(const sd_scored_text* text) { return text->n - 1; }

/* How many tokens that are read two texts have in common at their beginnings. */
static int in_common(const sd_scored_text* a, const sd_scored_text* b) {
    if (compare_ids(a->source, a->n_source, b->source, b->n_source) != 0) return 0;
    int n = n_read(a) < n_read(b) ? n_read(a) : n_read(b), at = 0;
    while (at < n && a->tokens[at] == b->tokens[at]) at++;
    return at;
}

static sd_text_group group_of(const sd_scored_text* text, int i) {
    return (sd_text_group){.first = i,
                           .n = 1,
                           .n_nodes = n_read(text),
                           .n_stem = n_read(text),
                           .n_unscored = text->n_given - 1,
                           .n_wants = text->n - text->n_given};
}

/* Let a text join the group of the text before it, with which it has n_common tokens in common, if that
 * spares something. Returns whether it has. */
static int join(sd_text_group* group, const sd_scored_text* text, int n_common) {
    sd_text_group joined = group_of(text, group->first);
    int n_more = n_read(text) - n_common;
    if (n_common < n_more && n_common < WORTH_JOINING) return 0;
    joined.n += group->n;
    joined.n_nodes = group->n_nodes + n_more;
    joined.n_stem = group->n_stem < n_common ? group->n_stem : n_common;
    if (group->n_unscored < joined.n_unscored) joined.n_unscored = group->n_unscored;
    if (joined.n_stem < joined.n_unscored) joined.n_unscored = joined.n_stem;
    joined.n_wants += group->n_wants;
    if (joined.n_nodes - joined.n_stem > SD_TREE_BEHIND_STEM) return 0;
    *group = joined;
    return 1;
}

int sd_texts_group(const sd_scored_text* texts, int n, int apart, sd_text_group* groups) {
    int n_groups = 0;
    for (int i = 0; i < n; i++) {
        if (!apart && i > 0 && join(&groups[n_groups - 1], &texts[i], in_common(&texts[i - 1], &texts[i])))
            continue;
        groups[n_groups++] = group_of(&texts[i], i);
    }
    return n_groups;
}

void sd_text_tree_build(sd_text_tree* tree, const sd_scored_text* texts, const sd_text_group* group) {
    int n_nodes = 0, n_wants = 0;
    for (int i = group->first; i < group->first + group->n; i++) {
        const sd_scored_text* text = &texts[i];
        int n_common = i > group->first ? in_common(&texts[i - 1], text) : 0;
        for (int at = n_common; at < n_read(text); at++, n_nodes++) {
            tree->tokens[n_nodes] = text->tokens[at];
            tree->parents[n_nodes] = at > 0 ? tree->path[at - 1] : -1;
            tree->first_wants[n_nodes] = -1;
            tree->path[at] = n_nodes;
        }
        for (int at = text->n_given - 1; at < n_read(text); at++, n_wants++) {
            int* first = &tree->first_wants[tree->path[at]];
            tree->wants[n_wants] =
                (sd_want){text->tokens[at + 1], *first, text->first + (at + 1 - text->n_given)};
            *first = n_wants;
        }
    }
}
