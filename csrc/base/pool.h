/* The thread pool: one for each process. It runs loops over independent pieces of work.
 *
 * A caller opens a team, runs loops on it and closes it. The caller alone runs the program between the loops.
 * The threads of the team take the pieces of a loop; no piece belongs to a thread. A loop ends when its
 * pieces are done, not when all threads have come: the caller waits only for threads that hold a piece. A
 * worker that comes late finds no piece left and waits for the next loop. Results do not depend on who takes
 * a piece.
 *
 * Waiting is spinning for some 50 µs, then sleeping in the kernel. */
#pragma once

#include "status.h"

#define SD_MAX_THREADS 64

/* The threads that a caller computes with, itself included. */
typedef struct sd_team {
    int n_threads;  /* 1: the caller alone */
    int holds_turn; /* the pool is this team's until the team is closed */
} sd_team;

/* Computes items [first, end). thread: 0 … n_threads - 1, the thread that computes them, for its scratch. */
typedef void (*sd_work)(void* argument, int thread, int first, int end);

/* Register what a forked child needs; once for each process, before any team. */
void sd_pool_init(void);

/* Check a number of threads and start the workers that are missing for it. Where the system
 * grants fewer workers, teams have fewer threads. Never waits for a running team. */
sd_status sd_pool_reserve(int n_threads);

/* Open a team of at most n_threads threads (as reserved). Teams of several threads take turns: the call waits
 * while another caller's team is open. A thread opens one team at a time. */
sd_team sd_team_open(int n_threads);
void sd_team_close(const sd_team* team);

/* Run work on items [0, n), `grain` items (at least 1) in a piece, and return when all are done. Each thread
 * begins with pieces of its own share, the same in every loop of the same size, so that what it reads stays
 * in its caches; then it takes what others have left of theirs. Memory that pieces wrote is visible after the
 * loop, to the caller and to the pieces of later loops. */
void sd_team_run(const sd_team* team, int n, int grain, sd_work work, void* argument);

#ifdef SPECDEC_TESTING
/* Testing: from now on worker `thread` sleeps `seconds` once in each loop that it comes to: before it takes a
 * piece, or, if `holding`, while it holds the first. 0: not any more. */
void sd_pool_delay(int thread, double seconds, int holding);
/* Testing: let `n` more threads be started, then fail to start any; negative: never fail. */
void sd_pool_fail_after(int n);
#endif
