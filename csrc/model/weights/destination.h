/* Where a tensor goes that is given by name: the checks of its shape, and its packing or copying. */
#ifndef SD_DESTINATION_H
#define SD_DESTINATION_H

#include "table.h"

/* Of the three pointers those are set where its numbers go; borrowed. */
typedef struct sd_destination {
    const char* name;   /* borrowed */
    int n_rows, n_cols; /* n_cols 0: a vector [n_rows] */
    float* vector;
    sd_table* table;
    sd_matrix* matrix;
    sd_rows rows; /* of the matrix, or entries of the vector */
} sd_destination;

/* Put a tensor there, packed with n_threads threads, or copied. It must have the shape of the destination,
 * and every value must be finite. */
sd_status sd_destination_fill(const sd_destination* to, const sd_source* source, int n_rows, int n_cols,
                              int n_threads);

/* What is said of a tensor that is given again, and of one that has not been given. */
sd_status sd_destination_fail_twice(const sd_destination* to);
sd_status sd_destination_fail_missing(const sd_destination* to);

#endif
