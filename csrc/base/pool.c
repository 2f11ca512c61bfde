#include "pool.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#include "clock.h"
#include "system.h"

#if defined(__x86_64__) || defined(__i386__)
#define relax() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define relax() __asm__ volatile("yield")
#else
#define relax() ((void)0)
#endif

/* A waiting thread spins this long before it sleeps. Loops of a forward pass follow each other within
 * microseconds; waking a sleeping thread takes some 50 µs. */
#define SPIN_S 50e-6

/* Pieces of one thread's share that are not yet taken, and the number of their loop, in one word:
 *
 *     loop number (40 bits) | next piece (12 bits) | end of the share (12 bits)
 *
 * Taking a piece exchanges the whole word. So a thread that was preempted between reading and exchanging
 * takes nothing from a later loop: loop numbers do not repeat within days. */
#define PIECE_BITS 12
#define MAX_PIECES ((1 << PIECE_BITS) - 1)

static uint64_t word_of(uint64_t loop, int next, int end) {
    return loop << (2 * PIECE_BITS) | (uint64_t)next << PIECE_BITS | (uint64_t)end;
}
static uint64_t loop_of(uint64_t word) { return word >> (2 * PIECE_BITS); }
static int next_of(uint64_t word) { return (int)(word >> PIECE_BITS) & MAX_PIECES; }
static int end_of(uint64_t word) { return (int)word & MAX_PIECES; }

/* Where a thread sleeps. The waker clears `asleep`, so a sleeper is woken once. */
typedef struct sleeper {
    atomic_int asleep;
    sd_mutex mutex;
    sd_condition condition;
} sleeper;

/* One thread of the pool; member 0 is the caller. */
typedef struct member {
    /* One cache line: what a thread needs to take a piece of this member's share. The caller writes the loop
     * before the word; other threads read it between reading and exchanging the word. If the exchange
     * succeeds, the loop was running all along, so they read that loop. */
    _Alignas(64) _Atomic(uint64_t) share; /* a word as above */
    _Atomic(sd_work) work;
    _Atomic(void*) argument;
    atomic_int n, grain, n_threads;

    _Alignas(64) sleeper sleeper;
    uint64_t seen; /* number of the last loop that the worker has seen */
    sd_thread thread;
} member;

static struct {
    sd_mutex turn;    /* held by the caller whose team is open */
    sd_mutex growing; /* held while workers are started */
    atomic_int n_workers;
    uint64_t loop;    /* number of the last loop; used by the caller only */
    unsigned n_taken; /* pieces that workers have taken in all loops so far; used by the caller only */

    _Alignas(64) atomic_uint n_done; /* pieces that workers have done in all loops so far */
    member members[SD_MAX_THREADS];

#ifdef SPECDEC_TESTING
    struct {
        _Atomic(double) seconds;
        atomic_int holding;
    } delays[SD_MAX_THREADS];
    atomic_int n_failing; /* threads that may still start, plus 1; 0: starting never fails */
#endif
} pool = {.turn = SD_MUTEX_UNLOCKED, .growing = SD_MUTEX_UNLOCKED};

/* ------------------------------------------------------------------ waiting */

typedef struct spin {
    unsigned n;
    double until;
} spin;

/* Pause briefly; 0 when it is time to sleep. Pauses differ by a factor of ten between processors, so the
 * clock is read now and then. */
static int spin_on(spin* s) {
    relax();
    if (++s->n % 32 != 0) return 1;
    double now = sd_now();
    if (s->n == 32) s->until = now + SPIN_S;
    return now < s->until;
}

/* Wake a thread if it sleeps. The waker has changed, sequentially consistent, what the thread waits for; the
 * thread sets `asleep` before its last look. So the waker sees `asleep`, or the thread sees the change. */
static void notify(sleeper* s) {
    if (atomic_load(&s->asleep) == 0 || atomic_exchange(&s->asleep, 0) == 0) return;
    sd_mutex_lock(&s->mutex);
    sd_condition_signal(&s->condition);
    sd_mutex_unlock(&s->mutex);
}

/* Wait until a worker's share belongs to another loop than the last one it has seen. */
static void wait_for_loop(member* self) {
    spin s = {0};
    while (loop_of(atomic_load_explicit(&self->share, memory_order_acquire)) == self->seen) {
        if (spin_on(&s)) continue;
        sd_mutex_lock(&self->sleeper.mutex);
        for (;;) {
            atomic_store(&self->sleeper.asleep, 1);
            if (loop_of(atomic_load(&self->share)) != self->seen) break;
            sd_condition_wait(&self->sleeper.condition, &self->sleeper.mutex);
        }
        atomic_store(&self->sleeper.asleep, 0);
        sd_mutex_unlock(&self->sleeper.mutex);
    }
    self->seen = loop_of(atomic_load_explicit(&self->share, memory_order_acquire));
}

