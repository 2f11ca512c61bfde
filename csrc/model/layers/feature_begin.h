/* How the rows of a pass begin where each comes with a feature beside its token (config.h). */
#ifndef SD_FEATURE_BEGIN_H
#define SD_FEATURE_BEGIN_H

#include "pass.h"

/* Begin the residual stream with features and tokens of the branches' rows, as the configuration has it.
 * Where the first layer reads tokens beside features, its input is left in w->joined: [n_rows, 2 d_model]. */
void sd_pass_begin_with_features(sd_pass* pass);

#endif
