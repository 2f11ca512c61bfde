/* The most promising next tokens of every token: what a target said when it last read the token.
 *
 * Several threads may read and write it at the same time: a row that is read while it is written may be
 * partly of the one time and partly of the other. */
#ifndef SD_TOKEN_MATRIX_H
#define SD_TOKEN_MATRIX_H

#include <stdatomic.h>
#include <stdint.h>

/* The most tokens of a row. */
#define SD_TOKEN_MATRIX_MAX_K 64

typedef struct sd_token_matrix {
    int n_vocab, k;        /* k: 1 to SD_TOKEN_MATRIX_MAX_K */
    _Atomic int32_t* rows; /* [n_vocab, k] the best first; -1: none; owned by who made it */
} sd_token_matrix;

/* The token of a rank, from 0, behind a token; -1: none. */
int32_t sd_token_matrix_at(const sd_token_matrix* matrix, int32_t token, int rank);

/* Behind a token come those of the largest logits [n_vocab], of equal ones the lower id first. */
void sd_token_matrix_set(const sd_token_matrix* matrix, int32_t token, const float* logits);

#endif
