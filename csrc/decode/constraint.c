#include "constraint.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* States kept for each draft token of a round: drafts also look at nodes that they do not propose. */
#define LOOKED_AT 4

/* Tags of states: the number of tokens that may follow; or not computed yet, complete, or failed. */
#define UNASKED (-1) /* of new states */
#define COMPLETE (-2)
#define FAILED (-3)

int32_t sd_mask_first(const sd_mask* mask, int n_vocab) {
    if (mask->words == NULL) return 0;
    for (int32_t i = 0; i < n_vocab; i += 32)
        if (mask->words[i >> 5] != 0)
            for (int32_t token = i;; token++)
                if (sd_mask_allows(mask, token)) return token;
    return -1;
}

const float* sd_mask_logits(const sd_mask* mask, int n_vocab, const float* logits, float* masked) {
    if (mask->words == NULL) return logits;
    for (int i = 0; i < n_vocab; i += 32) {
        uint32_t word = mask->words[i >> 5];
        int n = n_vocab - i < 32 ? n_vocab - i : 32;
        if (word == 0) {
            for (int j = 0; j < n; j++) masked[i + j] = -INFINITY;
        } else if (word != UINT32_MAX) {
            for (int j = 0; j < n; j++) masked[i + j] = word >> j & 1 ? logits[i + j] : -INFINITY;
        } else if (masked != logits) {
            memcpy(masked + i, logits + i, (size_t)n * sizeof *masked);
        }
    }
    return masked;
}

static void lay_out(sd_constraint* c) {
    c->words = sd_arena_take(&c->arena, (size_t)c->states.capacity, (size_t)c->n_words * sizeof *c->words);
}

sd_status sd_constraint_create(const sd_constraint_source* source, int n_vocab, int n_nodes,
                               sd_constraint** constraint) {
    sd_constraint* c = sd_alloc(sizeof *c);
    if (c == NULL) return SD_ERR_MEMORY;
    c->source = *source;
    c->n_vocab = n_vocab;
    c->n_words = (n_vocab + 31) / 32;
    int capacity = LOOKED_AT * (n_nodes + SD_MAX_FORCED + 2);
    sd_status status = sd_state_tree_create(&c->states, &source->states, capacity);
    if (status == SD_OK) status = SD_ARENA_BUILD(&c->arena, lay_out(c));
    if (status != SD_OK) {
        sd_constraint_free(c);
        return status;
    }
    *constraint = c;
    return SD_OK;
}

void sd_constraint_free(sd_constraint* c) {
    if (c == NULL) return;
    sd_state_tree_free(&c->states);
    sd_arena_free(&c->arena);
    sd_free(c);
}

void sd_constraint_restart(sd_constraint* c) {
    sd_state_tree_restart(&c->states);
    c->complete = 0;
    c->status = SD_OK;
}

/* Keep the first failure. */
static sd_status note(sd_constraint* c, sd_status status) {
    if (status == SD_OK || c->status != SD_OK) return status;
    c->status = status;
    snprintf(c->message, sizeof c->message, "%s", sd_message());
    return status;
}

sd_status sd_constraint_check(const sd_constraint* c) {
    return c->status == SD_OK ? SD_OK : sd_fail(c->status, "%s", c->message);
}

/* Compute the mask of an existing state. */
static sd_status fill(sd_constraint* c, int state) {
    uint32_t* words = c->words + (ptrdiff_t)state * c->n_words;
    int complete = 0, n = 0;
    sd_status status = c->source.mask(c->source.states.context, state, words, &complete);
    if (status != SD_OK) return status;
    if (c->n_vocab % 32 != 0) words[c->n_words - 1] &= (UINT32_C(1) << c->n_vocab % 32) - 1;
    for (int i = 0; i < c->n_words && !complete; i++) n += __builtin_popcount(words[i]);
    if (n == 0 && !complete)
        return sd_fail(SD_ERR_SETTING,
                       "the constraint: no token of the vocabulary may follow, and the text is not complete");
    c->states.nodes[state].tag = complete ? COMPLETE : n;
    return SD_OK;
}

