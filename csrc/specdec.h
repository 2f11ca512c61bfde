/* specdec: exact speculative decoding of transformer language models. The core's public face.
 *
 * The folders, each using only those before it: base, kernels, model, decode, draft, binding.
 *
 *     sd_config config = {...};                      what the model looks like    config.h
 *     sd_model* target;                              packed weights               weights.h
 *     sd_model_create(&config, inv_freq, &target);
 *     sd_model_set(target, "token_embedding", &source, n_rows, n_cols);   … every tensor …
 *     sd_model_finish(target);                       immutable from here on
 *
 *     sd_drafter* drafter;                           who guesses                  drafter.h
 *     sd_model_drafter_create(&draft_options, &shape, &drafter);
 *     sd_session* session;                           the rounds of a batch        session.h
 *     sd_session_create(&options, prompts, n, drafter, &session);
 *     for (int done = 0; !done;) sd_session_prefill(session, &done);
 *     do sd_session_rounds(session, 0, 0, NULL), records = sd_session_records(session, &n_records);
 *     while (n_records > 0);
 *     sd_session_free(session), sd_model_free(target);
 *
 * Every function that can fail returns sd_status (status.h); sd_message() says what was wrong. A
 * model may be shared by any number of sessions and threads; a session belongs to one at a time. */
#ifndef SPECDEC_H
#define SPECDEC_H

#include "beam_search.h"
#include "best_drafter.h"
#include "copy_drafter.h"
#include "dialled_drafter.h"
#include "growing_drafter.h"
#include "input_drafter.h"
#include "kernels.h"
#include "lookahead_drafter.h"
#include "model_drafter.h"
#include "ngram_drafter.h"
#include "random_drafter.h"
#include "session.h"
#include "speculating_drafter.h"

#endif
