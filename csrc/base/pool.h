/* The thread pool: one per process, static split, spin then sleep.
 *
 * A caller runs one function on n threads; inside it the threads meet at barriers. Work is split
 * by thread index over independent outputs only, so results do not depend on n. Between runs the
 * workers spin for a moment (joining them then costs under a microsecond) and then sleep. Runs of
 * different callers take turns. After fork() the child starts workers of its own. */
#ifndef SD_POOL_H
#define SD_POOL_H

#include "status.h"

#define SD_MAX_THREADS 64

/* One thread's view of a run. */
typedef struct sd_team {
    int thread;       /* 0 … n_threads - 1; 0 is the caller */
    int n_threads;    /* threads in this run */
    unsigned n_waits; /* barriers passed; private to the thread */
    int n_emptied;    /* shares found empty by sd_team_take since the last barrier; private too */
} sd_team;

typedef void (*sd_task)(sd_team* team, void* argument);

/* Make sure that runs with `n_threads` threads are possible. */
sd_status sd_pool_reserve(int n_threads);

/* Run task(team, argument) on `n_threads` reserved threads and return when all have returned. */
void sd_pool_run(int n_threads, sd_task task, void* argument);

/* Wait until every thread of the run is here. Memory written before is visible after. */
void sd_pool_barrier(sd_team* team);

/* Share of thread `team` in n items: [*first, *last). */
static inline void sd_team_share(const sd_team* team, int n, int* first, int* last) {
    *first = (int)((long)n * team->thread / team->n_threads);
    *last = (int)((long)n * (team->thread + 1) / team->n_threads);
}

/* The next piece [*first, *last) of n items, of at most `grain`: piece by piece of the thread's own
 * share, then of what others have left of theirs. 0 when nothing is left. Once between two
 * barriers each thread may take one set of items to its end; n is the same for all. */
int sd_team_take(sd_team* team, int n, int grain, int* first, int* last);

#endif
