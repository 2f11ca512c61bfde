/* When a drafter is tried although it does not seem to pay, and skipped although it does.
 *
 * A drafter that does not pay is paused, each time for longer, and then tried again for a few rounds. A
 * drafter that pays is skipped now and then, and now and then makes more draft tokens than pay, or one less,
 * to notice changes. After a pause it must first read what it has missed, including prompts of new texts; a
 * share of the time is saved for that. The start of a text favors a trial.
 *
 * Plain numbers: may be copied and kept between sessions. */
#pragma once

typedef struct sd_drafter_schedule {
    long long n_rounds; /* rounds so far */
    long long idle;     /* rounds since the last one in which the drafter was asked */
    /* Tokens lost against decoding without the drafter since they were last level; per sequence. */
    double loss;
    double won;        /* tokens gained since the last pause; per sequence */
    double pause_left; /* tokens of a sequence until the pause ends */
    double pause;      /* length of the next pause, in costs of a proposal */
    /* Cost of a proposal when the last pause began, in tokens of plain decoding, within bounds. */
    double cost;
    double paused_for; /* tokens of a sequence since the last pause began */
    /* Tokens of a sequence that the drafter must read before it drafts. */
    double missed;
    /* Cost of reading one of them, in tokens of plain decoding; 0: not known. */
    double catch_up_cost;
    double budget; /* what reading may cost now, in tokens of plain decoding */
    /* Rounds left of a trial, which draft even if no gain is expected. */
    int trial_left;
    /* Round of the next exploration, and the gap to the one after it. */
    long long explore_at, explore_gap;
    /* Round in which a paying drafter is skipped next, and the gap to the one after it. */
    long long skip_at, skip_gap;
} sd_drafter_schedule;

void sd_drafter_schedule_reset(sd_drafter_schedule* schedule);

/* Start a session with the state of an earlier one. */
void sd_drafter_schedule_start(sd_drafter_schedule* schedule);

/* Carry over from another load what does not depend on it: what the drafter has missed, and its reading. */
void sd_drafter_schedule_carry(sd_drafter_schedule* schedule, const sd_drafter_schedule* from);

/* Add n_tokens of a sequence's prompt that the drafter has not read. */
void sd_drafter_schedule_misses(sd_drafter_schedule* schedule, double n_tokens);

/* Will the next proposal take longer than usual, because the drafter must read what it missed? */
int sd_drafter_schedule_away(const sd_drafter_schedule* schedule);

/* Is the drafter skipped in this round, to measure one without it? is_seen: such a round has been measured;
 * is_close: drafting hardly matters. */
int sd_drafter_schedule_skips(sd_drafter_schedule* schedule, int is_seen, int is_close);

/* Has the drafter lost too much, whatever is expected? */
int sd_drafter_schedule_has_lost(const sd_drafter_schedule* schedule);

/* Pause the drafter; a proposal costs the time of `cost` tokens of plain decoding. */
void sd_drafter_schedule_pause(sd_drafter_schedule* schedule, double cost);

/* Does the drafter make more draft tokens than pay in this round? */
int sd_drafter_schedule_explores(sd_drafter_schedule* schedule);

/* End a round without the drafter, in which each sequence grew by n_tokens. Returns 1 if a trial follows,
 * else 0. */
int sd_drafter_schedule_waited(sd_drafter_schedule* schedule, double n_tokens);

/* End a round with the drafter, for all sequences or some (of_all), which lost `lost` tokens per sequence
 * against decoding without it. Catching up took the time of `caught_up` tokens. */
void sd_drafter_schedule_drafted(sd_drafter_schedule* schedule, int of_all, double lost, double caught_up);
