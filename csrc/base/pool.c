#define _GNU_SOURCE
#include "pool.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "clock.h"

#if defined(__x86_64__) || defined(__i386__)
#define relax() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define relax() __asm__ volatile("yield")
#else
#define relax() ((void)0)
#endif

/* A waiting thread spins this long before it sleeps. Loops of a forward follow each other within
 * microseconds; a sleeping thread takes some 50 µs to wake. */
#define SPIN_S 50e-6

/* The pieces of one thread's share that no thread has taken yet, and the number of their loop, in one word:
 *
 *     loop number (40 bits) | next piece (12 bits) | end of the share (12 bits)
 *
 * To take a piece is to exchange the whole word. So a thread that was stopped between reading the word and
 * exchanging it takes nothing of a later loop: the numbers of loops do not repeat within days. */
#define PIECE_BITS 12
#define MAX_PIECES ((1 << PIECE_BITS) - 1)

static uint64_t word_of(uint64_t loop, int next, int end) {
    return loop << (2 * PIECE_BITS) | (uint64_t)next << PIECE_BITS | (uint64_t)end;
}
static uint64_t loop_of(uint64_t word) { return word >> (2 * PIECE_BITS); }
static int next_of(uint64_t word) { return (int)(word >> PIECE_BITS) & MAX_PIECES; }
static int end_of(uint64_t word) { return (int)word & MAX_PIECES; }

/* Where a thread sleeps. A waker clears `asleep`, so a sleeper is woken once. */
typedef struct sleeper {
    atomic_int asleep;
    pthread_mutex_t mutex;
    pthread_cond_t wake_up;
} sleeper;

/* One thread of the pool; member 0 is the caller. */
typedef struct member {
    /* One cache line: what a thread needs to take a piece of this member's share. The loop is written by the
     * caller before the word, and read between reading the word and exchanging it. If the exchange succeeds,
     * the loop was running all the time: what was read is its. */
    _Alignas(64) _Atomic(uint64_t) share; /* a word as above */
    _Atomic(sd_work) work;
    _Atomic(void*) argument;
    atomic_int n, grain, n_threads;

    _Alignas(64) sleeper sleeper;
    uint64_t seen; /* number of the last loop that the worker has seen */
} member;

static struct {
    pthread_mutex_t turn;    /* held by the caller whose team is open */
    pthread_mutex_t growing; /* held while workers are started */
    atomic_int n_workers;
    uint64_t loop;    /* number of the last loop; the caller's */
    unsigned n_taken; /* pieces that workers have taken in all loops so far; the caller's */

    _Alignas(64) atomic_uint n_done; /* pieces that workers have done in all loops so far */
    member members[SD_MAX_THREADS];

#ifdef SPECDEC_TESTING
    struct {
        _Atomic(double) seconds;
        atomic_int holding;
    } delays[SD_MAX_THREADS];
    atomic_int n_failing; /* threads to be started before it fails, and 1 more; 0: it never fails */
#endif
} pool = {.turn = PTHREAD_MUTEX_INITIALIZER, .growing = PTHREAD_MUTEX_INITIALIZER};

/* ------------------------------------------------------------------ waiting */

typedef struct spin {
    unsigned n;
    double until;
} spin;

/* Pause for a moment; 0 when it is time to sleep. How long a pause takes differs by a factor of ten between
 * processors, so the clock is read now and then. */
static int spin_on(spin* s) {
    relax();
    if (++s->n % 32 != 0) return 1;
    double now = sd_now();
    if (s->n == 32) s->until = now + SPIN_S;
    return now < s->until;
}

/* Wake a thread if it sleeps. The waker has changed what the thread waits for, sequentially consistent; the
 * thread sets `asleep` before it looks a last time. So the waker sees `asleep`, or the thread sees the
 * change. */
static void wake(sleeper* s) {
    if (atomic_load(&s->asleep) == 0 || atomic_exchange(&s->asleep, 0) == 0) return;
    pthread_mutex_lock(&s->mutex);
    pthread_cond_signal(&s->wake_up);
    pthread_mutex_unlock(&s->mutex);
}

/* Until the share of a worker is of another loop than the last one that the worker has seen. */
static void wait_for_loop(member* self) {
    spin s = {0};
    while (loop_of(atomic_load_explicit(&self->share, memory_order_acquire)) == self->seen) {
        if (spin_on(&s)) continue;
        pthread_mutex_lock(&self->sleeper.mutex);
        for (;;) {
            atomic_store(&self->sleeper.asleep, 1);
            if (loop_of(atomic_load(&self->share)) != self->seen) break;
            pthread_cond_wait(&self->sleeper.wake_up, &self->sleeper.mutex);
        }
        atomic_store(&self->sleeper.asleep, 0);
        pthread_mutex_unlock(&self->sleeper.mutex);
    }
    self->seen = loop_of(atomic_load_explicit(&self->share, memory_order_acquire));
}

