/* The interface of a drafting method: begin, read, propose, observe, commit, free.
 *
 * A drafter serves all sequences of one session and may draft anything: the output keeps the target's
 * distribution for every drafter (appendix A.1), on one condition. Whether a node is drawn may depend on the
 * text, on earlier nodes and on the distribution it is drawn from. It may not depend on the node's own token:
 * tokens that remain after dropping some by value no longer have the distribution `drawn_from`. */
#pragma once

#include "cost_model.h"
#include "memory.h"
#include "proposal.h"
#include "sequence.h"

typedef struct sd_drafter sd_drafter;

/* Extra query tokens: rows that the session appends to the target's forward passes for a drafter, after every
 * row of a round's tree (session_state.h). */
typedef struct sd_extra_queries {
    int n; /* after a row, at most; 0: there are none */
    int d_model;
    const float* embeddings; /* [n, d_model] inputs, in order; borrowed from the drafter */
} sd_extra_queries;

/* The session that a drafter is created for. Borrowed during creation; the drafter copies what it needs. */
typedef struct sd_drafting {
    int n_vocab; /* tokens of the target's vocabulary, and so of every draft's */
    int draws;   /* some sequence may have sampled draft tokens: its draft's temperature is above 0 */
    int couples; /* some sequence may use SD_RULE_COUPLED with sampled draft tokens */
    int gamma;   /* most draft tokens of a sequence in a round */
    /* Most tokens per round that a constraint forces; a drafter finds them after the text. 0: no
     * constraints. */
    int max_forced;
    int n_sequences;
    int n_text; /* tokens of the longest text */
    int n_threads;
    int has_sources;              /* prompts come with sources: the target has an encoder */
    sd_expert_reads expert_reads; /* what the target's forward passes read */
} sd_drafting;

/* Operations of a drafting method. All but propose and free may be NULL.
 *
 * Before the first propose for a sequence, begin is called with its prompt, then read until all prompts are
 * read. A drafter that wraps others passes both calls on to all of them. */
struct sd_drafter {
    /* Type of its trees, which the rule of each sequence must accept (sd_drafter_find_rule). With
     * SD_TREE_UNKNOWN propose fails for a tree that the rule cannot verify. */
    sd_tree_type tree_type;
    int points; /* every draft token is a point mass: drawn_from of a proposal needs no weights */
    /* Hidden states of the target that it reads; the caches of proposals keep them. */
    sd_captures captures;
    int in_target;          /* it drafts in the cache of each proposal */
    sd_extra_queries extra; /* in each round that may draft */
    int paused;             /* set by the enclosing drafter: skip this round, add no extra rows */
    double other_s;         /* seconds of the last propose outside the draft's forward passes */
    /* [n_sequences] caches of the method's model; owned by the drafter. They may have no memory before
     * reserve (sd_cache_plan). NULL: no model, or no caches of its own. */
    sd_cache* caches;
    int own_ids;               /* their texts use the ids of that model, not the target's */
    sd_drafter* const* within; /* [n_within] the drafters that it wraps; owned */
    int n_within;
    sd_arena arena; /* owns the method's arrays */
    int several;    /* `drafters` of a sequence's settings selects among these */
    /* Work for one sequence may fail for that sequence alone, through its numbers or a user callback: begin
     * and commit then return SD_ERR_CALLBACK; read, propose and observe_extra note the failure in `failure`
     * of the prompt or proposal and continue with the others. An exception of a user callback is stored
     * first. Any other failure ends all sequences. A sequence that nothing drafts for (sd_settings_drafted)
     * begins with its first token only, and nothing is committed for it.
     *
     * Begin a sequence with a prompt. Its tokens stay in place until they have been read, its source until
     * the sequence begins again; its stream is unused. begin must be quick, a few nanoseconds per
     * token at most; read does the rest. A sequence may begin again with another prompt after its text has
     * ended, or with the same one after a failed call. */
    sd_status (*begin)(sd_drafter* self, int sequence, const sd_prompt* prompt);
    /* Called before the first begin: allocate the caches and workspaces that only an active drafter needs.
     * Does nothing when they exist; may be called again after SD_ERR_MEMORY. Drafters `within` get their own
     * calls. */
    sd_status (*reserve)(sd_drafter* self);
    /* Read the next part of the prompts that have begun: about 0.1 s of work at most. *done: all of them have
     * been read; further calls do nothing. */
    sd_status (*read)(sd_drafter* self, int* done);
    /* Draft: fill the trees of n proposals, one per sequence. Not called in a round without draft tokens;
     * then observe is not called either, and the round's tokens arrive with commit alone. Tokens after the
     * committed ones may change between calls: a nested drafter also sees draft tokens. */
    sd_status (*propose)(sd_drafter* self, sd_proposal* proposals, int n);
    /* Observe the target's logits for the last proposal: node i has [n_vocab] logits at logits + node_rows[i]
     * · stride. Comes before commit. The proposal and the logits stay unchanged until the next operation
     * other than observe; node_rows is valid for this call only. */
    sd_status (*observe)(sd_drafter* self, const sd_proposal* proposal, const int32_t* node_rows,
                         const float* logits, ptrdiff_t stride);
    /* Observe the logits of the extra query tokens, after the round has been committed, for a text of n_text
     * tokens that continues. Row k of logits [n, n_vocab], rows `stride` floats apart, borrowed, follows
     * extra token k of the last accepted node; near the end of the text n may be smaller than extra.n. The
     * session also calls this directly for a wrapped drafter. */
    sd_status (*observe_extra)(sd_drafter* self, int sequence, int n_text, const float* logits,
                               ptrdiff_t stride, int n);
    /* Commit: the text is now tokens [n_tokens], prompt included; they stay in place. */
    sd_status (*commit)(sd_drafter* self, int sequence, const int32_t* tokens, int n_tokens);
    void (*free)(sd_drafter* self);
};

