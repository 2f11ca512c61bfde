/* When a drafter is tried although it does not seem to pay, and left out although it does.
 *
 * A drafter that does not pay rests, each time for longer, and is then tried again for a few rounds. One that
 * pays is left out of a round now and then, and now and then makes more guesses than pay, so that a change is
 * seen. A drafter that has rested has to read what it has missed before it is tried, of a text that begins
 * meanwhile the prompt too: for that a share of the time is saved up. It is rather tried where a text begins.
 *
 * Plain numbers: it may be copied, and kept from one session to the next. */
#pragma once

typedef struct sd_drafter_schedule {
    long long n_rounds; /* rounds so far */
    long long idle;     /* rounds since the last one in which the drafter was asked */
    /* Tokens behind decoding without the drafter since the last time level with it; of a sequence. */
    double loss;
    double won;        /* tokens ahead of it since the last rest; of a sequence */
    double pause_left; /* tokens of a sequence still to come without the drafter */
    double pause;      /* length of the next rest, in costs of a proposal */
    /* What a proposal cost when the last rest began, in tokens of plain decoding, within bounds. */
    double cost;
    double paused_for; /* tokens of a sequence since the last rest began, of that rest */
    /* Tokens of a sequence that the drafter has not read: it has to before it drafts. */
    double missed;
    /* What reading one of them takes, in tokens of plain decoding; 0: not known. */
    double catch_up_cost;
    double budget; /* tokens of plain decoding that this may cost now */
    /* Rounds of a trial still to come, which draft even if no gain is expected. */
    int trial_left;
    /* Round of the next exploration, and the gap to the one after it. */
    long long explore_at, explore_gap;
    /* Round in which the drafter is left out next though it pays, and the gap to the one after it. */
    long long skip_at, skip_gap;
} sd_drafter_schedule;

void sd_drafter_schedule_reset(sd_drafter_schedule* schedule);

/* A session begins with what an earlier one has learned. */
void sd_drafter_schedule_start(sd_drafter_schedule* schedule);

/* The text of a sequence has n_tokens more that the drafter has not read: it was not told of the prompt. */
void sd_drafter_schedule_misses(sd_drafter_schedule* schedule, double n_tokens);

/* Has the drafter been away for so long that its next proposal takes longer than usual? It has to read what
 * it missed. */
int sd_drafter_schedule_away(const sd_drafter_schedule* schedule);

/* Is the drafter left out of this round, to see what rounds take without it? is_seen: such a round has been
 * measured; is_close: it hardly matters whether the drafter drafts. */
int sd_drafter_schedule_skips(sd_drafter_schedule* schedule, int is_seen, int is_close);

/* Has the drafter lost so much that it does not pay, whatever is expected? */
int sd_drafter_schedule_has_lost(const sd_drafter_schedule* schedule);

/* The drafter does not pay, and a proposal costs the time of `cost` tokens of plain decoding: a rest
 * begins. */
void sd_drafter_schedule_pause(sd_drafter_schedule* schedule, double cost);

/* Does the drafter make more guesses than pay in this round? */
int sd_drafter_schedule_explores(sd_drafter_schedule* schedule);

/* The round is over, and the drafter was not asked; each sequence has n_tokens more. Returns 1 if a trial
 * follows, else 0. */
int sd_drafter_schedule_waited(sd_drafter_schedule* schedule, double n_tokens);

/* The round is over, and put each sequence `lost` tokens behind decoding without the drafter. Reading what
 * the drafter had missed took the time of `caught_up` tokens. */
void sd_drafter_schedule_drafted(sd_drafter_schedule* schedule, double lost, double caught_up);