/* Compute a state's tag unless it is known. */
static sd_status know(sd_constraint* c, int state) {
    if (c->states.nodes[state].tag != UNASKED) return SD_OK;
    const sd_state_source* source = &c->source.states;
    source->enter(source->context);
    sd_status status = sd_state_tree_make(&c->states, state);
    if (status == SD_OK) status = fill(c, state);
    if (status != SD_OK) c->states.nodes[state].tag = FAILED;
    source->leave(source->context);
    return status;
}

/* The text has reached this state: retry a failure that was forgotten for a draft token. */
static void ask_again(sd_constraint* c, int state) {
    if (c->states.nodes[state].tag == FAILED) c->states.nodes[state].tag = UNASKED;
}

sd_status sd_constraint_follow(sd_constraint* c, const int32_t* tokens, int n) {
    const sd_state_source* source = &c->source.states;
    int from, begins = c->states.n_text == 0;
    if (c->status != SD_OK) return c->status;
    source->enter(source->context);
    sd_status status = sd_state_tree_follow(&c->states, tokens, n, &from);
    size_t size = (size_t)c->n_words * sizeof *c->words;
    if (status == SD_OK && from > 0) memcpy(c->words, c->words + (ptrdiff_t)from * c->n_words, size);
    ask_again(c, 0);
    if (status == SD_OK) status = know(c, 0);
    source->leave(source->context);
    c->complete = status == SD_OK && c->states.nodes[0].tag == COMPLETE;
    if (c->complete && begins)
        status = sd_fail(SD_ERR_SETTING, "the constraint is complete before the first token");
    return note(c, status);
}

/* May the token of a state follow its parent, and so on up to the root? Computes the tags of all states
 * before it. */
static sd_status check(sd_constraint* c, int state, int* allowed) {
    *allowed = 1;
    for (int i = state; i > 0 && *allowed; i = c->states.nodes[i].parent) {
        int parent = c->states.nodes[i].parent, tag;
        /* The mask after a forbidden token must not be requested, so start from the first state. */
        if (c->states.nodes[parent].tag == UNASKED) {
            sd_status status = check(c, parent, allowed);
            if (status == SD_OK && *allowed) status = know(c, parent);
            if (status != SD_OK || !*allowed) return status;
        }
        tag = c->states.nodes[parent].tag;
        const sd_mask mask = {c->words + (ptrdiff_t)parent * c->n_words, tag};
        *allowed = tag >= 0 && sd_mask_allows(&mask, c->states.nodes[i].token);
    }
    return SD_OK;
}

/* Can the failure be forgotten? It came after a draft token that the text may never contain. */
static int forgive(sd_constraint* c, sd_status status) {
    if (status == SD_ERR_CALLBACK) return c->source.states.forgive(c->source.states.context);
    return status == SD_ERR_SETTING;
}

int sd_constraint_mask(sd_constraint* c, const int32_t* text, int n_text, const sd_tree* tree, int node,
                       int is_draft, sd_mask* mask) {
    *mask = (sd_mask){NULL, c->n_vocab};
    if (c->status != SD_OK) return 1;
    int state = sd_state_tree_find(&c->states, text, n_text, tree, node), allowed;
    if (state < 0) return 0;
    for (int i = state; i >= 0 && !is_draft; i = c->states.nodes[i].parent) ask_again(c, i);
    sd_status status = check(c, state, &allowed);
    if (status == SD_OK && allowed) status = know(c, state);
    if (status != SD_OK && is_draft && forgive(c, status)) return 0;
    if (note(c, status) != SD_OK) return 1;
    int tag = c->states.nodes[state].tag;
    if (!allowed || tag < 0) return 0;
    *mask = (sd_mask){c->words + (ptrdiff_t)state * c->n_words, tag};
    return 1;
}

int sd_constraint_forced(sd_constraint* c, int32_t* text, int n_text, int n) {
    const sd_state_source* source = &c->source.states;
    sd_mask mask;
    int n_forced = 0;
    source->enter(source->context);
    while (n_forced < n && sd_constraint_mask(c, text, n_text + n_forced, NULL, 0, 1, &mask) &&
           mask.n_allowed == 1)
        text[n_text + n_forced++] = sd_mask_first(&mask, c->n_vocab);
    source->leave(source->context);
    return n_forced;
}
