/* Heads on a target's last hidden state: each guesses a token some places ahead.
 *
 * Head k = 1, 2, … predicts the token k places behind the root from x, the hidden state of the token before
 * the root, which the target's own head reads: x ← x + silu(W x + b) for each of its blocks, then an output
 * matrix. This is Medusa (Cai et al. 2024); with one block and the target's own output matrix, blockwise
 * parallel decoding (Stern et al. 2018). A head that sees guesses begins with W [x, embeddings of the root
 * and of the k − 1 guesses before it] instead of x (Hydra, Ankner et al. 2024). */
#pragma once

#include "predictor.h"
#include "tensor_list.h"

#define SD_MAX_HEADS 64
/* Residual blocks of a head at most. */
#define SD_MAX_HEAD_BLOCKS 64

typedef struct sd_heads_config {
    int n_heads, n_blocks;
    int d_model, n_vocab; /* Of the target. */
    /* Tokens that the heads can guess, at most n_vocab. */
    int n_draft_vocab;
    int see_draft_tokens;
    /* The target's own head is the output of all heads: its rows of the tokens that they can guess. */
    int shared_output;
    sd_format format;
} sd_heads_config;

typedef struct sd_head {
    sd_matrix input;   /* [d_model, (1 + k) · d_model]; of a head that sees guesses only */
    sd_matrix* blocks; /* [n_blocks] of [d_model, d_model] */
    float** biases;    /* [n_blocks] of [d_model] */
    sd_matrix output;  /* [n_draft_vocab, d_model], unless the target's is shared */
} sd_head;

/* Immutable once all tensors are given (sd_tensor_list_check), shared between threads. */
typedef struct sd_heads {
    sd_heads_config config;
    sd_arena arena;        /* owns the arrays below */
    sd_head* heads;        /* [n_heads] */
    const int32_t* tokens; /* [n_draft_vocab] the target's token of each; NULL: they are the same. */
    sd_tensor_list tensors;
} sd_heads;

/* Allocate heads without weights, to be given by `tensors`; then they never change. tokens [n_draft_vocab],
 * borrowed: the target's token of each; NULL: the same. On success *heads is owned by the caller. */
sd_status sd_heads_create(const sd_heads_config* config, const int32_t* tokens, sd_heads** heads);

void sd_heads_free(sd_heads* heads);

/* Borrowed; both must outlive the predictor. */
typedef struct sd_heads_predictor_options {
    const sd_heads* heads;
    /* Whose hidden states they read, whose head they may share, and by whose table guesses are embedded: the
     * model of the session's caches. */
    const sd_model* target;
} sd_heads_predictor_options;

/* Make a predictor of sd_heads_predictor_options. As many tokens in a row are predicted as there are heads;
 * none behind a text of one token, which has no token before the root. */
sd_status sd_heads_predictor_make(const void* options, const sd_prediction* prediction,
                                  sd_predictor** predictor);
