#define _GNU_SOURCE
#include "pool.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__i386__)
#define relax() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define relax() __asm__ volatile("yield")
#else
#define relax() ((void)0)
#endif

/* A waiting thread spins this many times (about 50 µs) before it gives its core away: a round of
 * decoding joins threads every few microseconds, a sleeping one takes 50 µs to wake. */
#define SPINS 4000

typedef struct worker {
    pthread_t handle;
    int index; /* thread index in a run: 1 … */
} worker;

static struct {
    pthread_mutex_t turn;  /* held by the caller whose run is on */
    pthread_mutex_t mutex; /* guards sleeping: wake_up with n_sleeping */
    pthread_cond_t wake_up;
    int n_sleeping;
    worker workers[SD_MAX_THREADS];
    int n_workers;
    pid_t pid; /* the process that started the workers */

    /* The current run, written by the caller before `generation` is raised. */
    sd_task task;
    void* argument;
    int n_threads;
    _Alignas(64) atomic_uint generation;
    _Alignas(64) atomic_uint n_returned;
    _Alignas(64) atomic_uint n_arrived;
    _Alignas(64) atomic_uint n_barriers;
    /* Items taken of each thread's share, for the stretches after even and odd barriers. */
    struct {
        _Alignas(64) atomic_int n;
    } taken[2][SD_MAX_THREADS];
} pool = {.turn = PTHREAD_MUTEX_INITIALIZER,
          .mutex = PTHREAD_MUTEX_INITIALIZER,
          .wake_up = PTHREAD_COND_INITIALIZER};

static void sleep_until_newer(unsigned seen) {
    pthread_mutex_lock(&pool.mutex);
    pool.n_sleeping++;
    while (atomic_load(&pool.generation) == seen) pthread_cond_wait(&pool.wake_up, &pool.mutex);
    pool.n_sleeping--;
    pthread_mutex_unlock(&pool.mutex);
}

static void* worker_main(void* argument) {
    const worker* self = argument;
    unsigned seen = atomic_load(&pool.generation);
    /* The starter holds `turn` until we have looked at the generation (see start_worker). */
    atomic_fetch_add(&pool.n_returned, 1);
    for (;;) {
        int spins = 0;
        while (atomic_load_explicit(&pool.generation, memory_order_acquire) == seen) {
            if (++spins < SPINS)
                relax();
            else
                sleep_until_newer(seen);
        }
        seen = atomic_load_explicit(&pool.generation, memory_order_acquire);
        if (self->index >= pool.n_threads) {
            /* Not in this run, but its fields must not change while we read them. */
            atomic_fetch_add_explicit(&pool.n_returned, 1, memory_order_release);
            continue;
        }
        sd_team team = {.thread = self->index, .n_threads = pool.n_threads};
        pool.task(&team, pool.argument);
        atomic_fetch_add_explicit(&pool.n_returned, 1, memory_order_release);
    }
    return NULL;
}

static void wait_for_returned(unsigned n) {
    int spins = 0;
    while (atomic_load_explicit(&pool.n_returned, memory_order_acquire) != n) {
        if (++spins < SPINS)
            relax();
        else
            sched_yield();
    }
}

/* After fork() only the forking thread lives on: forget the workers and the locks they held. */
static void notice_fork(void) {
    if (pool.pid == getpid()) return;
    if (pool.pid != 0) {
        pthread_mutex_t fresh_mutex = PTHREAD_MUTEX_INITIALIZER;
        pthread_cond_t fresh_cond = PTHREAD_COND_INITIALIZER;
        pool.turn = fresh_mutex;
        pool.mutex = fresh_mutex;
        pool.wake_up = fresh_cond;
        pool.n_sleeping = 0;
        pool.n_workers = 0;
    }
    pool.pid = getpid();
}

static sd_status start_worker(void) {
    worker* next = &pool.workers[pool.n_workers];
    next->index = pool.n_workers + 1;
    atomic_store(&pool.n_returned, 0);
    int code = pthread_create(&next->handle, NULL, worker_main, next);
    if (code != 0) return sd_fail(SD_ERR_THREAD, "cannot start a worker thread (error %d)", code);
    pthread_detach(next->handle);
    pool.n_workers++;
    wait_for_returned(1);
    return SD_OK;
}

