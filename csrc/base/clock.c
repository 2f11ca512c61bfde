#include "clock.h"

#include "system.h"

double sd_now(void) {
    int64_t per_second, ticks = sd_clock_ticks(&per_second);
    return (double)(ticks / per_second) + (double)(ticks % per_second) / (double)per_second;
}
