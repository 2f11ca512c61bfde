#include "status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_message[SD_MESSAGE_SIZE];

sd_status sd_fail(sd_status code, const char* format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_message, sizeof last_message, format, args);
    va_end(args);
    return code;
}

const char* sd_message(void) { return last_message; }

void sd_failure_note(sd_failure* failure, sd_status status) {
    if (failure->status != SD_OK) return;
    failure->status = status;
    snprintf(failure->message, sizeof failure->message, "%s", last_message);
}
