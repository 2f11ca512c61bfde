/* A way out of a long computation: the caller may ask the core to stop.
 *
 * Loops that can run long call sd_interrupted between their steps and pass on what it returns. Each thread has
 * its own function to ask, or none; the workers of the thread pool have none. */
#ifndef SD_INTERRUPT_H
#define SD_INTERRUPT_H

#include "status.h"

/* Returns SD_OK to go on, or the status that the computation ends with. */
typedef sd_status (*sd_ask)(void* context);

/* The function that this thread asks from now on, first after the interval of sd_interrupted; NULL: none. context
 * is borrowed until the next call. */
void sd_interrupt_set(sd_ask ask, void* context);

/* Ask, at most once every 50 ms: a call costs a look at the clock otherwise, and nothing where there is no
 * function. A status other than SD_OK is to be passed on. */
sd_status sd_interrupted(void);

#endif
