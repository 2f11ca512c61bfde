#include "interrupt.h"

#include <stddef.h>

#include "clock.h"

#define INTERVAL 0.05 /* seconds */

static _Thread_local struct {
    sd_ask ask;
    void* context;
    double asked_at;
} hook;

void sd_interrupt_set(sd_ask ask, void* context) {
    hook.ask = ask;
    hook.context = context;
    if (ask != NULL) hook.asked_at = sd_now();
}

int sd_interrupt_due(void) { return hook.ask != NULL && sd_now() - hook.asked_at >= INTERVAL; }

sd_status sd_interrupted(void) {
    if (!sd_interrupt_due()) return SD_OK;
    hook.asked_at = sd_now();
    return hook.ask(hook.context);
}
