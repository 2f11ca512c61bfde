#define _GNU_SOURCE
#include "library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"

#ifdef __APPLE__ /* untested */
#include <crt_externs.h>
#define environ (*_NSGetEnviron())
#endif

/* A name that begins with a slash is a file next to the extension; the loader finds all others. */
static const char NAME[] = SD_OPENBLAS_NAME;

/* cblas_sgemm; order and transpositions are enumerations of CBLAS. */
typedef void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                      const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);
enum { ROW_MAJOR = 101, NOT_TRANSPOSED = 111, TRANSPOSED = 112 };

static struct {
    pthread_mutex_t loading;
    pthread_rwlock_t multiplying; /* read-locked by products, write-locked by forks */
    sgemm sgemm;                  /* NULL until the library has been loaded */
    const char* description;
    int n_reserved;  /* threads for whose buffers there was memory */
    char** settings; /* environment while OpenBLAS loads; never freed: others may read it */
} state = {.loading = PTHREAD_MUTEX_INITIALIZER};

/* ------------------------------------------------------------------ environment while loading */

/* Do processor and system support what OpenBLAS's AVX-512 kernels use? OpenBLAS itself chooses by the
 * processor's model number, and uses AVX2 kernels on processors newer than itself. */
static int has_avx512(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#else
    return 0;
#endif
}

static int is_of(const char* entry, const char* name) {
    size_t n = strlen(name);
    return strncmp(entry, name, n) == 0 && entry[n] == '=';
}

/* Put the environment with the settings of a bundled copy in state.settings. */
static sd_status make_settings(void) {
    size_t n = 0;
    int chosen = 0;
    for (char** e = environ; e != NULL && *e != NULL; e++) {
        chosen |= is_of(*e, "OPENBLAS_CORETYPE");
        n++;
    }
    sd_free(state.settings);
    state.settings = sd_alloc((n + 3) * sizeof *state.settings);
    if (state.settings == NULL) return SD_ERR_MEMORY;
    char** to = state.settings;
    for (size_t i = 0; i < n; i++)
        if (!is_of(environ[i], "OPENBLAS_NUM_THREADS")) *to++ = environ[i];
    static char one_thread[] = "OPENBLAS_NUM_THREADS=1", avx512[] = "OPENBLAS_CORETYPE=SkylakeX";
    *to++ = one_thread;
    if (!chosen && has_avx512()) *to++ = avx512;
    *to = NULL;
    return SD_OK;
}

/* Load with these settings. Only the pointer to the environment changes: setenv might free what another
 * thread is reading. */
static void* open_with_settings(const char* path) {
    char** before = environ;
    environ = state.settings;
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (environ == state.settings) environ = before;
    return handle;
}

/* ------------------------------------------------------------------ the library */

/* Memory that OpenBLAS maps for each multiplying thread, and, with its code, while it loads. */
#define BUFFER_BYTES ((size_t)33 << 20)
#define LOADING_BYTES ((size_t)64 << 20)

static sd_status check_memory(size_t bytes) {
    void* there = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (there == MAP_FAILED) return sd_fail(SD_ERR_MEMORY, "out of memory: OpenBLAS needs %zu bytes", bytes);
    munmap(there, bytes);
    return SD_OK;
}

sd_status sd_library_reserve(int n_threads) {
    pthread_mutex_lock(&state.loading);
    int n_more = n_threads - state.n_reserved;
    sd_status status = n_more > 0 ? check_memory((size_t)n_more * BUFFER_BYTES) : SD_OK;
    if (n_more > 0 && status == SD_OK) state.n_reserved = n_threads;
    pthread_mutex_unlock(&state.loading);
    return status;
}

