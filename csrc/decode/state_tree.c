#include "state_tree.h"

static void lay_out(sd_state_tree* s) {
    s->nodes = sd_arena_take(&s->arena, (size_t)s->capacity, sizeof *s->nodes);
    s->path = sd_arena_take(&s->arena, (size_t)s->capacity, sizeof *s->path);
}

sd_status sd_state_tree_create(sd_state_tree* s, const sd_state_source* source, int capacity) {
    *s = (sd_state_tree){.source = *source, .capacity = capacity};
    sd_status status = SD_ARENA_BUILD(&s->arena, lay_out(s));
    if (status == SD_OK) sd_state_tree_restart(s);
    return status;
}

void sd_state_tree_free(sd_state_tree* s) { sd_arena_free(&s->arena); }

static const sd_state_node NEW = {.parent = -1, .first_child = -1, .next_sibling = -1, .tag = -1};

void sd_state_tree_restart(sd_state_tree* s) {
    s->n = 1;
    s->n_text = 0;
    s->nodes[0] = NEW;
}

/* Drop all but the root. */
static void clear(sd_state_tree* s) {
    s->nodes[0].first_child = -1;
    s->n = 1;
}

static int child_of(const sd_state_tree* s, int node, int32_t token) {
    int child = s->nodes[node].first_child;
    while (child >= 0 && s->nodes[child].token != token) child = s->nodes[child].next_sibling;
    return child;
}

static int add_child(sd_state_tree* s, int node, int32_t token) {
    int child = s->n++;
    s->nodes[child] = NEW;
    s->nodes[child].token = token;
    s->nodes[child].parent = node;
    s->nodes[child].next_sibling = s->nodes[node].first_child;
    s->nodes[node].first_child = child;
    return child;
}

int sd_state_tree_find(sd_state_tree* s, const int32_t* text, int n_text, const sd_tree* tree, int node) {
    int n = n_text - s->n_text, length = n;
    for (int i = node; tree != NULL && i > 0; i = tree->parents[i]) length++;
    if (length < 0 || length >= s->capacity) return -1;
    for (int i = 0; i < n; i++) s->path[i] = text[s->n_text + i];
    for (int i = node, at = length; tree != NULL && i > 0; i = tree->parents[i])
        s->path[--at] = tree->tokens[i];
    int found = 0;
    for (int i = 0; i < length; i++) {
        int child = child_of(s, found, s->path[i]);
        if (child < 0 && s->n == s->capacity) { /* start over: the nodes of this path are added again */
            clear(s);
            found = 0;
            i = -1;
            continue;
        }
        found = child < 0 ? add_child(s, found, s->path[i]) : child;
    }
    return found;
}

sd_status sd_state_tree_make(sd_state_tree* s, int state) {
    int n = 0;
    for (int i = state; !s->nodes[i].made; i = s->nodes[i].parent) s->path[n++] = i;
    sd_status status = SD_OK;
    while (n > 0 && status == SD_OK) {
        int next = s->path[--n];
        status = s->source.advance(s->source.context, s->nodes[next].parent, s->nodes[next].token, next);
        s->nodes[next].made = status == SD_OK;
    }
    return status;
}

sd_status sd_state_tree_follow(sd_state_tree* s, const int32_t* text, int n_text, int* from) {
    *from = 0;
    if (s->n_text == 0) {
        sd_status status = s->source.start(s->source.context, text, n_text);
        if (status != SD_OK) return status;
        s->nodes[0].made = 1;
        s->n_text = n_text;
        return SD_OK;
    }
    if (s->n_text == n_text) return SD_OK;
    int state = sd_state_tree_find(s, text, n_text, NULL, 0);
    if (state < 0) return sd_fail(SD_ERR_STATE, "a text has grown by %d tokens at once", n_text - s->n_text);
    sd_status status = sd_state_tree_make(s, state);
    if (status != SD_OK) return status;
    s->source.keep(s->source.context, state);
    int tag = s->nodes[state].tag;
    *from = state;
    s->nodes[0] = NEW;
    s->nodes[0].made = 1;
    s->nodes[0].tag = tag;
    s->n = 1;
    s->n_text = n_text;
    return SD_OK;
}
