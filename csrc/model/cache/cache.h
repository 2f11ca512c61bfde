/* The KV cache of one sequence, and the tree of nodes after its text.
 *
 * A layer with a sliding window has slots for the window, the pending nodes and as many tokens more: slot s
 * of the cache is slot s % n of a layer with n slots. So a text can be cut back by some tokens, or to
 * nothing; further back its windows are overwritten. A layer without attention keeps a state instead
 * (layer_state.h), with the same effect; snapshots of it (snapshots.h) are positions to cut back to. Rows
 * that a pass commits, as those of prompts, may overwrite it before they are committed: where they are
 * dropped, the cache loses its text.
 *
 * Slots 0 … n_committed - 1 hold the committed tokens, slot = position. The nodes under verification are
 * pending: node i is in slot n_committed + i, at position n_committed + depth. keep(path) moves the accepted
 * nodes to the slots of their positions; follow(text) does the same from token ids. Beam search keeps several
 * branches: prune drops the others, and settle commits the prefix that all of them share.
 *
 * Pending nodes may have passed only some layers, to be finished later (forward.h); they cannot be committed.
 * The last token of a prompt may be a node that has passed all layers and waits for the head. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "config.h"
#include "key_values.h"
#include "layer_state.h"
#include "snapshots.h"
#include "state_walk.h"
#include "status.h"

/* Hidden states kept with the tokens of a cache, for drafts that use them. A hidden state is named by the
 * number of layers before it: 0, the embedding; n, the residual stream after n layers; n_layer + 1, the
 * head's input, after the output norm. */
#define SD_MAX_CAPTURES 16

typedef struct sd_captures {
    int n;
    int layers[SD_MAX_CAPTURES]; /* [n] ascending */
} sd_captures;

/* Index of a captured hidden state; -1: not captured. */
int sd_captures_find(const sd_captures* captures, int layer);

/* Add a hidden state of a model with this configuration, unless it is there already. */
sd_status sd_captures_add(sd_captures* captures, int layer, const sd_config* config);

/* Does `captures` include all of `wanted`? */
int sd_captures_include(const sd_captures* captures, const sd_captures* wanted);

typedef struct sd_cache {
    const sd_model* model; /* The model of the keys and values; borrowed. */
    /* Of a model that borrows keys and values (config.h): the cache that has them, with the same text;
     * borrowed. Set by sd_cache_borrow. */
    const struct sd_cache* lender;
    /* The source that the text attends to: a counted reference. NULL: none yet, or the model has no
     * encoder. */
    sd_encoded* encoded;
    /* Owns the arrays below. */
    sd_arena arena;
    int n_layer;
    int n_slots;        /* Capacity, a multiple of SD_PANEL. */
    int n_window_slots; /* Slots of the layer with the fewest. */
    int n_nodes;        /* Pending nodes that fit the layers with windows. */
    int n_tree;         /* The same without rows that their pass commits. */
    int n_ring;         /* Slots of the layers with mixers; 0: there are none. */
    int n_committed;    /* Committed tokens. */
    int n_low;          /* The text can be cut back to this many tokens, to a snapshot, or to none. */
    int n_window_low;   /* The same, of layers with windows alone: lower snapshots are of no use. */
    /* Leading tokens read as a prompt, in whole slices if bits depend on slices. If prompts have their own
     * bits, another text can reuse only these. */
    int n_prompt;
    int n_pending; /* Nodes computed and neither kept nor dropped. */
    /* Layers that the pending nodes have passed without skips: n_layer, or fewer for nodes still to be
     * finished. */
    int n_through;
    int32_t* tokens;  /* [n_slots] the token of each slot in use. */
    int32_t* parents; /* [n_slots] parents of the pending nodes; -1: the last committed token. */
    int32_t* depths;  /* [n_slots] depths of the pending nodes; 0 where the parent is -1. */
    /* [n_layer] keys (rotated) and values; a layer's slots are those of the cache, or fewer. Empty in layers
     * that attend to those of another (sd_cache_keys). */
    sd_key_values* layers;
    sd_layer_state* states; /* [n_layer] of the layers without attention */
    sd_snapshots snapshots; /* of the states, if there are layers without attention */
    int has_states;         /* Does any of them have a state of the whole text? */
    sd_walk walk;           /* of the last forward pass, if so */
    int n_hidden;           /* Capacity for pending nodes that wait to be finished. */
    /* Leading pending nodes that wait to be finished: after n_through layers or, if n_through = n_layer, for
     * the head alone. */
    int n_waiting;
    float* hidden; /* [n_hidden, d_model] f32 residual stream of waiting nodes after n_through layers. */
    /* Hidden states kept with tokens and nodes: [n_slots, captures.n, d_model] f32. Unfinished nodes have
     * those of the layers they have passed. */
    sd_captures captures;
    float* captured;
} sd_cache;

