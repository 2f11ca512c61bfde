/* The scratch of a forward pass, sized once. */
#pragma once

#include "adapted_rows.h"
#include "attention.h"
#include "input_sums.h"
#include "routing.h"

/* What is passed by of a layer, as bits. */
#define SD_SKIP_ATTN 1u
#define SD_SKIP_MLP 2u

/* New nodes of one sequence. */
typedef struct sd_branch {
    sd_cache* cache;        /* of the model of the forward; borrowed. The nodes become pending. */
    const int32_t* tokens;  /* [n_new] borrowed */
    const int32_t* parents; /* [n_new] indices among the pending nodes, or -1; borrowed */
    int n_new;
    int n_logits; /* logits are wanted for the last n_logits of the new nodes before the extra ones */
    /* The last n_extra of the new nodes are no tokens: their inputs are vectors. Where their token is −1 − k
     * that is row k of `extra` [.., d_model], borrowed. */
    int n_extra;
    const float* extra;
    /* Of a model that reads features (config.h): those of the new nodes, [n_new, features.width], or [n_new,
     * d_model] where the model itself made them; borrowed. NULL: it reads none. */
    const float* features;
    int own_features; /* the model itself made them */
    /* For sd_forward_settle_failures: of numbers of the branch that are not finite; borrowed. */
    sd_failure* failure;
} sd_branch;

/* What rows of adapted models need: room that is made when a text of such a model begins. */
typedef struct sd_adaptation {
    sd_arena arena;             /* owns the arrays below */
    int n_low, n_inputs;        /* of the adapters that there is room for (adapter.h); 0: none */
    const sd_adapter** of_row;  /* [max_rows] of the last forward's rows; NULL: none */
    const sd_adapter** of_head; /* [max_rows] of the rows that the head is computed for */
    sd_adapted_rows pass, head; /* both in the same memory but for their groups */
    const sd_adapted_rows* now; /* those whose products are being computed; NULL: they have no adapter */
} sd_adaptation;

/* Scratch of a forward, sized once, but for adapters. */
typedef struct sd_workspace {
    const sd_model* model; /* borrowed */
    sd_arena arena;        /* owns the arrays below */
    int n_threads, max_rows, max_logits, max_slots;
    /* Ids that tokens may have and rows of logits are for: the model's, or those of another model that it
     * guesses for. What the model lacks has the logit -inf, and is read as the model's last token. */
    int n_vocab;
    const char* name; /* of the model in messages ("the target"); static. NULL: prompts are not checked for
                       * numbers that are not finite */
    /* The last forward, for sd_forward_check: its branches and what it passed by, borrowed */
    const sd_branch* last_branches;
    int n_last_branches;
    const unsigned char* last_skipped;
    sd_engine last_engine;       /* what multiplied its rows */
    int n_last_logits;           /* its rows of logits */
    int32_t *tokens, *positions; /* [max_rows] */
    const float** inputs; /* [max_rows] the vector [d_model] that is no token's embedding; NULL: it is */
    sd_branch* parts;     /* [max_rows] what sd_forward_finish has to begin */
    float* hidden;        /* [max_rows, d_model] the residual stream */
    /* Of a model that reads features: where those of the rows are; those of another model, [max_rows, width];
     * embedding and feature of the rows, [max_rows, 2 d_model] */
    const float** row_features;
    float *given, *joined;
    float* qkv;      /* [max_rows, panels of the widest qkv matrix] */
    float* attended; /* [max_rows, n_head · d_head of the layer that runs] */
    void* activated; /* max_rows rows of d_ff, prepared for mlp_down */
    float* update;   /* [max_rows, panels of d_model] */
    float* logits;   /* [max_logits, ld_logits] result */
    float* normed;   /* [max_rows, d_model] */
    void* prepared;  /* max_rows rows of the most inputs of a matrix here, prepared */
    void* beside;    /* max_rows rows of d_model, prepared; NULL unless halves are parallel */
    /* [2, max_rows, SD_PANEL] gate and up of one group, or a slice of OpenBLAS, each thread's own */
    float* projected[SD_MAX_THREADS];
    sd_attention_scratch attention[SD_MAX_THREADS];
    sd_attention_tiles attention_tiles[SD_MAX_THREADS]; /* where prompts or sources are in tiles */
    sd_input_sums* input_sums; /* what the row kernels multiply is added here, by the only thread; NULL:
                                * nowhere; borrowed */
    sd_adaptation adaptation;  /* of texts of adapted models */
    sd_routing routing;        /* of the layer with experts that runs, or has run last */
    /* Layers with experts that have run so far, and experts that they have read, the shared ones not among
     * them */
    long n_mixtures, n_touched;
    sd_angles angles;                       /* of positions below max_slots in whole panels */
    ptrdiff_t ld_qkv, ld_update, ld_logits; /* row strides in floats */
} sd_workspace;

/* Room for forwards of up to max_rows nodes, of which max_logits need logits, on caches of up to max_slots.
 * The workspace owns its memory; it serves one forward at a time. */
sd_status sd_workspace_create(sd_workspace* workspace, const sd_model* model, int n_threads, int max_rows,
                              int max_logits, int max_slots);
/* The same for a model that guesses for another of n_vocab ids. */
sd_status sd_workspace_create_for(sd_workspace* workspace, const sd_model* model, int n_vocab, int n_threads,
                                  int max_rows, int max_logits, int max_slots);

/* Such a workspace that has no memory yet; and to give a planned one its memory, before its first forward:
 * nothing happens where it has it, and on failure it may be asked again. */
sd_workspace sd_workspace_plan(const sd_model* model, int n_vocab, int n_threads, int max_rows,
                               int max_logits, int max_slots);
sd_status sd_workspace_reserve(sd_workspace* workspace);

void sd_workspace_free(sd_workspace* workspace);

/* Make room for texts of a model, the workspace's own or one with the same base: to be called before the
 * first of its rows. On failure nothing has changed. */
sd_status sd_workspace_admit(sd_workspace* workspace, const sd_model* model);
int sd_workspace_fits(const sd_workspace* workspace, const sd_model* model);

/* The rows of the next pass are those of these branches. */
void sd_workspace_begin(sd_workspace* workspace, const sd_branch* branches, int n_branches);

/* The rows that the head is next computed for are rows [n] of that pass, borrowed, not those whose logits
 * were wanted. */
void sd_workspace_choose_head(sd_workspace* workspace, const int32_t* rows, int n);

/* Products are from here on of the n rows that the head is computed for. */
void sd_workspace_turn_to_head(sd_workspace* workspace, int n);
