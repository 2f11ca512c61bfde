/* Interruption of long computations by the caller.
 *
 * Long loops call sd_interrupted between steps and return its status. Each thread has its own callback, or
 * none; pool workers have none. */
#pragma once

#include "status.h"

/* Returns SD_OK to continue, or the status that ends the computation. */
typedef sd_status (*sd_ask)(void* context);

/* Set this thread's callback; NULL: none. It is first called 50 ms later. context is borrowed until the next
 * call. */
void sd_interrupt_set(sd_ask ask, void* context);

/* Would sd_interrupted call the callback? For callers that must first release what it may need, such as the
 * team. */
int sd_interrupt_due(void);

/* Call the callback, at most once in 50 ms; without one do nothing. The caller returns every status other
 * than SD_OK. */
sd_status sd_interrupted(void);