sd_status sd_pool_reserve(int n_threads) {
    if (n_threads < 1 || n_threads > SD_MAX_THREADS)
        return sd_fail(SD_ERR_VALUE, "n_threads is %d, expected 1 to %d", n_threads, SD_MAX_THREADS);
    notice_fork();
    sd_status status = SD_OK;
    pthread_mutex_lock(&pool.turn);
    while (status == SD_OK && pool.n_workers + 1 < n_threads) status = start_worker();
    pthread_mutex_unlock(&pool.turn);
    return status;
}

void sd_pool_run(int n_threads, sd_task task, void* argument) {
    if (n_threads == 1) {
        sd_team alone = {.n_threads = 1};
        task(&alone, argument);
        return;
    }
    notice_fork();
    pthread_mutex_lock(&pool.turn);
    /* A forked child has no workers yet. If none can be started the run is done by fewer threads,
     * which changes nothing but time: outputs are independent of the split. */
    while (pool.n_workers + 1 < n_threads && start_worker() == SD_OK) continue;
    if (n_threads > pool.n_workers + 1) n_threads = pool.n_workers + 1;

    pool.task = task;
    pool.argument = argument;
    pool.n_threads = n_threads;
    atomic_store(&pool.n_returned, 0);
    atomic_store(&pool.n_arrived, 0);
    atomic_store(&pool.n_barriers, 0);
    for (int t = 0; t < n_threads; t++) pool.taken[0][t].n = pool.taken[1][t].n = 0;
    atomic_fetch_add(&pool.generation, 1);
    /* A worker counts itself as sleeping before it looks at the generation a last time, and both
     * are sequentially consistent: it either sees the new generation or is seen here. */
    pthread_mutex_lock(&pool.mutex);
    if (pool.n_sleeping > 0) pthread_cond_broadcast(&pool.wake_up);
    pthread_mutex_unlock(&pool.mutex);

    sd_team team = {.n_threads = n_threads};
    task(&team, argument);
    wait_for_returned((unsigned)pool.n_workers);
    pthread_mutex_unlock(&pool.turn);
}

int sd_team_take(sd_team* team, int n, int grain, int* first, int* last) {
    if (team->n_threads == 1) { /* other callers may be running: nothing of the pool is ours */
        *first = 0, *last = n;
        return team->n_emptied++ == 0 && n > 0;
    }
    for (; team->n_emptied < team->n_threads; team->n_emptied++) {
        sd_team owner = {.thread = (team->thread + team->n_emptied) % team->n_threads,
                         .n_threads = team->n_threads};
        int begin, end;
        sd_team_share(&owner, n, &begin, &end);
        atomic_int* taken = &pool.taken[team->n_waits % 2][owner.thread].n;
        begin += atomic_fetch_add_explicit(taken, grain, memory_order_relaxed);
        if (begin >= end) continue;
        *first = begin;
        *last = end - begin < grain ? end : begin + grain;
        return 1;
    }
    return 0;
}

void sd_pool_barrier(sd_team* team) {
    team->n_emptied = 0;
    if (team->n_threads == 1) return;
    unsigned before = team->n_waits++;
    if (atomic_fetch_add_explicit(&pool.n_arrived, 1, memory_order_acq_rel) ==
        (unsigned)team->n_threads - 1) {
        /* nobody takes any more from the stretch that ends here */
        for (int t = 0; t < team->n_threads; t++)
            atomic_store_explicit(&pool.taken[before % 2][t].n, 0, memory_order_relaxed);
        atomic_store_explicit(&pool.n_arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&pool.n_barriers, before + 1, memory_order_release);
        return;
    }
    int spins = 0;
    while (atomic_load_explicit(&pool.n_barriers, memory_order_acquire) != before + 1) {
        if (++spins < SPINS)
            relax();
        else
            sched_yield();
    }
}