/* The keys and values that rows of a layer attend to; borrowed. */
static inline const sd_key_values* sd_cache_keys(const sd_cache* cache, int layer) {
    const sd_cache* of = cache->lender ? cache->lender : cache;
    return &of->layers[cache->model->config.layers[layer].kv_layer];
}

/* The slot after those that pending nodes up to `node` attend to. */
static inline int sd_cache_end(const sd_cache* cache, int node) {
    return cache->n_committed + (cache->lender ? 0 : node + 1);
}

/* The first of the fewest, evenly sized shares of n > 0 that have at most `most` each. */
static inline int sd_even_share(long n, int most) {
    long n_shares = (n + most - 1) / most;
    return (int)((n + n_shares - 1) / n_shares);
}

/* Let the next nodes of a cache attend to the first n committed tokens of the lender's, in which they stay
 * until the nodes are computed. Drops pending nodes. */
void sd_cache_borrow(sd_cache* cache, const sd_cache* lender, int n);

/* Length of the next slice if n tokens of a prompt remain. */
static inline int sd_slice_length(const sd_cache* cache, int n) {
    int most = sd_prompt_slice(cache->model);
    if (n <= 0 || !sd_prompts_in_slices(cache->model)) return n <= 0 ? 0 : sd_even_share(n, most);
    most -= cache->n_committed % most;
    return n < most ? n : most;
}

/* Number of leading pending nodes that are a chain, each the child of the one before it. Nodes that only
 * attend to a lender's text count as one: all that they attend to is in the slots of its positions. */
int sd_cache_chain(const sd_cache* cache);

/* Add the last n tokens, a prompt slice that was just committed, to n_prompt. */
void sd_cache_count_prompt(sd_cache* cache, int n);

/* Plan a cache for up to `n_slots` tokens and nodes of `model`; at most n_tree are pending at once, besides a
 * slice of a prompt, and n_hidden of them may wait to be finished. captures, borrowed: hidden states to keep;
 * NULL: none. The cache has no memory and no text yet. */
sd_cache sd_cache_plan(const sd_model* model, int n_slots, int n_tree, int n_hidden,
                       const sd_captures* captures);

/* Allocate the memory of a planned cache, which owns it, before its first text; does nothing if it is
 * allocated. After a failure the call may be repeated. */
sd_status sd_cache_reserve(sd_cache* cache);

/* Plan a cache and allocate its memory. */
sd_status sd_cache_create(sd_cache* cache, const sd_model* model, int n_slots, int n_tree, int n_hidden,
                          const sd_captures* captures);
void sd_cache_free(sd_cache* cache);

/* Hidden state [d_model] of a slot in use, one of the captures. Borrowed until the cache changes. */
float* sd_cache_captured(const sd_cache* cache, int slot, int layer);

/* Set the source that the cache's texts attend to, by a reference of its own. Drops text with another
 * source. */
void sd_cache_set_source(sd_cache* cache, sd_encoded* encoded);

/* Assign the cache to another model with the same base (adapter.h). Drops text of another model. */
void sd_cache_set_model(sd_cache* cache, const sd_model* model);

