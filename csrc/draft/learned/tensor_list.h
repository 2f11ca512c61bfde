/* The tensors of a learnt draft by name: the shape of each, where it goes, whether it has been given. */
#ifndef SD_TENSOR_LIST_H
#define SD_TENSOR_LIST_H

#include "destination.h"

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

#endif
