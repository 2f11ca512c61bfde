/* Services of the operating system on Linux and macOS. */
#if !defined(_WIN32)
#define _GNU_SOURCE
#include "system.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/syscall.h>
#endif

#if defined(__APPLE__)
#include <crt_externs.h>
char*** sd_environment(void) { return _NSGetEnviron(); }
#else
char*** sd_environment(void) { return &environ; }
#endif

int64_t sd_clock_ticks(int64_t* per_second) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *per_second = 1000000000;
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ------------------------------------------------------------------ locks */

void sd_mutex_init(sd_mutex* m) { pthread_mutex_init(&m->system, NULL); } /* by default it does not fail */
void sd_mutex_destroy(sd_mutex* m) { pthread_mutex_destroy(&m->system); }
void sd_mutex_lock(sd_mutex* m) { pthread_mutex_lock(&m->system); }
void sd_mutex_unlock(sd_mutex* m) { pthread_mutex_unlock(&m->system); }

void sd_rwlock_init(sd_rwlock* lock) {
    pthread_rwlockattr_t how;
    pthread_rwlockattr_init(&how);
#if defined(__linux__)
    pthread_rwlockattr_setkind_np(&how, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(&lock->system, &how);
    pthread_rwlockattr_destroy(&how);
}
void sd_rwlock_read(sd_rwlock* lock) { pthread_rwlock_rdlock(&lock->system); }
void sd_rwlock_end_read(sd_rwlock* lock) { pthread_rwlock_unlock(&lock->system); }
void sd_rwlock_write(sd_rwlock* lock) { pthread_rwlock_wrlock(&lock->system); }
void sd_rwlock_end_write(sd_rwlock* lock) { pthread_rwlock_unlock(&lock->system); }

void sd_condition_wait(sd_condition* c, sd_mutex* m) { pthread_cond_wait(&c->system, &m->system); }
void sd_condition_signal(sd_condition* c) { pthread_cond_signal(&c->system); }

/* ------------------------------------------------------------------ threads */

static void* thread_main(void* argument) {
    const sd_thread* thread = argument;
    thread->run(thread->argument);
    return NULL;
}

int sd_thread_start(const sd_thread* thread) {
    pthread_t handle;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&handle, NULL, thread_main, (void*)thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) return -1;
    pthread_detach(handle);
    return 0;
}

void sd_thread_yield(void) { sched_yield(); }

void sd_thread_sleep(double seconds) {
    time_t whole = (time_t)seconds;
    struct timespec t = {whole, (long)((seconds - (double)whole) * 1e9)};
    nanosleep(&t, NULL);
}

void sd_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
    pthread_atfork(before, in_parent, in_child);
}

int sd_tiles_permitted(void) {
#if defined(__linux__) && defined(__x86_64__)
    enum { TILE_DATA = 18, REQUEST_PERMISSION = 0x1023 }; /* <asm/prctl.h> of Linux 5.16 */
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 0;
#endif
}

/* ------------------------------------------------------------------ pages */

size_t sd_page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

void* sd_pages_take(size_t size) {
    void* pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

void sd_pages_give(void* pages, size_t size) { munmap(pages, size); }

void sd_pages_prefer_huge(void* at, size_t size) {
#if defined(MADV_HUGEPAGE)
    madvise(at, size, MADV_HUGEPAGE);
#else
    (void)at, (void)size;
#endif
}

void sd_pages_protect(void* at, size_t size) { mprotect(at, size, PROT_NONE); }

/* ------------------------------------------------------------------ files */

int sd_file_read(int descriptor, int64_t at, size_t n, char* out) {
    while (n > 0) {
        ssize_t got = pread(descriptor, out, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        if (got == 0) return SD_FILE_ENDS;
        out += got;
        at += got;
        n -= (size_t)got;
    }
    return 0;
}

/* ------------------------------------------------------------------ shared libraries */

void* sd_shared_open(const char* path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }
void sd_shared_close(void* library) { dlclose(library); }
void* sd_shared_symbol(void* library, const char* name) { return dlsym(library, name); }
const char* sd_shared_error(void) { return dlerror(); }

const char* sd_shared_path(const void* object) {
    Dl_info found;
    return dladdr(object, &found) == 0 ? NULL : found.dli_fname;
}
#endif
