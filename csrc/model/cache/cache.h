/* The KV cache of one sequence, and the tree of nodes after its text.
 *
 * A layer whose rows attend to a window has the slots of the window, of pending nodes and of as many tokens
 * more: slot s of the cache is slot s % n of a layer that has n. So a text can be cut back by some tokens, or
 * to nothing; further back its windows have been overwritten.
 *
 * Slots 0 … n_committed - 1 hold the committed tokens, slot = position. The nodes of the tree under
 * verification are pending: node i is in slot n_committed + i, its position is n_committed + depth.
 * keep(path) moves the accepted nodes to the slots of their positions; follow(text) does the same from token
 * ids instead of nodes. Beam search keeps several branches: prune drops the others, and settle commits the
 * beginning that all branches share.
 *
 * Pending nodes may have gone through a part of the layers only, to be finished later (forward.h): these
 * cannot be committed. The last token of a prompt may be a node that has gone through all of them and waits
 * for the head. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "config.h"
#include "key_values.h"
#include "status.h"

/* Which hidden states of a model are kept with the tokens of a cache, for drafts that live on them. A hidden
 * state is named by the layers behind it: 0, the embedding; n, the residual stream after n layers; n_layer +
 * 1, what the head reads, the output norm behind the last layer. */
#define SD_MAX_CAPTURES 16

typedef struct sd_captures {
    int n;
    int layers[SD_MAX_CAPTURES]; /* [n] ascending */
} sd_captures;

/* Where a hidden state is among those; -1: nowhere. */
int sd_captures_find(const sd_captures* captures, int layer);

/* Add a hidden state of a model of this configuration. One that is there already is not added again. */
sd_status sd_captures_add(sd_captures* captures, int layer, const sd_config* config);

/* Are all of `wanted` among those? */
int sd_captures_include(const sd_captures* captures, const sd_captures* wanted);

typedef struct sd_cache {
    const sd_model* model; /* Whose keys and values these are; borrowed. */
    /* The source of the text, that layers attend to: a counted reference. NULL: none yet, or the model has no
     * encoder. */
    sd_encoded* encoded;
    /* Owns the arrays below. */
    sd_arena arena;
    int n_layer;
    int n_slots;        /* Capacity, a multiple of SD_PANEL. */
    int n_window_slots; /* The fewest slots of a layer. */
    int n_nodes;        /* Pending nodes that the layers with windows have room for. */
    int n_committed;    /* Tokens kept. */
    int n_low;          /* The text can be cut back to this many tokens, or to none. */
    /* The first of these that were read as a prompt, in whole slices where bits depend on slices. Where
     * prompts have bits of their own another text begins with these alone. */
    int n_prompt;
    int n_pending; /* Nodes computed and not yet kept or dropped. */
    /* Layers that the pending nodes have gone through as in the whole model: n_layer, or fewer for nodes that
     * are to be finished. */
    int n_through;
    int32_t* tokens;  /* [n_slots] the token of each slot in use. */
    int32_t* parents; /* [n_slots] parents of the pending nodes; -1: the last committed token. */
    int32_t* depths;  /* [n_slots] depths of the pending nodes; 0 where the parent is -1. */
    /* [n_layer] keys (rotated) and values; a layer's slots are those of the cache, or fewer. */
    sd_key_values* layers;
    int n_hidden; /* Pending nodes that may wait to be finished. */
    /* The first of the pending nodes that wait to be finished: after n_through layers, or, with n_through =
     * n_layer, for the head alone. */
    int n_waiting;
    float* hidden; /* [n_hidden, d_model] f32 residual stream of such nodes after n_through layers. */
    /* Hidden states that are kept with tokens and nodes, and these: [n_slots, captures.n, d_model] f32. Nodes
     * that are to be finished have those of the layers that they have gone through. */
    sd_captures captures;
    float* captured;
} sd_cache;

/* The first of as few shares of n > 0 as there can be, even ones, of at most `most` each. */
static inline int sd_even_share(long n, int most) {
    long n_shares = (n + most - 1) / most;
    return (int)((n + n_shares - 1) / n_shares);
}

/* How many of the next n tokens of a prompt are the next slice. */
static inline int sd_slice_length(const sd_cache* cache, int n) {
    int most = sd_prompt_slice(cache->model);
    if (n <= 0 || !sd_prompts_in_slices(cache->model)) return n <= 0 ? 0 : sd_even_share(n, most);
    most -= cache->n_committed % most;
    return n < most ? n : most;
}

/* How many of the first pending nodes are a chain, each the child of the one before it. */
int sd_cache_chain(const sd_cache* cache);

/* Count the last n tokens, a slice of a prompt that has just been committed, in n_prompt. */
void sd_cache_count_prompt(sd_cache* cache, int n);

