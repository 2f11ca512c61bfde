/* Scratch of a forward pass, sized once. */
#pragma once

#include "adapted_rows.h"
#include "attention.h"
#include "input_sums.h"
#include "routing.h"

/* What is skipped in a layer, as bits. */
#define SD_SKIP_ATTN 1u
#define SD_SKIP_MLP 2u

/* New nodes of one sequence. */
typedef struct sd_branch {
    sd_cache* cache;        /* of the forward pass's model; borrowed. The nodes become pending. */
    const int32_t* tokens;  /* [n_new] borrowed */
    const int32_t* parents; /* [n_new] indices among the pending nodes, or -1; borrowed */
    int n_new;
    int n_logits; /* logits are wanted for the last n_logits of the new nodes before the extra ones */
    /* The last n_extra of the new nodes are not tokens: their inputs are vectors. Token −1 − k means row k of
     * `extra` [.., d_model], borrowed. */
    int n_extra;
    const float* extra;
    /* The first n_stored of the new nodes end in the last layer with keys, once these and values are stored.
     * The rows of the pass are then those of the others (sd_forward_may_end). */
    int n_stored;
    /* The first n_commit of the new nodes are a chain after the text. The caller will commit it unless the
     * pass fails or its numbers are not finite. A cache with layers without attention then has no text
     * left. */
    int n_commit;
    /* For a model that reads features (config.h): those of the new nodes, [n_new, features.width], or [n_new,
     * sd_own_width] from the model itself; borrowed. NULL: none. */
    const float* features;
    int own_features; /* the features are from the model itself */
    /* Set by sd_forward_settle_failures if numbers of the branch are not finite; borrowed. */
    sd_failure* failure;
} sd_branch;

/* Memory for rows of adapted models, reserved when a text of such a model starts. */
typedef struct sd_adaptation {
    sd_arena arena;             /* owns the arrays below */
    int n_low, n_inputs;        /* sizes of the adapters that fit (adapter.h); 0: none */
    const sd_adapter** of_row;  /* [max_rows] of the last forward pass's rows; NULL: none */
    const sd_adapter** of_head; /* [max_rows] of the rows that the head is computed for */
    sd_adapted_rows pass, head; /* both use the same memory, except for their groups */
    const sd_adapted_rows* now; /* those of the current products; NULL: they have no adapter */
} sd_adaptation;

