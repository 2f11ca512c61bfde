/* Memory: cache-line aligned blocks, and an arena that hands out pieces of one block.
 *
 * All heap memory of the core comes from sd_alloc, so that a test can make the n-th allocation
 * fail and expect SD_ERR_MEMORY and nothing leaked. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define SD_ALIGNMENT 64

/* Zeroed block of `size` bytes aligned to SD_ALIGNMENT, owned by the caller; NULL on failure
 * (with a message). Large blocks ask the system for huge pages. */
void* sd_alloc(size_t size);

/* Declare a zeroed object, owned by the caller; return SD_ERR_MEMORY where there is no memory for it. */
#define SD_NEW(type, name)               \
    type* name = sd_alloc(sizeof *name); \
    if (name == NULL) return SD_ERR_MEMORY

/* Release a block of sd_alloc; NULL is allowed. */
void sd_free(void* block);

/* Testing: let `n` more allocations succeed, then fail every one; negative: never fail. */
void sd_alloc_fail_after(long n);
/* Testing: blocks handed out and not yet freed. */
long sd_alloc_live(void);
/* Testing: bytes of these blocks, as they were asked for. */
long long sd_alloc_bytes(void);
/* Testing: from now on arenas put a page that may not be touched behind every piece they hand out.
 * Change it only while no arena is being laid out. Nothing happens where pages cannot be guarded. */
void sd_arena_guard(int on);

/* An arena is laid out twice with the same calls: once with base == NULL, which only counts, and
 * once over a block of that size, which hands out the pieces. */
typedef struct sd_arena {
    char* base;     /* [size] owned by the arena, unless it is borrowed; NULL while counting */
    size_t used;    /* bytes handed out so far */
    size_t size;    /* bytes at `base`; ignored while counting */
    int overflowed; /* a count did not fit size_t: the layout must be refused */
    int borrowed;   /* `base` is the caller's */
    uint64_t shape; /* of the counts and sizes of all pieces, in their order */
} sd_arena;

/* Next piece: `count` elements of `size` bytes, aligned; NULL while counting. */
void* sd_arena_take(sd_arena* arena, size_t count, size_t size);

/* The next piece as a copy of `from` [count], elements of `size` bytes, borrowed; NULL while counting. A NULL
 * `from` takes no piece. */
void* sd_arena_copy(sd_arena* arena, const void* from, int count, size_t size);

/* Allocate the block for the sizes counted so far and start handing out from it. */
sd_status sd_arena_commit(sd_arena* arena);

/* A block of memory, borrowed. */
typedef struct sd_memory_block {
    void* at;
    size_t size;
} sd_memory_block;

/* Start handing out from a block of the caller, which must outlive the arena, in place of one of its own.
 * Fails where it is not as large as was counted. */
sd_status sd_arena_adopt(sd_arena* arena, sd_memory_block block);

/* Lay out an arena: the call `lay_out`, which takes the pieces, runs twice, first to count and then to hand
 * out, so that counts and pieces cannot disagree. SD_OK or SD_ERR_MEMORY. */
#define SD_ARENA_BUILD(arena, lay_out) \
    ((lay_out), sd_arena_commit(arena) != SD_OK ? SD_ERR_MEMORY : ((lay_out), SD_OK))

/* Free the block. */
void sd_arena_free(sd_arena* arena);

/* How large the block for `bytes` is: a size that many share. 0: blocks for so few or so many bytes
 * are not kept, or none are on this system. */
size_t sd_spares_size(size_t bytes);

/* A block of `size` bytes, a size of sd_spares_size, owned by the caller: one that was kept, with what it
 * held, then *used is 1, or a new one of zeros. NULL: there is no memory. */
void* sd_spares_take(size_t size, int* used);

/* Keep a block of sd_spares_take, owned by the spares from the call on, or return it to the system. */
void sd_spares_give(void* block, size_t size);

/* Return what waits to the system. The number of blocks. */
int sd_spares_drop(void);

/* Testing: bytes that wait. */
size_t sd_spares_bytes(void);
