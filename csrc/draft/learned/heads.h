/* Decoding heads on a target's last hidden state: each predicts a token some positions ahead.
 *
 * Head k = 1, 2, … predicts the token k positions after the root from x, the hidden state of the token before
 * the root, which the target's own head reads: x ← x + silu(W x + b) for each of its blocks, then an output
 * matrix. This is Medusa (Cai et al. 2024); with one block and the target's own output matrix, blockwise
 * parallel decoding (Stern et al. 2018). A head that sees draft tokens begins with W [x, embeddings of the
 * root and of the k − 1 draft tokens before it] instead of x (Hydra, Ankner et al. 2024). */
#pragma once

#include "predictor.h"
#include "tensor_list.h"

#define SD_MAX_HEADS 64
/* Most residual blocks of a head. */
#define SD_MAX_HEAD_BLOCKS 64

typedef struct sd_heads_config {
    int n_heads, n_blocks;
    int d_model, n_vocab; /* of the target */
    /* Tokens that the heads can predict, at most n_vocab. */
    int n_draft_vocab;
    int see_draft_tokens;
    /* All heads share the target's own output matrix: its rows of the tokens that they can predict. */
    int shared_output;
    sd_format format;
} sd_heads_config;

typedef struct sd_head {
    sd_matrix input;   /* [d_model, (1 + k) · d_model]; only of a head that sees draft tokens */
    sd_matrix* blocks; /* [n_blocks] of [d_model, d_model] */
    float** biases;    /* [n_blocks] of [d_model] */
    sd_matrix output;  /* [n_draft_vocab, d_model], unless the target's is shared */
} sd_head;

/* Immutable once all tensors are given (sd_tensor_list_check), shared between threads. */
typedef struct sd_heads {
    sd_heads_config config;
    sd_arena arena;        /* owns the arrays below */
    sd_head* heads;        /* [n_heads] */
    const int32_t* tokens; /* [n_draft_vocab] the target's token of each; NULL: the same */
    sd_tensor_list tensors;
} sd_heads;

/* Allocate heads without weights, to be set through `tensors`; immutable afterwards. tokens [n_draft_vocab],
 * borrowed: the target's token of each; NULL: the same. On success *heads is owned by the caller. */
sd_status sd_heads_create(const sd_heads_config* config, const int32_t* tokens, sd_heads** heads);

void sd_heads_free(sd_heads* heads);

/* Borrowed; both must outlive the predictor. */
typedef struct sd_heads_predictor_options {
    const sd_heads* heads;
    /* The model of the session's caches: the heads read its hidden states, embed draft tokens with its table,
     * and may share its output matrix. */
    const sd_model* target;
} sd_heads_predictor_options;

/* Create a predictor of sd_heads_predictor_options. Predicts as many tokens in a row as there are heads; none
 * for a text of one token, which has no token before the root. */
sd_status sd_heads_predictor_make(const void* options, const sd_prediction* prediction,
                                  sd_predictor** predictor);
