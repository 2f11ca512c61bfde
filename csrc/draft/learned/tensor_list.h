/* The weights of a learned draft: its tensors by name, and the target's tokens that it knows. */
#pragma once

#include <stdint.h>

#include "pack.h"
#include "status.h"

typedef struct sd_listed_tensor {
    char name[64];
    sd_destination to; /* in the draft's weights; its name is this one */
    int is_set;
} sd_listed_tensor;

typedef struct sd_tensor_list {
    sd_listed_tensor* tensors; /* [n] a piece of the draft's arena */
    int n;
} sd_tensor_list;

/* An empty list with room for n tensors, from the arena (which may be counting). */
sd_tensor_list sd_tensor_list_take(sd_arena* arena, int n);

/* Append a tensor of a name by printf: a matrix, a table or a vector [n] of the draft's weights, which have
 * memory by then: nothing is appended while the arena is counting. */
void sd_tensor_list_add_matrix(sd_tensor_list* list, sd_matrix* matrix, const char* format, ...)
    SD_PRINTF(3, 4);
void sd_tensor_list_add_table(sd_tensor_list* list, sd_table* table, const char* format, ...) SD_PRINTF(3, 4);
void sd_tensor_list_add_vector(sd_tensor_list* list, float* vector, int n, const char* format, ...)
    SD_PRINTF(4, 5);

/* Give one tensor by name, packed with n_threads threads, or copied; its shape must be that of the list,
 * every value finite, and it must not have been given before. */
sd_status sd_tensor_list_set(sd_tensor_list* list, const char* name, const sd_source* source, int n_rows,
                             int n_cols, int n_threads);

/* Have all of them been given? */
sd_status sd_tensor_list_check(const sd_tensor_list* list);

/* How many numbers all of them hold. */
long long sd_tensor_list_count(const sd_tensor_list* list);

/* Can tokens [n_draft], borrowed, be the target's token of each of a draft's? NULL: they are the same, which
 * needs n_draft to be n_vocab, the target's. */
sd_status sd_draft_tokens_check(const int32_t* tokens, int n_draft, int n_vocab);

/* Logits [n_draft] of a draft's tokens to those of the target's, [n_vocab]; the others stay as they are. All
 * borrowed; tokens as above. */
void sd_draft_tokens_scatter(const int32_t* tokens, int n_draft, const float* from, float* to);
