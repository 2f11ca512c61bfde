/* SlotRound: what a round did in one slot, a named tuple with the Round of specdec.trace. */
#ifndef SD_SLOT_ROUND_H
#define SD_SLOT_ROUND_H

#include "module.h"
#include "session.h"

/* What a SlotRound is made of. */
typedef struct sd_slot_round_source {
    const sd_session* session;
    const sd_record* record;
    int n_vocab;
    int index;       /* of the round in its sequence */
    int keep_logits; /* the tuple gets the logits that new tokens were chosen from */
    int keep_drafts; /* and what nodes were drawn from (testing.h) */
    PyObject* error; /* why the sequence has failed in the round; NULL: it has not; borrowed */
} sd_slot_round_source;

/* The named tuple's type, and the class Round into the state. Returns 0, or -1 with an exception. */
int sd_slot_round_begin(sd_module_state* state);

/* A new SlotRound; NULL with an exception. */
PyObject* sd_slot_round_new(const sd_module_state* state, const sd_slot_round_source* source);

#endif
