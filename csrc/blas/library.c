#include "library.h"

#include <stdio.h>
#include <string.h>

#include "memory.h"
#include "system.h"

/* A name that begins with a slash is a file next to the extension; the loader finds all others. */
static const char NAME[] = SD_OPENBLAS_NAME;

/* cblas_sgemm; order and transpositions are enumerations of CBLAS. */
typedef void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                      const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);
enum { ROW_MAJOR = 101, NOT_TRANSPOSED = 111, TRANSPOSED = 112 };

static struct {
    sd_mutex loading;
    sd_rwlock multiplying; /* read-locked by products, write-locked by forks */
    sgemm sgemm;           /* NULL until the library has been loaded */
    const char* description;
    int n_reserved;  /* threads for whose buffers there was memory */
    char** settings; /* environment while OpenBLAS loads; never freed: others may read it */
} state = {.loading = SD_MUTEX_UNLOCKED};

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
    char** environment = *sd_environment();
    for (char** e = environment; e != NULL && *e != NULL; e++) {
        chosen |= is_of(*e, "OPENBLAS_CORETYPE");
        n++;
    }
    sd_free(state.settings);
    state.settings = sd_alloc((n + 3) * sizeof *state.settings);
    if (state.settings == NULL) return SD_ERR_MEMORY;
    char** to = state.settings;
    for (size_t i = 0; i < n; i++)
        if (!is_of(environment[i], "OPENBLAS_NUM_THREADS")) *to++ = environment[i];
    static char one_thread[] = "OPENBLAS_NUM_THREADS=1", avx512[] = "OPENBLAS_CORETYPE=SkylakeX";
    *to++ = one_thread;
    if (!chosen && has_avx512()) *to++ = avx512;
    *to = NULL;
    return SD_OK;
}

/* Load with these settings. Only the pointer to the environment changes: setenv might free what another
 * thread is reading. */
static void* open_with_settings(const char* path) {
    char*** environment = sd_environment();
    char** before = *environment;
    *environment = state.settings;
    void* handle = sd_shared_open(path);
    if (*environment == state.settings) *environment = before;
    return handle;
}

/* ------------------------------------------------------------------ the library */

/* Memory that OpenBLAS maps for each multiplying thread, and, with its code, while it loads. */
#define BUFFER_BYTES ((size_t)33 << 20)
#define LOADING_BYTES ((size_t)64 << 20)

static sd_status check_memory(size_t bytes) {
    void* there = sd_pages_take(bytes);
    if (there == NULL) return sd_fail(SD_ERR_MEMORY, "out of memory: OpenBLAS needs %zu bytes", bytes);
    sd_pages_give(there, bytes);
    return SD_OK;
}

sd_status sd_library_reserve(int n_threads) {
    sd_mutex_lock(&state.loading);
    int n_more = n_threads - state.n_reserved;
    sd_status status = n_more > 0 ? check_memory((size_t)n_more * BUFFER_BYTES) : SD_OK;
    if (n_more > 0 && status == SD_OK) state.n_reserved = n_threads;
    sd_mutex_unlock(&state.loading);
    return status;
}

/* Path of the library; a bundled one is next to the file with this function. */
static sd_status find(char* path, size_t size) {
    const char *self = NULL, *slash = NULL;
    int length = 0;
    if (NAME[0] == '/') {
        self = sd_shared_path(&state);
        if (self == NULL)
            return sd_fail(SD_ERR_LIBRARY, "OpenBLAS: the folder of the extension module is unknown");
        slash = strrchr(self, '/');
        length = slash == NULL ? 1 : (int)(slash - self);
    }
    int n = snprintf(path, size, "%.*s%s", length, slash == NULL ? "." : self, NAME);
    if (n < 0 || (size_t)n >= size)
        return sd_fail(SD_ERR_LIBRARY, "OpenBLAS: the path of the extension module is too long");
    return SD_OK;
}

/* Look up a function of the library. */
static void* symbol(void* handle, const char* name) {
    char full[64];
    snprintf(full, sizeof full, "%s%s", SD_OPENBLAS_PREFIX, name);
    return sd_shared_symbol(handle, full);
}

static void forbid_multiplying(void) { sd_rwlock_write(&state.multiplying); }
static void end_fork(void) { sd_rwlock_end_write(&state.multiplying); }

/* In a forked child, whose locks are as other threads left them. */
static void begin_child(void) {
    sd_mutex_init(&state.loading);
    sd_rwlock_init(&state.multiplying);
}

static sd_status load(void) {
    char path[4096];
    sd_status status = find(path, sizeof path);
    if (status == SD_OK) status = check_memory(LOADING_BYTES + BUFFER_BYTES);
    if (status == SD_OK && NAME[0] == '/') status = make_settings();
    if (status != SD_OK) return status;
    void* handle = NAME[0] == '/' ? open_with_settings(path) : sd_shared_open(path);
    if (handle == NULL) return sd_fail(SD_ERR_LIBRARY, "OpenBLAS cannot be loaded: %s", sd_shared_error());
    sgemm multiply;
    void (*set_num_threads)(int);
    char* (*get_config)(void);
    *(void**)&multiply = symbol(handle, "cblas_sgemm");
    *(void**)&set_num_threads = symbol(handle, "openblas_set_num_threads");
    *(void**)&get_config = symbol(handle, "openblas_get_config");
    if (multiply == NULL || set_num_threads == NULL || get_config == NULL) {
        sd_shared_close(handle);
        return sd_fail(SD_ERR_LIBRARY, "%s is not an OpenBLAS with CBLAS: functions are missing", path);
    }
    const char* description = get_config();
    if (strstr(description, "USE64BITINT") != NULL) {
        status = sd_fail(SD_ERR_LIBRARY, "%s has integers of 64 bits, expected 32 (%s)", path, description);
        sd_shared_close(handle);
        return status;
    }
    set_num_threads(1);
    sd_rwlock_init(&state.multiplying); /* a waiting fork goes before products that have not begun */
    sd_at_fork(forbid_multiplying, end_fork, begin_child);
    state.description = description;
    state.sgemm = multiply;
    return SD_OK;
}

sd_status sd_library_load(void) {
    sd_mutex_lock(&state.loading);
    sd_status status = state.sgemm != NULL ? SD_OK : load();
    sd_mutex_unlock(&state.loading);
    return status;
}

const char* sd_library_description(void) { return state.description; }

void sd_library_multiply(int n_rows, int n_out, int n_in, const float* x, int ldx, const float* matrix,
                         float* y, int ldy) {
    sd_rwlock_read(&state.multiplying);
    state.sgemm(ROW_MAJOR, NOT_TRANSPOSED, TRANSPOSED, n_rows, n_out, n_in, 1.0f, x, ldx, matrix, n_in, 0.0f,
                y, ldy);
    sd_rwlock_end_read(&state.multiplying);
}
