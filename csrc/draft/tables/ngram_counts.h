/* Counts of n-grams of a text that grows, on top of a table's: the model learns while it drafts. */
#ifndef SD_NGRAM_COUNTS_H
#define SD_NGRAM_COUNTS_H

#include "ngram_table.h"

/* An n-gram of the text, found by its beginning and its last token. Number 0 is the empty one. */
typedef struct sd_counted {
    int32_t beginning; /* number of the n-gram without its last token */
    int32_t token;     /* the last one */
    int32_t count;     /* in this text */
    int32_t n_after;   /* Σ count of those that go on from here */
    int32_t n_new;     /* how many of these the table does not have */
    int32_t first;     /* one that goes on from here, 0: none */
    int32_t next;      /* another one with the same beginning, 0: no more */
    int32_t entry;     /* in the table, -1: it does not have it */
} sd_counted;

/* The n-gram that ends at a position of a text, in the table and in the counts. */
typedef struct sd_ngram_context {
    int64_t entry;  /* in the table, -1: not there */
    int32_t number; /* in the counts, -1: not there */
} sd_ngram_context;

/* Room is taken for every n-gram that a text of n_text tokens can have, so counting never fails. */
typedef struct sd_ngram_counts {
    const sd_ngram_table* table;                 /* borrowed */
    sd_unigrams unigrams;                        /* of table and text */
    sd_counted* counted;                         /* [1 + n · n_text], the first n_counted are in use */
    int32_t* slots;                              /* [n_slots] numbers by hash; 0: free */
    int32_t n_counted, n_slots;                  /* n_slots is a power of two */
    int n_text, n_read;                          /* tokens that there is room for, that were counted */
    sd_ngram_context contexts[SD_MAX_NGRAM + 1]; /* at the end of what was counted */
} sd_ngram_counts;

/* Pieces of an arena; table is borrowed. */
sd_ngram_counts sd_ngram_counts_take(sd_arena* arena, const sd_ngram_table* table, int n_text);

/* Forget the text: the counts are the table's. Must come before the first. */
void sd_ngram_counts_clear(sd_ngram_counts* counts);

/* Count the tokens of a text that were not yet; what was stays as it is. */
void sd_ngram_counts_read(sd_ngram_counts* counts, const int32_t* text, int n_text);

/* The contexts at the beginning of a text: contexts[k] stands for its last k tokens, up to n − 1. */
void sd_ngram_contexts_begin(const sd_ngram_table* table, sd_ngram_context* contexts);

/* The contexts one token further. counts: NULL for the table alone. */
void sd_ngram_contexts_advance(const sd_ngram_table* table, const sd_ngram_counts* counts, int32_t token,
                               sd_ngram_context* contexts);

#endif