/* Append pending nodes: parents [n] of tokens [n] are indices of pending nodes, earlier ones included, or -1.
 * The first n_commit will be committed: a chain after the text, without pending nodes before it. Refuses a
 * parent that is not earlier, and more nodes than slots or positions. */
sd_status sd_cache_grow(sd_cache* cache, const int32_t* tokens, const int32_t* parents, int n, int n_commit,
                        int n_ctx);

/* Remove the last n pending nodes, which were not computed. If they may have overwritten what the text needs,
 * it is cut too. */
void sd_cache_take_back(sd_cache* cache, int n);

/* Plan how the last n_new nodes, of which the first n_commit will be committed, read the states. */
void sd_cache_plan_walk(sd_cache* cache, int n_new, int n_commit);

/* Commit the pending nodes path [n_path], each the parent of the next and the first without one, and drop all
 * others. n_path 0 drops all. Without pending nodes nothing happens, so a repeated call is harmless. Refuses
 * unfinished nodes. */
sd_status sd_cache_keep(sd_cache* cache, const int32_t* path, int n_path);

/* Make the cache a prefix of text [n]: drop committed tokens from the first mismatch on; if there is none,
 * commit the pending nodes that follow the text. Other and unfinished nodes are dropped. */
void sd_cache_follow(sd_cache* cache, const int32_t* text, int n);

/* Drop pending nodes and committed tokens from the n-th on; if what the n-th would attend to is overwritten,
 * cut further back, to a snapshot or to nothing. */
void sd_cache_cut(sd_cache* cache, int n);

/* Take a snapshot of the committed text, if other texts could begin with it. */
void sd_cache_take_snapshot(sd_cache* cache);

/* Let prompts take snapshots from now on: at most `most` of a text, and max_bytes. */
void sd_cache_keep_snapshots(sd_cache* cache, int most, size_t max_bytes);

/* Start text [n] in caches[which]: keep or copy the prefix that one of caches [n_caches], all of one base,
 * has committed for the same model and source; drop the rest of the cache. If prompts have their own bits,
 * only tokens read as a prompt (n_prompt) count. A row's bits depend only on its tokens and source, so a copy
 * equals computing it. */
void sd_cache_begin(sd_cache* caches, int n_caches, int which, const int32_t* text, int n);

/* Tokens of a text [n] that sd_cache_begin would save. */
int sd_cache_known(const sd_cache* caches, int n_caches, int which, const int32_t* text, int n);

/* Like sd_cache_begin, with `known`, of the same model and source, as the only other cache: copy its tokens
 * unless the cache has as many itself. Returns the number of tokens there. Takes nothing if `known` lacks one
 * of the cache's captures. */
int sd_cache_begin_with(sd_cache* cache, const sd_cache* known, const int32_t* text, int n);

/* Copy the committed tokens of `cache` into a new cache without capacity for more. It owns its memory and
 * shares the source. */
sd_status sd_cache_copy(sd_cache* copy, const sd_cache* cache);

/* Bytes of keys and values, including the source's, and of snapshots, shared or not. */
size_t sd_cache_bytes(const sd_cache* cache);

/* The same for a copy, and the copy's n_low and n_window_low. */
size_t sd_cache_copy_bytes(const sd_cache* cache);
int sd_cache_copy_low(const sd_cache* cache);
int sd_cache_copy_window_low(const sd_cache* cache);

/* Keep the pending nodes [n], ascending, each with its parent among them or -1, and drop the others; nodes[i]
 * becomes node i. Kept nodes keep their bits, which do not depend on the slot. */
sd_status sd_cache_prune(sd_cache* cache, const int32_t* nodes, int n);

/* Let the only pending node wait for the head; hidden [d_model] is its residual stream after all layers. */
void sd_cache_wait(sd_cache* cache, const float* hidden);

/* Commit the first n pending nodes, a chain whose last node is an ancestor of all others (keep would drop
 * those); node i becomes node i - n. Nothing moves: their slots are those of their positions. */
sd_status sd_cache_settle(sd_cache* cache, int n);
