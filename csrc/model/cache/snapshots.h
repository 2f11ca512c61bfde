/* Snapshots: copies of a text's states at some positions, to which the text can be cut back. */
#pragma once

#include "layer_state.h"
#include "status.h"

/* Most snapshots of a text. */
#define SD_MOST_SNAPSHOTS 32

/* Tokens between two snapshots of a prompt. */
#define SD_SNAPSHOT_PERIOD 2048

/* Prompts also have a snapshot this many tokens before their end. A chat template may change the end of a
 * prompt, the header of the reply, once the reply exists. Texts that differ only at the end share this
 * snapshot. */
#define SD_SNAPSHOT_TAIL 16

/* Fewest tokens between that snapshot and the previous one. */
#define SD_SNAPSHOT_LEAST 64

/* States of a text of n tokens. Immutable; texts share it by counted references. */
typedef struct sd_snapshot {
    sd_arena arena; /* owns the states */
    int n;
    _Atomic(int) n_references;
    sd_layer_state* states; /* [n_layer] with the last conv_width - 1 inputs and without a log */
} sd_snapshot;

typedef struct sd_snapshots {
    int most;                              /* kept of each prompt; 0: only what waiting prompts share */
    int n;                                 /* snapshots of the text */
    sd_snapshot* taken[SD_MOST_SNAPSHOTS]; /* [n] counted references, in ascending order of tokens */
} sd_snapshots;

/* Bytes of one snapshot. */
size_t sd_snapshot_bytes(const sd_config* config);

/* Bytes of all. */
size_t sd_snapshots_bytes(const sd_snapshots* snapshots);

/* Tokens of the last snapshot; 0: there is none. */
static inline int sd_snapshots_last(const sd_snapshots* s) { return s->n > 0 ? s->taken[s->n - 1]->n : 0; }

/* Where to take the next snapshot of a prompt [n], of which n_read tokens are read; n + 1: nowhere. */
int sd_snapshots_stop(const sd_snapshots* snapshots, int n_read, int n);

/* Add a snapshot of states [n_layer], borrowed, of a text of n tokens, more than the last one has. The first
 * ones are dropped if there are too many. Without memory for it nothing happens. */
void sd_snapshots_add(sd_snapshots* snapshots, const sd_config* config, const sd_layer_state* states, int n);

/* Append an empty snapshot of n tokens, more than the last one has, for its states to be filled in; there is
 * room for it. */
sd_status sd_snapshots_append(sd_snapshots* snapshots, const sd_config* config, int n);

/* Most tokens of a snapshot that has from `low` to n; 0: there is none. */
int sd_snapshots_within(const sd_snapshots* snapshots, int low, int n);

/* Copy the states of the snapshot of n tokens, which exists, to those of a cache, [n_layer]. */
void sd_snapshots_restore(const sd_snapshots* snapshots, const sd_config* config, int n,
                          const sd_layer_state* states);

/* Drop the snapshots of more than n tokens. */
void sd_snapshots_cut(sd_snapshots* snapshots, int n);

/* Replace the snapshots by those that `from`, of another cache, has of its first n tokens. */
void sd_snapshots_share(sd_snapshots* snapshots, const sd_snapshots* from, int n);