/* A cache that will have room for `n_slots` tokens and nodes of `model`; of these up to n_nodes (at least a
 * slice) are nodes that are pending at once, of which n_hidden may wait to be finished. captures, borrowed:
 * hidden states that are kept; NULL: none. It has no memory yet, and no text. */
sd_cache sd_cache_plan(const sd_model* model, int n_slots, int n_nodes, int n_hidden,
                       const sd_captures* captures);

/* Give a planned cache its memory, which it owns, before its first text; nothing happens where it has it. On
 * failure it has none, and may be asked again. */
sd_status sd_cache_reserve(sd_cache* cache);

/* Plan a cache and give it its memory. */
sd_status sd_cache_create(sd_cache* cache, const sd_model* model, int n_slots, int n_nodes, int n_hidden,
                          const sd_captures* captures);
void sd_cache_free(sd_cache* cache);

/* Hidden state [d_model] of a slot in use, one of the cache's captures. Borrowed until the cache changes. */
float* sd_cache_captured(const sd_cache* cache, int slot, int layer);

/* Let the cache's texts attend to a source from now on, by a reference of the cache's own. What it has of a
 * text with another source is dropped. */
void sd_cache_attend(sd_cache* cache, sd_encoded* encoded);

/* Let the cache's texts be those of another model with the same base (adapter.h) from now on. What it has of
 * a text of another model is dropped. */
void sd_cache_belong(sd_cache* cache, const sd_model* model);

/* Append nodes to the pending tree: parents [n] of tokens [n] are indices of pending nodes (older ones too),
 * or -1. Refuses a parent that is not earlier, and more nodes than there are slots or positions. */
sd_status sd_cache_grow(sd_cache* cache, const int32_t* tokens, const int32_t* parents, int n, int n_ctx);

/* Commit the pending nodes path [n_path], each the parent of the next and the first without one, and drop the
 * other nodes. n_path 0 drops all. Without pending nodes nothing happens, so that a second call changes
 * nothing. Refuses nodes that are to be finished. */
sd_status sd_cache_keep(sd_cache* cache, const int32_t* path, int n_path);

/* Make the cache a beginning of text [n]: committed tokens from the first that differs on are dropped; if
 * none does, the pending nodes that go on along the text are committed; the others, and those that are to be
 * finished, are dropped. */
void sd_cache_follow(sd_cache* cache, const int32_t* text, int n);

/* Drop pending nodes and the committed tokens from the n-th on; all of them where what the n-th would attend
 * to has been overwritten. */
void sd_cache_cut(sd_cache* cache, int n);

/* Begin text [n] in caches[which]: what any of caches [n_caches], all of one base, that is of the same model
 * and has the same source, has committed of its beginning is kept or copied, and the rest of the cache
 * dropped; where prompts have bits of their own, as far as it was read as a prompt (n_prompt). A row's bits
 * are those of its tokens and its source, so a copy is what computing it would give. */
void sd_cache_begin(sd_cache* caches, int n_caches, int which, const int32_t* text, int n);

/* How many tokens of a text [n] that would spare. */
int sd_cache_known(const sd_cache* caches, int n_caches, int which, const int32_t* text, int n);

/* As sd_cache_begin of `cache` with a text [n], where `known`, of the same model and source, is the one other
 * cache: its tokens are copied if the cache has not as many of the text itself. Returns how many tokens of it
 * are there. A cache whose captures `known` lacks takes nothing from it. */
int sd_cache_begin_with(sd_cache* cache, const sd_cache* known, const int32_t* text, int n);

/* Make `copy` a cache of the committed tokens of `cache`, with no room for more. It owns its memory, and
 * shares the source. */
sd_status sd_cache_copy(sd_cache* copy, const sd_cache* cache);

/* Bytes of keys and values, those of the source among them. */
size_t sd_cache_bytes(const sd_cache* cache);

/* The same of a copy, and the n_low that it has. */
size_t sd_cache_copy_bytes(const sd_cache* cache);
int sd_cache_copy_low(const sd_cache* cache);

/* Keep the pending nodes [n], ascending, each with its parent among them or -1, and drop the others; nodes[i]
 * becomes node i. What is kept has the bits it had: they do not depend on the slot. */
sd_status sd_cache_prune(sd_cache* cache, const int32_t* nodes, int n);

/* Let the one pending node, whose residual stream after all layers is hidden [d_model], wait for the head. */
void sd_cache_wait(sd_cache* cache, const float* hidden);

/* Commit the first n pending nodes, a chain from whose last node all other pending nodes descend (keep would
 * drop these); node i becomes node i - n. Nothing moves: the slots are those of the positions. */
sd_status sd_cache_settle(sd_cache* cache, int n);
