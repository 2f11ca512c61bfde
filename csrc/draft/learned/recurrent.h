/* A recurrent network that predicts the next token of a text: layers of gated recurrent units (GRU, Cho et
 * al. 2014), with torch's formulas and order of gates, and a head for all or some tokens.
 *
 * Its state after a text is [n_layers, d_hidden] f32, all zeros before the first token. A row has the same
 * bits alone and in a batch. */
#pragma once

#include "pool.h"
#include "predictor.h"
#include "tensor_list.h"

#define SD_MAX_RECURRENT_LAYERS 16

typedef struct sd_recurrent_shape {
    int n_vocab;       /* vocabulary of the texts */
    int n_draft_vocab; /* tokens that can be predicted, at most n_vocab */
    /* widths of an embedding and of a layer's state */
    int d_embed, d_hidden;
    int n_layers;
} sd_recurrent_shape;

/* One layer. Outputs of both matrices are the gates r, z and the candidate n, d_hidden each. */
typedef struct sd_recurrent_cell {
    sd_matrix input; /* [3 · d_hidden, d_embed], d_hidden instead of d_embed after the first layer */
    sd_matrix state; /* [3 · d_hidden, d_hidden] */
    float *input_bias, *state_bias; /* [3 · d_hidden] */
} sd_recurrent_cell;

/* The weights: immutable once set, shared by sessions and threads. */
typedef struct sd_recurrent {
    sd_recurrent_shape shape;
    sd_format format; /* of the matrices */
    sd_arena arena;   /* owns the arrays */
    sd_table embedding;
    sd_recurrent_cell cells[SD_MAX_RECURRENT_LAYERS];
    sd_matrix output;       /* [n_draft_vocab, d_hidden] */
    float* output_bias;     /* [n_draft_vocab] */
    int32_t* tokens;        /* [n_draft_vocab] the token of each output; NULL: output i is token i */
    sd_tensor_list tensors; /* embedding.weight; cells.I.weight_ih, cells.I.weight_hh, cells.I.bias_ih and
                             * cells.I.bias_hh for each layer I; output.weight, output.bias */
} sd_recurrent;

/* Create a network whose tensors are to be set; tokens [n_draft_vocab], borrowed: the token of each output;
 * NULL, if n_draft_vocab is n_vocab: output i is token i. Owned by the caller. */
sd_status sd_recurrent_create(const sd_recurrent_shape* shape, sd_format format, const int32_t* tokens,
                              sd_recurrent** recurrent);
void sd_recurrent_free(sd_recurrent* recurrent);

/* Numbers of a state. */
static inline size_t sd_recurrent_state_size(const sd_recurrent* r) {
    return (size_t)r->shape.n_layers * (size_t)r->shape.d_hidden;
}

/* Multiplications of a step. */
double sd_recurrent_step_work(const sd_recurrent* recurrent);

/* Scratch of steps and heads, sized once. */
typedef struct sd_recurrent_scratch {
    int max_rows;
    int n_threads; /* for large products; small ones use the caller alone */
    ptrdiff_t ld_gates, ld_outputs;
    float* rows;                    /* [max_rows, the larger of d_embed and d_hidden] inputs of a layer */
    float* states;                  /* [max_rows, d_hidden] of a layer */
    void* prepared;                 /* max_rows rows of these, prepared */
    float *from_input, *from_state; /* [max_rows, ld_gates] */
    float* outputs;                 /* [max_rows, ld_outputs] */
} sd_recurrent_scratch;

/* Take scratch from the arena. */
sd_recurrent_scratch sd_recurrent_scratch_take(sd_arena* arena, const sd_recurrent* recurrent, int max_rows,
                                               int n_threads);

/* One row of a step. */
typedef struct sd_recurrent_step {
    int32_t token;
    const float* from; /* [n_layers, d_hidden] the state before the token; borrowed */
    float* to;         /* the state after it; may be `from`, else overlaps no other state of the step */
    /* Set if products of the step are not finite; these then count as 0. Borrowed. */
    sd_failure* failure;
} sd_recurrent_step;

/* Read a token in each of n steps, n at most max_rows. */
void sd_recurrent_advance(const sd_recurrent* recurrent, sd_recurrent_scratch* scratch,
                          const sd_recurrent_step* steps, int n);

/* Logits of the next token after the states `to` of steps [n], n at most max_rows: [n, n_vocab], rows
 * ld_logits apart, -infinity for tokens without an output. All pointers borrowed. */
void sd_recurrent_predict(const sd_recurrent* recurrent, sd_recurrent_scratch* scratch,
                          const sd_recurrent_step* steps, int n, float* logits, ptrdiff_t ld_logits);

/* Create a predictor; options: a sd_recurrent, borrowed, which must outlive the predictor.
 *
 * It keeps a state for each sequence, which follows the text, and one for each predicted node. It reads
 * tokens only, so it may draft for a draft. States after the last few tokens are kept, so that a text may
 * lose its last tokens; a text that loses more is read again. */
sd_status sd_recurrent_predictor_make(const void* options, const sd_prediction* prediction,
                                      sd_predictor** predictor);
