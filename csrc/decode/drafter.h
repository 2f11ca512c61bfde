/* The interface of a drafting method: begin, read, propose, observe, commit, free.
 *
 * A drafter serves all sequences of one session. It may guess as it likes: the output's distribution is
 * the target's for every drafter (appendix A.1), on one condition. Whether a node is drawn may depend on
 * the text, on all nodes drawn before it and on the distribution it is drawn from, but not on its own
 * token: a guess that is thrown away after a look at it was not drawn from what `drawn_from` says. */
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

/* What every drafting method is told of the session that it drafts for. Borrowed while a drafter is created,
 * which copies what it needs. */
typedef struct sd_drafting {
    int n_vocab; /* tokens of the target's vocabulary, and so of every draft's */
    int draws;   /* some sequence may have guesses drawn: its draft's temperature is above 0 */
    int couples; /* some sequence may be judged by SD_RULE_COUPLED, while guesses are drawn */
    int gamma;   /* most guesses of a round */
    /* Most tokens of a round that the form of a text forces, which a drafter finds behind the text; 0: no
     * text has a form. */
    int max_forced;
    int n_sequences;
    int n_text; /* tokens of the longest text */
    int n_threads;
    int has_sources;           /* prompts come with sources: the target has an encoder */
    sd_shared_reading reading; /* what the target's forward passes read */
} sd_drafting;

/* Operations that a method has no use for are NULL; propose and free are not.
 *
 * Before a sequence is proposed for, begin is called with its prompt, and then read until all prompts are in.
 * A drafter that wraps others passes both calls on to all of them. */
struct sd_drafter {
    /* Of its proposals; the rule of each sequence must judge this kind (sd_drafter_check_rule). With
     * SD_TREE_UNKNOWN propose fails for a tree that the rule cannot judge. */
    sd_tree_type tree_type;
    int points; /* every guess is a point mass: drawn_from of a proposal needs no weights */
    /* What it reads of the target's hidden states: the caches of proposals keep these. */
    sd_captures captures;
    int in_target;          /* it drafts in the cache of each proposal */
    sd_extra_queries extra; /* in each round that may draft */
    int paused;             /* set by a drafter that this one is within: it is left out of the round */
    double other_s;         /* of the last propose: seconds that were not the draft's forward passes */
    /* [n_sequences] where the method's model reads the texts; owned by the drafter. Before
     * reserve they may have no memory (sd_cache_plan). NULL: it has no model, or no caches of its own. */
    sd_cache* caches;
    int own_ids;               /* the texts in them are in the ids of that model, not in the target's */
    sd_drafter* const* within; /* [n_within] the drafters that it asks for guesses; owned by it */
    int n_within;
    sd_arena arena; /* owns the method's arrays */
    int several;    /* these are what `drafters` of a sequence's settings chooses from */
    /* What is done for one sequence may fail for that sequence alone, by its own numbers or a function of the
     * caller's: begin and commit return SD_ERR_CALLBACK then; read, propose and observe_extra note it in
     * `failure` of the prompt or the proposal and go on with the others. What a function of the caller's
     * raised is kept first. Any other failure ends all sequences. A sequence whose settings let nothing draft
     * for it (sd_settings_drafted) begins with its first token alone, and nothing is committed for it.
     *
     * A sequence begins with a prompt, whose tokens stay where they are until they have been read, and its
     * source as long as the sequence does not begin again; its stream has no meaning here. begin clears
     * memory and takes some nanoseconds a token at most: read does the longer work. A sequence may begin
     * again, with another prompt when the text it had has ended, or with the same when the call failed. */
    sd_status (*begin)(sd_drafter* self, int sequence, const sd_prompt* prompt);
    /* Comes before the first begin: make the memory that only a drafter which drafts needs, that of a model's
     * texts and forwards. Nothing happens where it has been made; where there is too little, it may be called
     * again. Drafters `within` are called beside. */
    sd_status (*reserve)(sd_drafter* self);
    /* Read the next part of the prompts that have begun: about 0.1 s of work at most. *done is set to whether
     * all of them have been read; then a call does nothing. */
    sd_status (*read)(sd_drafter* self, int* done);
    /* Fill the trees of n proposals, each of another sequence. Not called in a round in which no sequence may
     * have a guess; then observe is not called either, and the round's tokens come with commit alone. Tokens
     * behind those that were committed may change between calls: a nested drafter is shown guesses too. */
    sd_status (*propose)(sd_drafter* self, sd_proposal* proposals, int n);
    /* The target has been run on the tree of the last proposal: node i has the logits [n_vocab] from
     * logits + node_rows[i] · stride on. Comes before commit. The proposal and the logits stay as they are
     * until the next call of an operation that is not another observe, node_rows for this call. */
    sd_status (*observe)(sd_drafter* self, const sd_proposal* proposal, const int32_t* node_rows,
                         const float* logits, ptrdiff_t stride);
    /* After a round that had its extra query tokens, when it has been committed, for a text of n_text tokens
     * that goes on. Row k of logits [n, n_vocab], rows `stride` floats apart, borrowed, is the target's after
     * extra token k of the last accepted node; near the end of the text n may be smaller than `extra` says.
     * The session calls this itself for a drafter within others. */
    sd_status (*observe_extra)(sd_drafter* self, int sequence, int n_text, const float* logits,
                               ptrdiff_t stride, int n);
    /* The text is tokens [n_tokens] from now on, the prompt included; they stay. */
    sd_status (*commit)(sd_drafter* self, int sequence, const int32_t* tokens, int n_tokens);
    void (*free)(sd_drafter* self);
};

