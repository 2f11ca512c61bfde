/* Status codes and the message of the last failure.
 *
 * Every function that can fail returns sd_status and leaves its outputs untouched unless it returns SD_OK.
 * sd_fail sets the message once, where the fault is found; callers pass the code on. It belongs to the
 * calling thread and lasts until that thread's next sd_fail. */
#pragma once

typedef enum sd_status {
    SD_OK = 0,
    SD_ERR_MEMORY,      /* an allocation failed */
    SD_ERR_VALUE,       /* an argument is out of its range */
    SD_ERR_SHAPE,       /* an array has the wrong shape or a tensor is missing */
    SD_ERR_NOT_FINITE,  /* a weight is NaN or infinite */
    SD_ERR_CONTEXT,     /* more positions than the model or the cache has */
    SD_ERR_STATE,       /* the call is not allowed now */
    SD_ERR_OVERFLOW,    /* a model computed a number that is not finite */
    SD_ERR_SETTING,     /* a setting cannot be used with another, or with what a model computed */
    SD_ERR_LIBRARY,     /* a shared library is not there or cannot be used */
    SD_ERR_CALLBACK,    /* a user callback failed, and the caller knows why */
    SD_ERR_INTERRUPTED, /* the caller stopped the computation (interrupt.h), and knows why */
} sd_status;

#if defined(__GNUC__)
#define SD_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define SD_PRINTF(fmt, args)
#endif

#define SD_MESSAGE_SIZE 320 /* bytes of a message with its terminator; longer ones are truncated */

/* Store a printf-style message for this thread and return `code`. */
sd_status sd_fail(sd_status code, const char* format, ...) SD_PRINTF(2, 3);

/* Return the status of a call that failed. */
#define SD_TRY(call)                            \
    do {                                        \
        const sd_status sd_tried = (call);      \
        if (sd_tried != SD_OK) return sd_tried; \
    } while (0)

/* Return a failure, with a message as in sd_fail, if a condition holds. */
#define SD_FAIL_IF(wrong, ...)                  \
    do {                                        \
        if (wrong) return sd_fail(__VA_ARGS__); \
    } while (0)

/* A struct from its fields: clang-format fills lines with the arguments of a macro. */
#define SD_MAKE(type, ...) ((type){__VA_ARGS__})

/* SD_OK, or SD_ERR_VALUE if a number is outside least … most; INT_MAX: no upper limit. */
sd_status sd_check_range(const char* name, long long value, long long least, long long most);

/* Message of this thread's last sd_fail; borrowed, never NULL. */
const char* sd_message(void);

/* Failure of one sequence of a batch, which ends that sequence alone. Zeroed: no failure. */
typedef struct sd_failure {
    sd_status status;
    char message[SD_MESSAGE_SIZE];
} sd_failure;

/* Record `status` and this thread's last message, unless an earlier failure is recorded. */
void sd_failure_note(sd_failure* failure, sd_status status);
