/* The arguments of Session.__new__ and Session.admit, as the core takes them. */
#pragma once

#include "drafters.h"
#include "python_states.h"
#include "session.h"

/* A slot of a session: how its sequence is decoded. */
typedef struct sd_slot {
    sd_settings_object* object;    /* strong reference, or NULL: the slot is empty */
    sd_settings settings;          /* of the sequence; borrows from the object, and from `transform` */
    sd_python_transform transform; /* owns its exception */
    sd_state_tree states;          /* owned; of a transform that has them, else empty */
    sd_constraint* constraint;     /* owned; NULL as long as no sequence of the slot has had one */
    sd_python_states constraining; /* of the constraint; owned */
    int n_rounds;                  /* of the sequence so far */
} sd_slot;

/* What a session borrows as long as it lives. Its drafter borrows from `draft_arguments`, so the session is
 * freed first. */
typedef struct sd_session_borrowed {
    PyThreadState** saved_thread;     /* of the session's `exclusive`; set by the session */
    sd_model_object* target;          /* strong reference */
    PyObject* draft_arguments;        /* strong reference to the list of drafters.h, or NULL */
    PyObject* failures;               /* strong reference to the dict of drafters.h, or NULL */
    sd_drafter_context context;       /* what the drafter was made with; it borrows from here */
    sd_adaptive_gamma adaptive_gamma; /* of gamma="auto"; the session's own, it learns */
    int is_adaptive;
    sd_slot* slots; /* [n_slots] PyMem */
    sd_gate gate;   /* of what follows the texts of the slots */
    int n_nodes;    /* guesses of a round, at most */
    int n_slots;
} sd_session_borrowed;

/* What a slot would hold with other settings: *with, for sd_slot_set or sd_slot_drop. The slot itself gets
 * room only. Returns 0, or -1 with an exception. */
int sd_slot_with(sd_session_borrowed* borrowed, sd_slot* slot, sd_settings_object* object, sd_slot* with);

/* Let the slot hold that; it takes a reference of its own to the settings. */
void sd_slot_set(sd_slot* slot, const sd_slot* with);

/* The slot keeps what it has. */
void sd_slot_drop(sd_slot* with);

/* What a function of the sequence in a slot has raised, which is then forgotten: a new reference, or NULL. */
PyObject* sd_slot_take_exception(sd_slot* slot);

void sd_session_borrowed_free(sd_session_borrowed* borrowed);

/* Visit the strong references (tp_traverse). */
int sd_session_borrowed_traverse(const sd_session_borrowed* borrowed, visitproc visit, void* arg);

/* The session of the arguments of Session.__new__, and its drafter; sets `borrowed`, which must outlive the
 * session. Returns 0, or -1 with an exception. */
int sd_session_from_arguments(PyObject* args, PyObject* kwargs, sd_session_borrowed* borrowed,
                              sd_session** session, int* keep_logits);

/* A prompt of ids, its seed, (seed, sequence), and the ids of its source; NULL or None: there is none. It has
 * no settings. Its arrays are the caller's, for sd_prompt_free. Returns 0, or -1 with an exception and
 * nothing owned. */
int sd_prompt_from(PyObject* ids, PyObject* seed, PyObject* source, sd_prompt* prompt);
void sd_prompt_free(const sd_prompt* prompt);

/* SlotRound: what a round did in one slot, a named tuple with the Round of specdec.trace. */

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