/* Can the rule of a sequence judge a drafter's trees? Where the draft's temperature is 0 (draws: it is not)
 * siblings are no independent draws; where `drafters` chooses one of several, the trees are that one's.
 * `argument` is as in sd_rule_check_trees. */
sd_status sd_drafter_check_rule(const sd_drafter* drafter, sd_rule rule, int draws, uint64_t drafters,
                                const char* argument);

/* The `free` of a method that owns nothing but its arena. */
void sd_drafter_release(sd_drafter* drafter);

/* Tokens of prompts that a drafter without a model reads in one call of read: some milliseconds. */
#define SD_READ_SLICE 8192

/* How many tokens to read now of a prompt [n] of which n_read have been read; *room, what is left of the
 * slice, gets that much smaller. */
int sd_slice_take(int n, int n_read, int* room);

/* The end of making a drafter: hand it out if `status`, of its making, is SD_OK; free it otherwise. Returns
 * status. */
sd_status sd_drafter_made(sd_drafter* made, sd_status status, sd_drafter** drafter);

/* May the text that a drafter is shown go on with tokens that the target has not read, as that of a nested
 * drafter does? Not where it, or one within it, drafts with what the target's cache holds. */
int sd_drafter_reads_text(const sd_drafter* drafter);

/* Add the captures of a drafter, and of those within it, to those of a target. */
sd_status sd_drafter_add_captures(const sd_drafter* drafter, const sd_config* target, sd_captures* captures);

/* The drafter that has extra query tokens: this one, or one within it; NULL: none has. Fails where several
 * have. */
sd_status sd_drafter_find_queries(sd_drafter* drafter, sd_drafter** found);

/* The same in this round: NULL where that drafter, or one that it is within, is paused. */
sd_drafter* sd_drafter_active_queries(sd_drafter* drafter);

/* A sequence's cache of this model in a drafter (NULL: none), or in the first of the drafters within it that
 * has one; NULL if there is none. */
sd_cache* sd_drafter_cache(const sd_drafter* drafter, int sequence, const sd_model* model);

/* Let all caches of a sequence that a drafter and those within it have of the model of `known` begin a prompt
 * with what `known`, of the same source, has of it. Where a model has ids of its own, so that prompt and
 * source in them are not known yet, that is all that `known` has: what the prompt does not agree with is
 * dropped when it is read. *n, set on success: how many tokens there are then, at most. */
sd_status sd_drafter_begin_with(const sd_drafter* drafter, int sequence, const sd_cache* known,
                                const sd_prompt* prompt, int* n);

/* The operations that may be NULL. */
sd_status sd_drafter_reserve(sd_drafter* drafter);
sd_status sd_drafter_begin(sd_drafter* drafter, int sequence, const sd_prompt* prompt);
sd_status sd_drafter_read(sd_drafter* drafter, int* done);
sd_status sd_drafter_commit(sd_drafter* drafter, int sequence, const int32_t* tokens, int n_tokens);
