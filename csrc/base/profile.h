/* What the time of a forward pass goes to: that of the calling thread, divided by what the thread does. With
 * SPECDEC_TESTING only; without it nothing is measured and SD_PROFILED is the call alone. */
#ifndef SD_PROFILE_H
#define SD_PROFILE_H

typedef enum sd_activity {
    SD_DOES_OTHER, /* whatever else the thread does, also outside of a forward */
    SD_DOES_EMBEDDING,
    SD_DOES_NORM,
    SD_DOES_PREPARATION, /* rows as inputs of products: chunks, rounding, quantising */
    SD_DOES_PRODUCT,
    SD_DOES_ATTENTION,
    SD_DOES_ACTIVATION,
    SD_DOES_ADDITION, /* biases, factors, soft caps, the residual stream */
    SD_DOES_LOGITS,   /* the product of the head */
    SD_DOES_LOOP,     /* posting a loop to the threads of a team, taking pieces */
    SD_DOES_WAITING,  /* for other threads at the end of a loop */
    SD_N_ACTIVITIES
} sd_activity;

#ifdef SPECDEC_TESTING
extern const char* const sd_activity_names[SD_N_ACTIVITIES];

/* From now on the thread does something else; after leaving, what it did before. */
void sd_profile_enter(sd_activity activity);
void sd_profile_leave(void);

/* Begin to measure the calling thread, from nothing; end, and say the seconds of each activity. */
void sd_profile_begin(void);
void sd_profile_end(double seconds[SD_N_ACTIVITIES]);

/* Call a function that returns nothing, as an activity. */
#define SD_PROFILED(activity, call) (sd_profile_enter(activity), (call), sd_profile_leave())
#else
#define SD_PROFILED(activity, call) (call)
#endif

#endif