/* Path of the library; a bundled one is next to the file with this function. */
static sd_status find(char* path, size_t size) {
    Dl_info self;
    const char* slash = NULL;
    int length = 0;
    if (NAME[0] == '/') {
        if (dladdr(&state, &self) == 0 || self.dli_fname == NULL)
            return sd_fail(SD_ERR_LIBRARY, "OpenBLAS: the folder of the extension module is unknown");
        slash = strrchr(self.dli_fname, '/');
        length = slash == NULL ? 1 : (int)(slash - self.dli_fname);
    }
    int n = snprintf(path, size, "%.*s%s", length, slash == NULL ? "." : self.dli_fname, NAME);
    if (n < 0 || (size_t)n >= size)
        return sd_fail(SD_ERR_LIBRARY, "OpenBLAS: the path of the extension module is too long");
    return SD_OK;
}

/* Look up a function of the library. */
static void* symbol(void* handle, const char* name) {
    char full[64];
    snprintf(full, sizeof full, "%s%s", SD_OPENBLAS_PREFIX, name);
    return dlsym(handle, full);
}

static void forbid_multiplying(void) { pthread_rwlock_wrlock(&state.multiplying); }
static void end_fork(void) { pthread_rwlock_unlock(&state.multiplying); }

/* Allow products; a waiting fork goes before products that have not begun. */
static void allow_multiplying(void) {
    pthread_rwlockattr_t forks_first;
    pthread_rwlockattr_init(&forks_first);
#ifdef __linux__
    pthread_rwlockattr_setkind_np(&forks_first, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(&state.multiplying, &forks_first);
    pthread_rwlockattr_destroy(&forks_first);
}

/* In a forked child, whose locks are as other threads left them. */
static void begin_child(void) {
    pthread_mutex_init(&state.loading, NULL);
    allow_multiplying();
}

static sd_status load(void) {
    char path[4096];
    sd_status status = find(path, sizeof path);
    if (status == SD_OK) status = check_memory(LOADING_BYTES + BUFFER_BYTES);
    if (status == SD_OK && NAME[0] == '/') status = make_settings();
    if (status != SD_OK) return status;
    void* handle = NAME[0] == '/' ? open_with_settings(path) : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) return sd_fail(SD_ERR_LIBRARY, "OpenBLAS cannot be loaded: %s", dlerror());
    sgemm multiply;
    void (*set_num_threads)(int);
    char* (*get_config)(void);
    *(void**)&multiply = symbol(handle, "cblas_sgemm");
    *(void**)&set_num_threads = symbol(handle, "openblas_set_num_threads");
    *(void**)&get_config = symbol(handle, "openblas_get_config");
    if (multiply == NULL || set_num_threads == NULL || get_config == NULL) {
        dlclose(handle);
        return sd_fail(SD_ERR_LIBRARY, "%s is not an OpenBLAS with CBLAS: functions are missing", path);
    }
    const char* description = get_config();
    if (strstr(description, "USE64BITINT") != NULL) {
        status = sd_fail(SD_ERR_LIBRARY, "%s has integers of 64 bits, expected 32 (%s)", path, description);
        dlclose(handle);
        return status;
    }
    set_num_threads(1);
    allow_multiplying();
    pthread_atfork(forbid_multiplying, end_fork, begin_child);
    state.description = description;
    state.sgemm = multiply;
    return SD_OK;
}

sd_status sd_library_load(void) {
    pthread_mutex_lock(&state.loading);
    sd_status status = state.sgemm != NULL ? SD_OK : load();
    pthread_mutex_unlock(&state.loading);
    return status;
}

const char* sd_library_description(void) { return state.description; }

void sd_library_multiply(int n_rows, int n_out, int n_in, const float* x, int ldx, const float* matrix,
                         float* y, int ldy) {
    pthread_rwlock_rdlock(&state.multiplying);
    state.sgemm(ROW_MAJOR, NOT_TRANSPOSED, TRANSPOSED, n_rows, n_out, n_in, 1.0f, x, ldx, matrix, n_in, 0.0f,
                y, ldy);
    pthread_rwlock_unlock(&state.multiplying);
}
