/* Monotonic time. */
#pragma once

/* Seconds since an arbitrary point. */
double sd_now(void);
