/* What this machine allows: the speed of reading memory and of multiply-adds, by n threads at once.
 *
 * machine.py compiles this file for the processor it runs on (-march=native) and calls it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define MAX_THREADS 256
#define UNROLL _Pragma("GCC unroll 32")

/* ------------------------------------------------------------------------- threads that start together */

typedef struct share {
    int thread, n_threads;
    const char* bytes; /* of a read */
    size_t n_bytes;
    long n_steps; /* of a chain */
} share;

typedef void (*work)(const share* mine);

typedef struct team {
    work work;
    atomic_int n_here;
} team;

typedef struct member {
    team* team;
    share share;
    double begun, ended;
    pthread_t handle;
} member;

/* Cores of the threads; unpinned threads may share one core. */
static int cores[MAX_THREADS], n_cores;

void machine_set_cores(const int* chosen, int n) {
    for (n_cores = 0; n_cores < n && n_cores < MAX_THREADS; n_cores++) cores[n_cores] = chosen[n_cores];
}

static void stay_on_core(int thread) {
#if defined(__linux__)
    if (thread >= n_cores) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cores[thread], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
#else
    (void)thread;
#endif
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void* member_main(void* argument) {
    member* self = argument;
    team* team = self->team;
    stay_on_core(self->share.thread);
    atomic_fetch_add(&team->n_here, 1);
    for (int spins = 0; atomic_load_explicit(&team->n_here, memory_order_acquire) < self->share.n_threads;)
        if (++spins % 100000 == 0) sched_yield(); /* more threads than cores */
    self->begun = now();
    team->work(&self->share);
    self->ended = now();
    return NULL;
}

/* Seconds from the first thread's start to the last one's end; negative if threads cannot be started. */
static double time_together(work work, share whole) {
    member members[MAX_THREADS];
    team team = {work, 0};
    int n = whole.n_threads, n_started = 1;
    if (n < 1 || n > MAX_THREADS) return -1.0;
    for (int t = 0; t < n; t++) {
        members[t] = (member){.team = &team, .share = whole};
        members[t].share.thread = t;
    }
    for (; n_started < n; n_started++)
        if (pthread_create(&members[n_started].handle, NULL, member_main, &members[n_started])) break;
    if (n_started < n) atomic_store(&team.n_here, n); /* let those that wait go; their times do not count */
    member_main(&members[0]);
    double begun = members[0].begun, ended = members[0].ended;
    for (int t = 1; t < n_started; t++) {
        pthread_join(members[t].handle, NULL);
        if (members[t].begun < begun) begun = members[t].begun;
        if (members[t].ended > ended) ended = members[t].ended;
    }
    return n_started < n ? -1.0 : ended - begun;
}

/* --------------------------------------------------------------------------------------------- reading */

/* Eight words: one register of AVX-512, two of AVX2, four of NEON. */
typedef uint64_t line __attribute__((vector_size(64)));
static volatile uint64_t sink;

/* One stream per thread. Prefetching, 2 to 16 KiB ahead into any cache, changed nothing where this was tried. */
static void read_share(const share* mine) {
    const size_t step = 4 * sizeof(line);
    size_t n_steps = mine->n_bytes / step, n = (size_t)mine->n_threads, t = (size_t)mine->thread;
    const line* at = (const line*)(mine->bytes + n_steps * t / n * step);
    const line* end = (const line*)(mine->bytes + n_steps * (t + 1) / n * step);
    line sums[4] = {{0}};
    for (; at < end; at += 4) {
        UNROLL for (int i = 0; i < 4; i++) sums[i] ^= at[i];
    }
    line all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
    sink = all[0] ^ all[1] ^ all[2] ^ all[3] ^ all[4] ^ all[5] ^ all[6] ^ all[7];
}

/* Seconds that n_threads take to read bytes [n_bytes], aligned to 64, a contiguous part each. */
double machine_read(const char* bytes, size_t n_bytes, int n_threads) {
    return time_together(read_share, (share){.n_threads = n_threads, .bytes = bytes, .n_bytes = n_bytes});
}

/* n_bytes of anonymous memory in pages of 2 MiB where the system has them, every page written; NULL: none
 * left. The caller frees it with machine_pages_free. */
void* machine_pages(size_t n_bytes) {
    const size_t huge = (size_t)2 << 20;
    char* block = mmap(NULL, n_bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return NULL;
    char* start = (char*)(((uintptr_t)block + huge - 1) / huge * huge);
    if (start > block) munmap(block, (size_t)(start - block));
    if (start + n_bytes < block + n_bytes + huge) munmap(start + n_bytes, (size_t)(block + huge - start));
#if defined(MADV_HUGEPAGE)
    madvise(start, n_bytes, MADV_HUGEPAGE);
#endif
    for (size_t i = 0; i < n_bytes; i += 4096) start[i] = 1;
    return start;
}

void machine_pages_free(void* pages, size_t n_bytes) { munmap(pages, n_bytes); }

/* ------------------------------------------------------------------------------------------ arithmetic */

/* Independent sums, more than latency times instructions per cycle, in registers. OPAQUE hides a register's
 * value from the compiler, which would otherwise compute what repeats once. */
#if defined(__x86_64__)
#define OPAQUE(v) __asm__ volatile("" : "+x"(v))
#if defined(__AVX512F__)
#undef OPAQUE
#define OPAQUE(v) __asm__ volatile("" : "+v"(v))
#define N_CHAINS 20
#else
#define N_CHAINS 12
#endif
#else
#define OPAQUE(v) __asm__ volatile("" : "+w"(v))
#define N_CHAINS 16
#endif

#define DEFINE_CHAIN(format, vec, start, step)                         \
    static void format##_chain(const share* mine) {                    \
        vec sums[N_CHAINS], x = start, w = start;                      \
        OPAQUE(x);                                                     \
        OPAQUE(w);                                                     \
        UNROLL for (int i = 0; i < N_CHAINS; i++) {                    \
            sums[i] = start;                                           \
            OPAQUE(sums[i]); /* equal chains would be computed once */ \
        }                                                              \
        for (long n = mine->n_steps; n > 0; n--) {                     \
            UNROLL for (int i = 0; i < N_CHAINS; i++) {                \
                vec sum = sums[i];                                     \
                sums[i] = step;                                        \
            }                                                          \
        }                                                              \
        UNROLL for (int i = 0; i < N_CHAINS; i++) OPAQUE(sums[i]);     \
    }

/* Two operations a multiply-add. F32_OPS and so on: operations of one step. */
#if defined(__AVX512F__)
#define F32_NAME "VFMADD, 512 bits"
#define F32_OPS 32
DEFINE_CHAIN(f32, __m512, _mm512_set1_ps(0.5f), _mm512_fmadd_ps(x, w, sum))
#elif defined(__AVX2__) && defined(__FMA__)
#define F32_NAME "VFMADD, 256 bits"
#define F32_OPS 16
DEFINE_CHAIN(f32, __m256, _mm256_set1_ps(0.5f), _mm256_fmadd_ps(x, w, sum))
#else
typedef float floats __attribute__((vector_size(16)));
#define HALVES ((floats){0.5f, 0.5f, 0.5f, 0.5f})
#define F32_NAME "multiply and add in C, 128 bits"
#define F32_OPS 8
static inline floats f32_step(floats sum, floats x, floats w) {
    OPAQUE(x);
    return sum + x * w;
}
DEFINE_CHAIN(f32, floats, HALVES, f32_step(sum, x, w))
#endif

#if defined(__AVX512BF16__)
#define BF16_NAME "VDPBF16PS, 512 bits"
#define BF16_OPS 64
#define BF16_ONES ((__m512bh)_mm512_set1_epi32(0x3f803f80))
static inline __m512 bf16_dot(__m512 sum, __m512 x, __m512 w) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w);
}
DEFINE_CHAIN(bf16, __m512, (__m512)BF16_ONES, bf16_dot(sum, x, w))
#else /* widened: the arithmetic of f32 */
#define BF16_NAME F32_NAME
#define BF16_OPS F32_OPS
#define bf16_chain f32_chain
#endif