/* Wait until workers have done n pieces in all. */
static void wait_for_pieces(unsigned n) {
    spin s = {0};
    sleeper* b = &pool.members[0].sleeper;
    while (atomic_load_explicit(&pool.n_done, memory_order_acquire) != n) {
        if (spin_on(&s)) continue;
        sd_mutex_lock(&b->mutex);
        for (;;) {
            atomic_store(&b->asleep, 1);
            if (atomic_load(&pool.n_done) == n) break;
            sd_condition_wait(&b->condition, &b->mutex);
        }
        atomic_store(&b->asleep, 0);
        sd_mutex_unlock(&b->mutex);
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
    sd_thread_sleep(seconds);
}
#else
#define delay(thread, holding) ((void)0)
#endif

static void worker_main(void* argument) {
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
        /* All belong to one loop: a loop does not end before its pieces are reported. */
        if (n_done == 0) continue;
        atomic_fetch_add(&pool.n_done, (unsigned)n_done);
        notify(&pool.members[0].sleeper);
    }
}

/* ------------------------------------------------------------------ workers */

static int create_thread(member* s) {
#ifdef SPECDEC_TESTING
    int left = atomic_load(&pool.n_failing);
    if (left == 1) return -1;
    if (left > 1) atomic_store(&pool.n_failing, left - 1);
#endif
    s->thread = (sd_thread){worker_main, s};
    return sd_thread_start(&s->thread);
}

/* Start the workers that a team of n_threads lacks, as many as the system grants. A team that is already open
 * ignores them: its number of threads is fixed. */
static void grow(int n_threads) {
    if (atomic_load(&pool.n_workers) + 1 >= n_threads) return;
    sd_mutex_lock(&pool.growing);
    for (int n; (n = atomic_load(&pool.n_workers)) + 1 < n_threads; atomic_store(&pool.n_workers, n + 1)) {
        member* s = &pool.members[n + 1];
        s->seen = loop_of(atomic_load(&s->share));
        if (create_thread(s) != 0) break;
    }
    sd_mutex_unlock(&pool.growing);
}

/* Reset the pool to its state before any team: no workers, nothing locked. A forked child has one thread, and
 * locks and counters as other threads left them, so it resets the pool too. */
static void begin(void) {
    static const sd_mutex unlocked = SD_MUTEX_UNLOCKED;
    static const sd_condition no_waiters = SD_CONDITION_UNUSED;
    pool.turn = pool.growing = unlocked;
    atomic_store(&pool.n_workers, 0);
    pool.n_taken = atomic_load(&pool.n_done); /* pieces in progress belong to the parent's threads */
    for (int t = 0; t < SD_MAX_THREADS; t++) {
        member* s = &pool.members[t];
        atomic_store(&s->share, 0); /* no piece left; loop numbers continue */
        atomic_store(&s->sleeper.asleep, 0);
        s->sleeper.mutex = unlocked;
        s->sleeper.condition = no_waiters;
    }
}

void sd_pool_init(void) {
    static sd_mutex initializing = SD_MUTEX_UNLOCKED;
    static int is_done;
    sd_mutex_lock(&initializing);
    if (!is_done) {
        begin();
        sd_at_fork(NULL, NULL, begin);
        is_done = 1;
    }
    sd_mutex_unlock(&initializing);
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
    sd_mutex_lock(&pool.turn);
    int n_here = atomic_load(&pool.n_workers) + 1;
    if (n_here == 1) { /* no worker was granted: nothing is shared with other callers */
        sd_mutex_unlock(&pool.turn);
        return (sd_team){1, 0};
    }
    return (sd_team){n_here < n_threads ? n_here : n_threads, 1};
}

void sd_team_close(const sd_team* team) {
    if (team->holds_turn) sd_mutex_unlock(&pool.turn);
}

/* Distribute the pieces of a loop over a team's threads, in n_shares shares. */
static void post(const sd_team* team, int n, int grain, int n_pieces, int n_shares, sd_work work,
                 void* argument) {
    uint64_t loop = ++pool.loop;
    for (int t = n_shares - 1; t >= 0; t--) { /* workers first: they take longer to start */
        member* m = &pool.members[t];
        atomic_store_explicit(&m->work, work, memory_order_relaxed);
        atomic_store_explicit(&m->argument, argument, memory_order_relaxed);
        atomic_store_explicit(&m->n, n, memory_order_relaxed);
        atomic_store_explicit(&m->grain, grain, memory_order_relaxed);
        atomic_store_explicit(&m->n_threads, team->n_threads, memory_order_relaxed);
        uint64_t word = word_of(loop, n_pieces * t / n_shares, n_pieces * (t + 1) / n_shares);
        /* sequentially consistent for a worker, see notify */
        atomic_store_explicit(&m->share, word, t > 0 ? memory_order_seq_cst : memory_order_release);
    }
    for (int t = 1; t < n_shares; t++) notify(&pool.members[t].sleeper);
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
