#include "status.h"

#include <limits.h>
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

sd_status sd_check_range(const char* name, long long value, long long least, long long most) {
    if (value >= least && value <= most) return SD_OK;
    SD_FAIL_IF(most == INT_MAX, SD_ERR_VALUE, "%s is %lld, expected at least %lld", name, value, least);
    return sd_fail(SD_ERR_VALUE, "%s is %lld, expected %lld to %lld", name, value, least, most);
}

const char* sd_message(void) { return last_message; }

void sd_failure_note(sd_failure* failure, sd_status status) {
    if (failure->status != SD_OK) return;
    failure->status = status;
    snprintf(failure->message, sizeof failure->message, "%s", last_message);
}
