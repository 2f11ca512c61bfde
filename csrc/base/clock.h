/* Monotonic time. */
#ifndef SD_CLOCK_H
#define SD_CLOCK_H

/* Seconds since an arbitrary point. */
double sd_now(void);

#endif
