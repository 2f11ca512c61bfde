/* Depthwise convolution of the rows of a pass with the tokens before them. */
#pragma once

#include "pass.h"

/* Channels that sd_convolve takes at once. */
#define SD_MOST_CHANNELS (8 * SD_PANEL)

/* Convolve channels [first, first + n), at most SD_MOST_CHANNELS, of all rows x [n_rows, channels] of the
 * pass with those of their ancestors. out [n_rows, channels] must not overlap them. Rows are ldx and ldo
 * apart. Then store the inputs that later rows may read in the states of the branches' caches. */
void sd_convolve(const sd_pass* pass, int layer, const float* x, ptrdiff_t ldx, float* out, ptrdiff_t ldo,
                 int first, int n);

/* Work on channels [first, first + n) of all rows, at most SD_MOST_CHANNELS. */
typedef void (*sd_channel_work)(void* argument, int first, int n);

/* Run `work` over n_channels channels: on the team if rows and channels are many. */
void sd_pass_loop_channels(const sd_pass* pass, int n_channels, sd_channel_work work, void* argument);