/* Scratch of a forward pass, sized once, except for adapters. */
typedef struct sd_workspace {
    const sd_model* model; /* borrowed */
    sd_arena arena;        /* owns the arrays below */
    int n_threads, max_rows, max_logits, max_slots;
    /* Vocabulary of tokens and logits: the model's, or that of another model it drafts for. Ids that the
     * model lacks have the logit -inf, and are read as the model's last token. */
    int n_vocab;
    /* Name of the model in messages ("the target"); static. NULL: prompts are not checked for non-finite
     * numbers. */
    const char* name;
    /* The last forward pass, for sd_forward_check: its branches and what it skipped, borrowed */
    const sd_branch* last_branches;
    int n_last_branches;
    const unsigned char* last_skipped;
    sd_engine last_engine;       /* engine that multiplied its rows */
    int n_last_logits;           /* its rows of logits */
    int32_t *tokens, *positions; /* [max_rows] */
    const float** inputs;        /* [max_rows] vector [d_model] in place of a token's embedding; NULL: none */
    sd_branch* parts;            /* [max_rows] nodes that sd_forward_finish has to start */
    unsigned char* stored_finite; /* [max_rows] by branch: were its first n_stored rows finite? */
    float* hidden;                /* [max_rows, d_model] the residual stream */
    /* For a model that reads features: where each row's is; those of another model, [max_rows, width];
     * embedding and feature of the rows, [max_rows, 2 sd_own_width]; own features that are projected
     * (feature_output), [max_rows, ld_own] */
    const float** row_features;
    float *given, *joined, *own;
    /* For a head in clusters: products with the centroids, [max_logits, ld_clusters], and the clusters that
     * the logits of a row are of, [max_logits, n_chosen_clusters], the best first */
    float* cluster_scores;
    int32_t* clusters;
    /* Per-layer embeddings: [max_rows, ld_per_layer] the rows' vectors of all layers, and a row of the table,
     * each thread's own; NULL: none */
    float *per_layer, *per_layer_row[SD_MAX_THREADS];
    float* qkv;      /* [max_rows, panels of the widest qkv matrix] */
    float* attended; /* [max_rows, inputs of attn_out of the layer that runs] */
    /* For recurrent layers: channels after the convolution, [max_rows, n_channels]; beta and decay,
     * [max_rows, ld_rates]; query · key, [max_rows, n_key_head]; tiles of each thread (state_walk.h) */
    float *convolved, *rates, *products, *tiles[SD_MAX_THREADS];
    float* unit_outputs;  /* [max_rows, n_units, SD_PANEL] where heads fill no panels; NULL: w->attended */
    void* activated;      /* max_rows rows of d_ff, prepared for mlp_down */
    float* update;        /* [max_rows, panels of d_model] */
    float* logits;        /* [max_logits, ld_logits] result */
    float* normed;        /* [max_rows, d_model] */
    float* dense;         /* [max_rows, d_model] output of a dense block with experts; else NULL */
    void* prepared;       /* max_rows rows of the most inputs of a matrix here, prepared */
    void* parallel_input; /* max_rows rows of d_model, prepared; NULL unless halves are parallel */
    /* [2, max_rows, SD_PANEL] gate and up of one group, or a slice of OpenBLAS, each thread's own */
    float* projected[SD_MAX_THREADS];
    sd_attention_scratch attention[SD_MAX_THREADS];
    sd_attention_tiles attention_tiles[SD_MAX_THREADS]; /* if prompts or sources use tiles */
    /* Sums to which the only thread adds the row kernels' inputs; NULL: none; borrowed. */
    sd_input_sums* input_sums;
    sd_adaptation adaptation; /* for texts of adapted models */
    sd_routing routing;       /* of the layer with experts that runs, or ran last */
    /* Layers with experts run so far, and experts read by them, shared ones excluded */
    long n_mixtures, n_touched;
    sd_angles angles; /* for positions below max_slots in whole panels */
    /* row strides in floats */
    ptrdiff_t ld_qkv, ld_rates, ld_per_layer, ld_update, ld_logits, ld_own, ld_clusters;
} sd_workspace;

/* Create a workspace for forward passes of up to max_rows nodes, of which max_logits need logits, on caches
 * of up to max_slots. It owns its memory and serves one forward pass at a time. */
sd_status sd_workspace_create(sd_workspace* workspace, const sd_model* model, int n_threads, int max_rows,
                              int max_logits, int max_slots);
/* The same for a model that drafts for another with n_vocab ids. */
sd_status sd_workspace_create_for(sd_workspace* workspace, const sd_model* model, int n_vocab, int n_threads,
                                  int max_rows, int max_logits, int max_slots);

/* Plan such a workspace, without memory; reserve allocates it before the first forward pass, does nothing if
 * it is allocated, and may be repeated after a failure. */
sd_workspace sd_workspace_plan(const sd_model* model, int n_vocab, int n_threads, int max_rows,
                               int max_logits, int max_slots);
sd_status sd_workspace_reserve(sd_workspace* workspace);

/* max_rows for forward passes of up to n_rows nodes and for slices of n prompts of up to n_tokens tokens. */
int sd_rows_with_prompts(const sd_model* model, int n_rows, int n, int n_tokens);

void sd_workspace_free(sd_workspace* workspace);

/* Reserve memory for texts of a model, the workspace's own or one with the same base, before the first of its
 * rows. On failure nothing has changed. */
sd_status sd_workspace_admit(sd_workspace* workspace, const sd_model* model);
int sd_workspace_fits(const sd_workspace* workspace, const sd_model* model);

/* Set the rows of the next pass to those of these branches. */
void sd_workspace_begin(sd_workspace* workspace, const sd_branch* branches, int n_branches);

/* Compute the head next for rows [n] of that pass, borrowed, instead of those whose logits were wanted. */
void sd_workspace_choose_head(sd_workspace* workspace, const int32_t* rows, int n);

/* From here on products have the n rows that the head is computed for. */
void sd_workspace_use_head(sd_workspace* workspace, int n);