/* Until workers have done n pieces in all. */
static void wait_for_pieces(unsigned n) {
    spin s = {0};
    sleeper* b = &pool.members[0].sleeper;
    while (atomic_load_explicit(&pool.n_done, memory_order_acquire) != n) {
        if (spin_on(&s)) continue;
        pthread_mutex_lock(&b->mutex);
        for (;;) {
            atomic_store(&b->asleep, 1);
            if (atomic_load(&pool.n_done) == n) break;
            pthread_cond_wait(&b->wake_up, &b->mutex);
        }
        atomic_store(&b->asleep, 0);
        pthread_mutex_unlock(&b->mutex);
    }
}

/* ------------------------------------------------------------------ pieces */

typedef struct piece {
    sd_work work;
    void* argument;
    int first, end;
} piece;

/* Take the next piece of a share; 0: none is left, or the loop is not for this thread. */
static int take_of(int thread, int share, piece* p) {
    member* m = &pool.members[share];
    uint64_t word = atomic_load_explicit(&m->share, memory_order_acquire);
    for (;;) {
        int next = next_of(word);
        if (next >= end_of(word)) return 0;
        int n = atomic_load_explicit(&m->n, memory_order_relaxed);
        int grain = atomic_load_explicit(&m->grain, memory_order_relaxed);
        int n_threads = atomic_load_explicit(&m->n_threads, memory_order_relaxed);
        p->work = atomic_load_explicit(&m->work, memory_order_relaxed);
        p->argument = atomic_load_explicit(&m->argument, memory_order_relaxed);
        uint64_t taken = word + ((uint64_t)1 << PIECE_BITS);
        if (thread >= n_threads) return 0;
        if (!atomic_compare_exchange_weak_explicit(&m->share, &word, taken, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        p->first = next * grain;
        p->end = n - p->first < grain ? n : p->first + grain;
        return 1;
    }
}

static int take(int thread, int n_threads, piece* p) {
    for (int i = 0; i < n_threads; i++)
        if (take_of(thread, (thread + i) % n_threads, p)) return 1;
    return 0;
}

#ifdef SPECDEC_TESTING
static void delay(int thread, int holding) {
    double seconds = atomic_load(&pool.delays[thread].seconds);
    if (seconds <= 0 || atomic_load(&pool.delays[thread].holding) != holding) return;
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}
#else
#define delay(thread, holding) ((void)0)
#endif

static void* worker_main(void* argument) {
    member* self = argument;
    int thread = (int)(self - pool.members);
    for (;;) {
        wait_for_loop(self);
        delay(thread, 0);
        int n_done = 0, n_threads = atomic_load_explicit(&self->n_threads, memory_order_relaxed);
        for (piece p; take(thread, n_threads, &p); n_done++) {
            if (n_done == 0) delay(thread, 1);
            p.work(p.argument, thread, p.first, p.end);
        }
        /* All of them are of one loop: a loop does not end before its pieces are reported. */
        if (n_done == 0) continue;
        atomic_fetch_add(&pool.n_done, (unsigned)n_done);
        wake(&pool.members[0].sleeper);
    }
    return NULL;
}

/* ------------------------------------------------------------------ workers */

static int create_thread(member* s) {
#ifdef SPECDEC_TESTING
    int left = atomic_load(&pool.n_failing);
    if (left == 1) return -1;
    if (left > 1) atomic_store(&pool.n_failing, left - 1);
#endif
    pthread_t handle;
    sigset_t all, before; /* workers take no signals: those are for the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&handle, NULL, worker_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) return -1;
    pthread_detach(handle);
    return 0;
}

/* Start the workers that a team of n_threads lacks, as many as the system grants. A team that is open
 * meanwhile does not count on them: it has its number of threads already. */
static void grow(int n_threads) {
    if (atomic_load(&pool.n_workers) + 1 >= n_threads) return;
    pthread_mutex_lock(&pool.growing);
    for (int n; (n = atomic_load(&pool.n_workers)) + 1 < n_threads; atomic_store(&pool.n_workers, n + 1)) {
        member* s = &pool.members[n + 1];
        s->seen = loop_of(atomic_load(&s->share));
        if (create_thread(s) != 0) break;
    }
    pthread_mutex_unlock(&pool.growing);
}

/* The pool as it is before any team: no workers, nothing locked. After fork() the child has one thread, and
 * locks and counters as other threads left them; there, too, the pool begins anew. */
static void begin(void) {
    static const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    static const pthread_cond_t no_waiters = PTHREAD_COND_INITIALIZER;
    pool.turn = pool.growing = unlocked;
    atomic_store(&pool.n_workers, 0);
    pool.n_taken = atomic_load(&pool.n_done); /* pieces that are being done belong to threads of the parent */
    for (int t = 0; t < SD_MAX_THREADS; t++) {
        member* s = &pool.members[t];
        atomic_store(&s->share, 0); /* no piece left; the numbers of loops go on */
        atomic_store(&s->sleeper.asleep, 0);
        s->sleeper.mutex = unlocked;
        s->sleeper.wake_up = no_waiters;
    }
}

static void begin_once(void) {
    begin();
    pthread_atfork(NULL, NULL, begin);
}

void sd_pool_init(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin_once);
}

sd_status sd_pool_reserve(int n_threads) {
    if (n_threads < 1 || n_threads > SD_MAX_THREADS)
        return sd_fail(SD_ERR_VALUE, "n_threads is %d, expected 1 to %d", n_threads, SD_MAX_THREADS);
    grow(n_threads);
    return SD_OK;
}

/* ------------------------------------------------------------------ teams */

sd_team sd_team_open(int n_threads) {
    if (n_threads == 1) return (sd_team){1, 0};
    grow(n_threads); /* a forked child has no workers yet */
    pthread_mutex_lock(&pool.turn);
    int n_here = atomic_load(&pool.n_workers) + 1;
    if (n_here == 1) { /* no worker was granted: nothing is shared with other callers */
        pthread_mutex_unlock(&pool.turn);
        return (sd_team){1, 0};
    }
    return (sd_team){n_here < n_threads ? n_here : n_threads, 1};
}

void sd_team_close(const sd_team* team) {
    if (team->holds_turn) pthread_mutex_unlock(&pool.turn);
}

/* Give the pieces of a loop to the threads of a team, in n_shares shares. */
static void post(const sd_team* team, int n, int grain, int n_pieces, int n_shares, sd_work work,
                 void* argument) {
    uint64_t loop = ++pool.loop;
    for (int t = n_shares - 1; t >= 0; t--) { /* workers first: they have the longer way */
        member* m = &pool.members[t];
        atomic_store_explicit(&m->work, work, memory_order_relaxed);
        atomic_store_explicit(&m->argument, argument, memory_order_relaxed);
        atomic_store_explicit(&m->n, n, memory_order_relaxed);
        atomic_store_explicit(&m->grain, grain, memory_order_relaxed);
        atomic_store_explicit(&m->n_threads, team->n_threads, memory_order_relaxed);
        uint64_t word = word_of(loop, n_pieces * t / n_shares, n_pieces * (t + 1) / n_shares);
        /* sequentially consistent for a worker, see wake */
        atomic_store_explicit(&m->share, word, t > 0 ? memory_order_seq_cst : memory_order_release);
    }
    for (int t = 1; t < n_shares; t++) wake(&pool.members[t].sleeper);
}

void sd_team_run(const sd_team* team, int n, int grain, sd_work work, void* argument) {
    if (n <= 0) return;
    assert(grain >= 1);
    if (grain < (n - 1) / MAX_PIECES + 1) grain = (n - 1) / MAX_PIECES + 1;
    int n_pieces = (n - 1) / grain + 1;
    if (team->n_threads == 1 || n_pieces == 1) {
        work(argument, 0, 0, n);
        return;
    }
    int n_shares = n_pieces < team->n_threads ? n_pieces : team->n_threads;
    post(team, n, grain, n_pieces, n_shares, work, argument);
    int n_mine = 0;
    for (piece p; take(0, n_shares, &p); n_mine++) p.work(p.argument, 0, p.first, p.end);
    pool.n_taken += (unsigned)(n_pieces - n_mine);
    wait_for_pieces(pool.n_taken);
}

#ifdef SPECDEC_TESTING
void sd_pool_delay(int thread, double seconds, int holding) {
    atomic_store(&pool.delays[thread].holding, holding);
    atomic_store(&pool.delays[thread].seconds, seconds);
}

void sd_pool_fail_after(int n) { atomic_store(&pool.n_failing, n < 0 ? 0 : n + 1); }
#endif
