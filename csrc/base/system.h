/* Services of the operating system: threads, locks, pages, files, shared libraries.
 *
 * system_posix.c (Linux, macOS) and system_windows.c implement them. No other file calls the system. Windows
 * has no fork: there handlers of forks are never called. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
/* SRWLOCK and CONDITION_VARIABLE are a pointer each, which begins as NULL. */
typedef struct sd_mutex {
    void* system;
} sd_mutex;
typedef sd_mutex sd_rwlock;
typedef sd_mutex sd_condition;
#define SD_MUTEX_UNLOCKED {NULL}
#define SD_CONDITION_UNUSED {NULL}
#else
#include <pthread.h>
typedef struct sd_mutex {
    pthread_mutex_t system;
} sd_mutex;
typedef struct sd_rwlock {
    pthread_rwlock_t system;
} sd_rwlock;
typedef struct sd_condition {
    pthread_cond_t system;
} sd_condition;
#define SD_MUTEX_UNLOCKED {PTHREAD_MUTEX_INITIALIZER}
#define SD_CONDITION_UNUSED {PTHREAD_COND_INITIALIZER}
#endif

/* ------------------------------------------------------------------ locks */

/* Unlock a mutex, whatever its state; for new ones, and for all in a forked child. */
void sd_mutex_init(sd_mutex* mutex);
void sd_mutex_destroy(sd_mutex* mutex);
void sd_mutex_lock(sd_mutex* mutex);
void sd_mutex_unlock(sd_mutex* mutex);

/* Unlock a lock, whatever its state. On Linux a waiting writer goes before readers that have not begun. */
void sd_rwlock_init(sd_rwlock* lock);
void sd_rwlock_read(sd_rwlock* lock);
void sd_rwlock_end_read(sd_rwlock* lock);
void sd_rwlock_write(sd_rwlock* lock);
void sd_rwlock_end_write(sd_rwlock* lock);

/* Unlock the mutex, wait for a signal or wake without one, and lock it again. */
void sd_condition_wait(sd_condition* condition, sd_mutex* mutex);
/* Wake a thread that waits. */
void sd_condition_signal(sd_condition* condition);

/* ------------------------------------------------------------------ time and threads */

/* Ticks of a clock that never goes back, from an arbitrary point. */
int64_t sd_clock_ticks(int64_t* per_second);

/* What a thread runs. */
typedef struct sd_thread {
    void (*run)(void* argument);
    void* argument; /* borrowed */
} sd_thread;

/* Start a thread that nobody joins and that takes no signals. `thread` is borrowed until it ends. Returns 0,
 * or -1 if the system grants none. */
int sd_thread_start(const sd_thread* thread);
/* Let other threads run. */
void sd_thread_yield(void);
void sd_thread_sleep(double seconds);

/* Call these functions (NULL: none) in the thread that forks, before and after, and in the child. */
void sd_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

/* May this process use the processor's tiles (AMX)? A process must request it, because the state of each
 * thread grows by 8 KiB; Linux refuses if a thread's signal stack is too small. Other systems: no. */
int sd_tiles_permitted(void);

/* ------------------------------------------------------------------ pages */

/* Bytes of a page. */
size_t sd_page_size(void);
/* Zeroed pages of `size` bytes in all, owned by the caller; NULL: out of memory. A page takes memory when it
 * is first written. */
void* sd_pages_take(size_t size);
/* Return pages of sd_pages_take, with the same size. */
void sd_pages_give(void* pages, size_t size);
/* Prefer huge pages for a part of such pages, where the system has a choice. */
void sd_pages_prefer_huge(void* at, size_t size);
/* Let every access to whole pages of a part fail. */
void sd_pages_protect(void* at, size_t size);

/* ------------------------------------------------------------------ files */

#define SD_FILE_ENDS (-1)
/* Read n bytes at an offset of an open file into `out` [n]. Returns 0, an errno, or SD_FILE_ENDS where the
 * file ends early. */
int sd_file_read(int descriptor, int64_t at, size_t n, char* out);

/* ------------------------------------------------------------------ shared libraries */

/* The list of environment variables of this process, borrowed: NULL, or strings up to NULL. */
char*** sd_environment(void);

/* Load a library, whose names stay private; NULL: it cannot be loaded. */
void* sd_shared_open(const char* path);
void sd_shared_close(void* library);
/* A function or variable of a library; NULL: it has none of this name. */
void* sd_shared_symbol(void* library, const char* name);
/* Why the last sd_shared_open of this thread failed; borrowed. */
const char* sd_shared_error(void);
/* Path of the library or program that holds a static object; borrowed; NULL: unknown. */
const char* sd_shared_path(const void* object);
