/* A way out of a long computation: the caller may ask the core to stop.
 *
 * Loops that can run long call sd_interrupted between their steps and pass on what it returns. Each thread
 * has its own function to ask, or none; the workers of the thread pool have none. */
#pragma once

#include "status.h"

/* Returns SD_OK to go on, or the status that the computation ends with. */
typedef sd_status (*sd_ask)(void* context);

/* Set the function that this thread asks, NULL for none. The first question comes 50 ms after this call.
 * context is borrowed until the next call. */
void sd_interrupt_set(sd_ask ask, void* context);

/* Would sd_interrupted ask? For callers that first release what the function may need, such as the team. */
int sd_interrupt_due(void);

/* Ask the function, at most once in 50 ms; without a function the call does nothing. The caller returns every
 * status other than SD_OK. */
sd_status sd_interrupted(void);
