/* Services of the operating system on Windows: compiled by cross-compilers, never run. */
#if defined(_WIN32)
#include "system.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <errno.h>
#include <io.h>
#include <process.h>
#include <stdio.h>
#include <stdlib.h>

char*** sd_environment(void) { return &_environ; }

int64_t sd_clock_ticks(int64_t* per_second) {
    LARGE_INTEGER count, rate;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&rate);
    *per_second = rate.QuadPart;
    return count.QuadPart;
}

/* ------------------------------------------------------------------ locks */

_Static_assert(sizeof(SRWLOCK) == sizeof(sd_mutex), "a mutex is an SRWLOCK");
_Static_assert(sizeof(CONDITION_VARIABLE) == sizeof(sd_condition), "a condition is a CONDITION_VARIABLE");

#define LOCK(mutex) ((SRWLOCK*)&(mutex)->system)
#define CONDITION(condition) ((CONDITION_VARIABLE*)&(condition)->system)

void sd_mutex_init(sd_mutex* m) { InitializeSRWLock(LOCK(m)); }
void sd_mutex_destroy(sd_mutex* m) { (void)m; }
void sd_mutex_lock(sd_mutex* m) { AcquireSRWLockExclusive(LOCK(m)); }
void sd_mutex_unlock(sd_mutex* m) { ReleaseSRWLockExclusive(LOCK(m)); }

void sd_rwlock_init(sd_rwlock* lock) { InitializeSRWLock(LOCK(lock)); }
void sd_rwlock_read(sd_rwlock* lock) { AcquireSRWLockShared(LOCK(lock)); }
void sd_rwlock_end_read(sd_rwlock* lock) { ReleaseSRWLockShared(LOCK(lock)); }
void sd_rwlock_write(sd_rwlock* lock) { AcquireSRWLockExclusive(LOCK(lock)); }
void sd_rwlock_end_write(sd_rwlock* lock) { ReleaseSRWLockExclusive(LOCK(lock)); }

void sd_condition_wait(sd_condition* c, sd_mutex* m) {
    SleepConditionVariableSRW(CONDITION(c), LOCK(m), INFINITE, 0);
}
void sd_condition_signal(sd_condition* c) { WakeConditionVariable(CONDITION(c)); }

/* ------------------------------------------------------------------ threads */

static unsigned __stdcall thread_main(void* argument) {
    const sd_thread* thread = argument;
    thread->run(thread->argument);
    return 0;
}

int sd_thread_start(const sd_thread* thread) {
    HANDLE handle = (HANDLE)_beginthreadex(NULL, 0, thread_main, (void*)thread, 0, NULL);
    if (handle == NULL) return -1;
    CloseHandle(handle);
    return 0;
}

void sd_thread_yield(void) { SwitchToThread(); }
void sd_thread_sleep(double seconds) { Sleep((DWORD)(seconds * 1e3)); }

void sd_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
    (void)before, (void)in_parent, (void)in_child;
}

int sd_tiles_permitted(void) { return 0; }

/* ------------------------------------------------------------------ pages */

size_t sd_page_size(void) {
    SYSTEM_INFO found;
    GetSystemInfo(&found);
    return found.dwPageSize;
}

void* sd_pages_take(size_t size) {
    return VirtualAlloc(NULL, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void sd_pages_give(void* pages, size_t size) {
    (void)size;
    VirtualFree(pages, 0, MEM_RELEASE);
}

void sd_pages_prefer_huge(void* at, size_t size) { (void)at, (void)size; }

void sd_pages_protect(void* at, size_t size) {
    DWORD before;
    VirtualProtect(at, size, PAGE_NOACCESS, &before);
}

/* ------------------------------------------------------------------ files */

int sd_file_read(int descriptor, int64_t at, size_t n, char* out) {
    HANDLE file = (HANDLE)_get_osfhandle(descriptor);
    if (file == INVALID_HANDLE_VALUE) return EBADF;
    while (n > 0) {
        OVERLAPPED from = {.Offset = (DWORD)at, .OffsetHigh = (DWORD)(at >> 32)};
        DWORD got = 0, piece = n < (1u << 30) ? (DWORD)n : 1u << 30;
        if (!ReadFile(file, out, piece, &got, &from))
            return GetLastError() == ERROR_HANDLE_EOF ? SD_FILE_ENDS : EIO;
        if (got == 0) return SD_FILE_ENDS;
        out += got;
        at += got;
        n -= got;
    }
    return 0;
}

/* ------------------------------------------------------------------ shared libraries */

static _Thread_local char message[64];

void* sd_shared_open(const char* path) {
    HMODULE found = LoadLibraryA(path);
    if (found == NULL) snprintf(message, sizeof message, "LoadLibrary: error %lu", GetLastError());
    return found;
}

void sd_shared_close(void* library) { FreeLibrary(library); }
void* sd_shared_symbol(void* library, const char* name) { return (void*)GetProcAddress(library, name); }
const char* sd_shared_error(void) { return message; }

const char* sd_shared_path(const void* object) {
    (void)object; /* nothing is bundled */
    return NULL;
}
#endif