/* Find the rule that verifies a sequence with these settings (sd_rule_for). Fails if the settings name one
 * that cannot verify the drafter's trees. Where they select one of several drafters, the trees are that
 * one's. drafter may be NULL: none. */
sd_status sd_drafter_find_rule(const sd_drafter* drafter, const sd_settings* settings, sd_rule* rule);

/* The `free` of a method that only owns its arena. */
void sd_drafter_release(sd_drafter* drafter);

/* Tokens of prompts that a drafter without a model reads in one call of read: some milliseconds. */
#define SD_READ_SLICE 8192

/* Number of tokens to read now of a prompt [n] of which n_read have been read; reduces *n_free, the rest of
 * the slice, by as much. */
int sd_slice_take(int n, int n_read, int* n_free);

/* Finish creating a drafter: hand it out if `status` is SD_OK; free it otherwise. Returns status. */
sd_status sd_drafter_made(sd_drafter* made, sd_status status, sd_drafter** drafter);

/* May a drafter's text end with tokens that the target has not read, as for a nested drafter? Not if it, or a
 * drafter within it, uses the contents of the target's cache. */
int sd_drafter_reads_text(const sd_drafter* drafter);

/* Add the captures of a drafter and of those within it to a target's. */
sd_status sd_drafter_add_captures(const sd_drafter* drafter, const sd_config* target, sd_captures* captures);

/* Find the drafter with extra query tokens, this one or one within it; NULL: none. Fails if several have
 * some. */
sd_status sd_drafter_find_queries(sd_drafter* drafter, sd_drafter** found);

/* The same for this round: NULL if that drafter or an enclosing one is paused. */
sd_drafter* sd_drafter_active_queries(sd_drafter* drafter);

/* A sequence's cache of this model in a drafter (may be NULL) or in the first drafter within it that has one;
 * NULL: none. */
sd_cache* sd_drafter_cache(const sd_drafter* drafter, int sequence, const sd_model* model);

/* Let the prompts of `n_sequences` sequences take snapshots (sd_cache_keep_snapshots), in a drafter and those
 * within it. */
void sd_drafter_keep_snapshots(const sd_drafter* drafter, int n_sequences, int most, size_t max_bytes);

/* Copy the common prefix of a prompt and `known` (same source) into all of a sequence's caches of that model,
 * in a drafter and those within it. A model with ids of its own gets all of `known`, since the prompt in its
 * ids is not known yet; tokens that disagree are dropped when the prompt is read. *n, set on success: most
 * tokens in a cache then. */
sd_status sd_drafter_begin_with(const sd_drafter* drafter, int sequence, const sd_cache* known,
                                const sd_prompt* prompt, int* n);

/* Calls of the operations that may be NULL. */
sd_status sd_drafter_reserve(sd_drafter* drafter);
sd_status sd_drafter_begin(sd_drafter* drafter, int sequence, const sd_prompt* prompt);
sd_status sd_drafter_read(sd_drafter* drafter, int* done);
sd_status sd_drafter_commit(sd_drafter* drafter, int sequence, const int32_t* tokens, int n_tokens);
