/* One layer: its halves, one after the other or side by side. Cross-attention belongs to the first. */
#ifndef SD_LAYER_H
#define SD_LAYER_H

#include "pass.h"

/* Run the rows of a pass through layer i, less what is skipped (workspace.h). */
void sd_layer_run(sd_pass* pass, int i, unsigned skipped);

#endif