#if defined(__AVX512VNNI__)
#define INT8_NAME "VPDPBUSD, 512 bits"
#define INT8_OPS 128
DEFINE_CHAIN(int8, __m512i, _mm512_set1_epi8(1), _mm512_dpbusd_epi32(sum, x, w))
#elif defined(__AVXVNNI__)
#define INT8_NAME "VPDPBUSD, 256 bits"
#define INT8_OPS 64
DEFINE_CHAIN(int8, __m256i, _mm256_set1_epi8(1), _mm256_dpbusd_avx_epi32(sum, x, w))
#elif defined(__AVX2__)
#define INT8_NAME "VPMADDUBSW, VPMADDWD and VPADDD, 256 bits"
#define INT8_OPS 64
static inline __m256i int8_dot(__m256i sum, __m256i x, __m256i w) {
    OPAQUE(x);
    __m256i pairs = _mm256_maddubs_epi16(x, w);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, w));
}
DEFINE_CHAIN(int8, __m256i, _mm256_set1_epi8(1), int8_dot(sum, x, w))
#else
typedef int32_t ints __attribute__((vector_size(16)));
#define ONES ((ints){1, 1, 1, 1})
#define INT8_NAME "multiply and add of 32-bit integers in C, 128 bits"
#define INT8_OPS 8
static inline ints int8_step(ints sum, ints x, ints w) {
    OPAQUE(x);
    return sum + x * w;
}
DEFINE_CHAIN(int8, ints, ONES, int8_step(sum, x, w))
#endif

#if defined(__AMX_BF16__) && defined(__linux__)
/* Four tiles of sums; a step counts as one of each chain. The thread's shapes of tiles are others afterwards. */
#define TILES_NAME "TDPBF16PS"
#define TILES_OPS (16 * 16 * 32 * 2 * 4 / N_CHAINS)
static void tiles_chain(const share* mine) {
    static const struct {
        uint8_t palette, start, rest[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shapes __attribute__((aligned(64))) = {
        .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16}};
    const long permission = 0x1023, tiles = 18;
    if (syscall(SYS_arch_prctl, permission, tiles) != 0) return;
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (long n = mine->n_steps; n > 0; n--) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_release();
}
#else
#define TILES_NAME BF16_NAME
#define TILES_OPS BF16_OPS
#define tiles_chain bf16_chain
#endif

static const struct {
    const char* name;
    int n_ops;
    work chain;
} formats[] = {{F32_NAME, F32_OPS, f32_chain},
               {BF16_NAME, BF16_OPS, bf16_chain},
               {INT8_NAME, INT8_OPS, int8_chain},
               {TILES_NAME, TILES_OPS, tiles_chain}};

/* The instruction measured for a format: 0 f32, 1 bf16, 2 int8, 3 tiles of bf16. */
const char* machine_instruction(int format) { return formats[format].name; }

/* Operations per second of n_threads together, over n_steps rounds of all chains each. */
double machine_arithmetic(int format, long n_steps, int n_threads) {
    double seconds =
        time_together(formats[format].chain, (share){.n_threads = n_threads, .n_steps = n_steps});
    return (double)n_steps * N_CHAINS * formats[format].n_ops * n_threads / seconds;
}
