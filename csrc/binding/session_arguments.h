/* Arguments of Session.__new__ and Session.admit, for the core. */
#pragma once

#include "drafters.h"
#include "python_states.h"
#include "session.h"

/* A slot of a session: settings of its sequence. */
typedef struct sd_slot {
    sd_settings_object* object;    /* strong reference, or NULL: the slot is empty */
    sd_settings settings;          /* of the sequence; borrows from the object, and from `transform` */
    sd_python_transform transform; /* owns its exception */
    sd_state_tree states;          /* owned; of a transform with states, else empty */
    sd_constraint* constraint;     /* owned; NULL until a sequence of the slot has one */
    sd_python_states constraining; /* of the constraint; owned */
    int n_rounds;                  /* of the sequence so far */
} sd_slot;

/* Memory that a session borrows during its life. Its drafter borrows from `draft_arguments`, so free the
 * session first. */
typedef struct sd_session_borrowed {
    PyThreadState** saved_thread;     /* of the session's `exclusive`; set by the session */
    sd_model_object* target;          /* strong reference */
    PyObject* draft_arguments;        /* strong reference to the list of drafters.h, or NULL */
    PyObject* failures;               /* strong reference to the dict of drafters.h, or NULL */
    sd_drafter_context context;       /* context of the drafter; borrows from here */
    sd_adaptive_gamma adaptive_gamma; /* of gamma="auto"; the session's own copy, which learns */
    int is_adaptive;
    sd_slot* slots; /* [n_slots] PyMem */
    sd_gate gate;   /* of the constraints and transforms of the slots */
    int n_nodes;    /* most draft tokens of a round */
    int n_slots;
} sd_session_borrowed;

/* Prepare other settings for a slot: *with, for sd_slot_set or sd_slot_drop. The slot itself only allocates
 * memory. Returns 0, or -1 with an exception. */
int sd_slot_with(sd_session_borrowed* borrowed, sd_slot* slot, sd_settings_object* object, sd_slot* with);

/* Move *with into the slot, with its own reference to the settings. */
void sd_slot_set(sd_slot* slot, const sd_slot* with);

/* Drop *with; the slot stays unchanged. */
void sd_slot_drop(sd_slot* with);

/* Take the exception of a callback of the slot's sequence: a new reference, or NULL. */
PyObject* sd_slot_take_exception(sd_slot* slot);

void sd_session_borrowed_free(sd_session_borrowed* borrowed);

/* Visit the strong references (tp_traverse). */
int sd_session_borrowed_traverse(const sd_session_borrowed* borrowed, visitproc visit, void* arg);

/* Create a session and its drafter from the arguments of Session.__new__; sets `borrowed`, which must outlive
 * the session. Returns 0, or -1 with an exception. */
int sd_session_from_arguments(PyObject* args, PyObject* kwargs, sd_session_borrowed* borrowed,
                              sd_session** session, int* keep_logits);

/* Make a prompt, without settings, of ids, a seed (seed, sequence) and the ids of its source (NULL or None:
 * none). Its arrays are the caller's, for sd_prompt_free. Returns 0, or -1 with an exception and nothing
 * owned. */
int sd_prompt_from(PyObject* ids, PyObject* seed, PyObject* source, sd_prompt* prompt);
void sd_prompt_free(const sd_prompt* prompt);

/* SlotRound, the result of a round in one slot: a named tuple with the Round of specdec.trace. */

/* Input of a SlotRound. */
typedef struct sd_slot_round_source {
    const sd_session* session;
    const sd_record* record;
    int n_vocab;
    int index;       /* of the round in its sequence */
    int keep_logits; /* add the logits that new tokens were chosen from */
    int keep_drafts; /* add the distributions that nodes were drawn from (testing.h) */
    PyObject* error; /* exception if the sequence has failed in the round, or NULL; borrowed */
} sd_slot_round_source;

/* Put the named tuple's type and the class Round into the state. Returns 0, or -1 with an exception. */
int sd_slot_round_begin(sd_module_state* state);

/* A new SlotRound; NULL with an exception. */
PyObject* sd_slot_round_new(const sd_module_state* state, const sd_slot_round_source* source);
