/* Weights of a learned draft: its tensors by name, and the target's tokens in its vocabulary. */
#pragma once

#include <stdint.h>

#include "pack.h"
#include "status.h"

typedef struct sd_listed_tensor {
    char name[64];
    sd_destination to; /* location in the draft's weights; its name is the tensor's */
    int is_set;
} sd_listed_tensor;

typedef struct sd_tensor_list {
    sd_listed_tensor* tensors; /* [n] in the draft's arena */
    int n;
} sd_tensor_list;

/* Take an empty list for n tensors from the arena (which may be counting). */
sd_tensor_list sd_tensor_list_take(sd_arena* arena, int n);

/* Append a tensor with a printf name: a matrix, a table or a vector [n] of the draft's weights. Appends
 * nothing while the arena is counting. */
void sd_tensor_list_add_matrix(sd_tensor_list* list, sd_matrix* matrix, const char* format, ...)
    SD_PRINTF(3, 4);
void sd_tensor_list_add_table(sd_tensor_list* list, sd_table* table, const char* format, ...) SD_PRINTF(3, 4);
void sd_tensor_list_add_vector(sd_tensor_list* list, float* vector, int n, const char* format, ...)
    SD_PRINTF(4, 5);

/* Set one tensor by name, packed with n_threads threads, or copied. Its shape must match, every value be
 * finite, and it must not be set yet. */
sd_status sd_tensor_list_set(sd_tensor_list* list, const char* name, const sd_source* source, int n_rows,
                             int n_cols, int n_threads);

/* Have all tensors been set? */
sd_status sd_tensor_list_check(const sd_tensor_list* list);

/* Total number of parameters. */
long long sd_tensor_list_count(const sd_tensor_list* list);

/* Check tokens [n_draft], borrowed, the target's token of each of a draft's. NULL: the same ids, which needs
 * n_draft to be the target's n_vocab. */
sd_status sd_draft_tokens_check(const int32_t* tokens, int n_draft, int n_vocab);

/* Scatter logits [n_draft] of a draft's tokens into those of the target's, [n_vocab]; the others stay
 * unchanged. All borrowed; tokens as above. */
void sd_draft_tokens_scatter(const int32_t* tokens, int n_draft, const float* from, float* to);
