/* Memory: cache-line aligned blocks, and an arena that hands out pieces of one block.
 *
 * All heap memory of the core comes from sd_alloc: a test can make the n-th allocation fail, and expect
 * SD_ERR_MEMORY and no leak. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define SD_ALIGNMENT 64

/* Zeroed block of `size` bytes aligned to SD_ALIGNMENT, owned by the caller; NULL on failure
 * (with a message). Large blocks ask the system for huge pages. */
void* sd_alloc(size_t size);

/* Declare a zeroed object, owned by the caller; return SD_ERR_MEMORY if memory is exhausted. */
#define SD_NEW(type, name)               \
    type* name = sd_alloc(sizeof *name); \
    if (name == NULL) return SD_ERR_MEMORY

/* Release a block of sd_alloc; NULL is allowed. */
void sd_free(void* block);

/* Testing: let `n` more allocations succeed, then fail all; negative: never fail. */
void sd_alloc_fail_after(long n);
/* Testing: blocks allocated and not yet freed. */
long sd_alloc_live(void);
/* Testing: bytes requested for these blocks. */
long long sd_alloc_bytes(void);
/* Testing: from now on arenas put a protected page after every piece. Change it only while no arena is being
 * laid out. No effect where pages cannot be protected. */
void sd_arena_guard(int on);

/* An arena is laid out twice with the same calls: first with base == NULL, which only counts, then over a
 * block of that size, which hands out the pieces. */
typedef struct sd_arena {
    char* base;     /* [size] owned by the arena, unless it is borrowed; NULL while counting */
    size_t used;    /* bytes handed out so far */
    size_t size;    /* bytes at `base`; ignored while counting */
    int overflowed; /* a count did not fit size_t: the layout must be refused */
    int borrowed;   /* `base` is the caller's */
    uint64_t shape; /* hash of the counts and sizes of all pieces, in order */
} sd_arena;

/* Next piece: `count` elements of `size` bytes, aligned; NULL while counting. */
void* sd_arena_take(sd_arena* arena, size_t count, size_t size);

/* Next piece, filled from `from` [count], elements of `size` bytes, borrowed; NULL while counting. A NULL
 * `from` takes no piece. */
void* sd_arena_copy(sd_arena* arena, const void* from, int count, size_t size);

/* Allocate the block for the sizes counted so far and start handing out from it. */
sd_status sd_arena_commit(sd_arena* arena);

/* A block of memory, borrowed. */
typedef struct sd_memory_block {
    void* at;
    size_t size;
} sd_memory_block;

/* Hand out pieces from the caller's block, which must outlive the arena, instead of an allocated one. Fails
 * if its size differs from the count. */
sd_status sd_arena_adopt(sd_arena* arena, sd_memory_block block);

/* Lay out an arena: evaluate `lay_out`, which takes the pieces, twice, first to count and then to hand out,
 * so counts and pieces cannot differ. SD_OK or SD_ERR_MEMORY. */
#define SD_ARENA_BUILD(arena, lay_out) \
    ((lay_out), sd_arena_commit(arena) != SD_OK ? SD_ERR_MEMORY : ((lay_out), SD_OK))

/* Free the block. */
void sd_arena_free(sd_arena* arena);

/* Size of the recycled block for `bytes`: one of few sizes. 0: blocks this small or large are not recycled,
 * or none are on this system. */
size_t sd_spares_size(size_t bytes);

/* Return a block of `size` bytes (from sd_spares_size), owned by the caller: a recycled one with its old
 * contents (*used is 1), or a new one of zeros. NULL: out of memory. */
void* sd_spares_take(size_t size, int* used);

/* Recycle a block of sd_spares_take, or return it to the system; the caller gives up ownership. */
void sd_spares_give(void* block, size_t size);

/* Return all recycled blocks to the system. Returns their number. */
int sd_spares_drop(void);

/* Testing: bytes of recycled blocks. */
size_t sd_spares_bytes(void);
