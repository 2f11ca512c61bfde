/* The thread pool, one per process. It runs loops over independent pieces of work.
 *
 * A caller opens a team, runs loops on it and closes it; between loops only the caller runs. The team's
 * threads take the pieces of a loop; no piece belongs to a thread. A loop ends when its pieces are done: the
 * caller waits only for threads that hold a piece, and a worker that arrives later waits for the next loop.
 * Results do not depend on who takes a piece.
 *
 * Waiting threads spin for some 50 µs, then sleep in the kernel. */
#pragma once

#include "status.h"

#define SD_MAX_THREADS 64

/* The threads that a caller computes with, itself included. */
typedef struct sd_team {
    int n_threads;  /* 1: the caller alone */
    int holds_turn; /* the pool belongs to this team until the team is closed */
} sd_team;

/* Computes items [first, end). thread: 0 … n_threads - 1, the thread that computes them, for its scratch. */
typedef void (*sd_work)(void* argument, int thread, int first, int end);

/* Register the fork handler; once per process, before any team. */
void sd_pool_init(void);

/* Check a number of threads and start the missing workers. If the system grants fewer, teams have fewer
 * threads. Never waits for a running team. */
sd_status sd_pool_reserve(int n_threads);

/* Open a team of at most n_threads reserved threads. Teams of several threads take turns: the call waits
 * while another caller's team is open. A thread opens one team at a time. */
sd_team sd_team_open(int n_threads);
void sd_team_close(const sd_team* team);

/* Run work on items [0, n), `grain` items (at least 1) per piece, and return when all are done. Each thread
 * starts with its own share, the same in every loop of the same size, so its data stays in its caches; then
 * it takes pieces that others have left. Memory that pieces wrote is visible after the loop, to the caller
 * and to later loops. */
void sd_team_run(const sd_team* team, int n, int grain, sd_work work, void* argument);

#ifdef SPECDEC_TESTING
/* Testing: from now on worker `thread` sleeps `seconds` once per loop: before it takes a piece or, if
 * `holding`, while it holds its first. 0: no longer. */
void sd_pool_delay(int thread, double seconds, int holding);
/* Testing: let `n` more threads start, then fail to start any; negative: never fail. */
void sd_pool_fail_after(int n);
#endif
