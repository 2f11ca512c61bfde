/* Reading of prompts: with the target, then with the drafter, which may do so lazily. */
#include "clock.h"
#include "interrupt.h"
#include "session_state.h"

sd_status sd_session_refuse(sd_session* s) {
    sd_status status = s->deferred.status;
    s->deferred.status = SD_OK;
    if (status != SD_OK) return sd_fail(status, "%s", s->deferred.message);
    return sd_fail(SD_ERR_STATE, s->failed ? "a round has failed" : "the prompts have not been read");
}

int sd_session_draft_paused(const sd_session* s) {
    return s->reads_text && s->options.adaptive_gamma && sd_adaptive_gamma_paused(s->options.adaptive_gamma);
}

/* Note a failure of one sequence, which ends with its next round. */
static sd_status note(sd_sequence* q, sd_status status) {
    if (status != SD_ERR_CALLBACK) return status;
    sd_failure_note(&q->failure, status);
    return SD_OK;
}

sd_status sd_session_begin_draft(sd_session* s, int i, sd_drafter* drafter) {
    sd_sequence* q = &s->sequences[i];
    sd_settings settings = q->settings;
    if (drafter != s->drafter && sd_settings_drafted(&settings))
        settings.drafters = SD_EVERY_DRAFTER; /* it is within the ensemble that they select from */
    if (q->finished || q->failure.status != SD_OK) settings.drafters = 0;
    q->n_draft_begun = q->n_text;
    const sd_prompt prompt = {.tokens = q->text,
                              .n = sd_settings_drafted(&settings) ? q->n_text : 1,
                              .stream = q->stream,
                              .settings = &settings,
                              .source = q->source,
                              .n_source = q->n_source,
                              .failure = &q->failure,
                              .cache = &s->caches[i]};
    sd_status status = sd_drafter_reserve(drafter);
    if (status == SD_OK) status = note(q, sd_drafter_begin(drafter, i, &prompt));
    return status == SD_OK ? sd_interrupted() : status;
}

/* Begin in the drafter all prompts that the target has read, so that it reads them together. *n: prompts that
 * it has begun and not yet read. */
static sd_status begin_drafts(sd_session* s, int* n) {
    *n = 0;
    for (int i = 0; i < s->shape.n_sequences; i++) {
        sd_sequence* q = &s->sequences[i];
        if (!q->draft_begun && !q->draft_lazy && sd_prefill_done(&s->prefills[i])) {
            sd_status status = sd_session_begin_draft(s, i, s->drafter);
            if (status != SD_OK) return status;
            q->draft_begun = 1;
        }
        *n += q->draft_begun && !q->ready;
    }
    return SD_OK;
}

/* Let sequences take rounds whose prompts were read by the target and, unless it is lazy, by the drafter.
 * draft_read: the drafter has read all that it has begun. */
static void make_ready(sd_session* s, int draft_read) {
    for (int i = 0; i < s->shape.n_sequences; i++) {
        sd_sequence* q = &s->sequences[i];
        int waits = s->drafter != NULL && !q->draft_lazy;
        if (waits ? draft_read && q->draft_begun : sd_prefill_done(&s->prefills[i])) q->ready = 1;
    }
}

/* Let the drafter read one slice; *read: there was something to read. */
static sd_status read_drafts(sd_session* s, int* read) {
    int n, done;
    sd_status status = begin_drafts(s, &n);
    *read = n > 0;
    if (status != SD_OK || n == 0) return status;
    status = sd_drafter_read(s->drafter, &done);
    if (status == SD_OK && done) make_ready(s, 1);
    return status;
}

/* Count the new prompts that the drafter has not begun, for gamma="auto". */
static void count_missed(sd_session* s) {
    int n_running = 0;
    if (s->n_missed == 0) return;
    for (int i = 0; i < s->shape.n_sequences; i++)
        n_running += s->sequences[i].n_text > 0 && !s->sequences[i].finished;
    sd_drafter_schedule* schedule = &s->options.adaptive_gamma->drafter.schedule;
    if (n_running > 0) sd_drafter_schedule_misses(schedule, (double)s->n_missed / n_running);
    s->n_missed = 0;
}

sd_status sd_session_prefill(sd_session* s, int* done) {
    int read = 0, n_left = 0;
    *done = 0;
    if (s->failed) return sd_session_refuse(s);
    count_missed(s);
    sd_status status = s->drafter ? read_drafts(s, &read) : SD_OK;
    if (status != SD_OK) return status;
    if (!read) {
        status = sd_prefill_slice(&s->workspace, s->caches, s->prefills, s->shape.n_sequences);
        if (status != SD_OK) return status;
        make_ready(s, 0);
    }
    for (int i = 0; i < s->shape.n_sequences; i++) n_left += !s->sequences[i].ready;
    *done = n_left == 0;
    return SD_OK;
}

/* Must the drafter begin or read the text of a sequence before it may draft for it? */
static int is_unread(const sd_sequence* q) { return q->draft_lazy && q->ready && !q->finished; }

sd_status sd_session_catch_up(sd_session* s, int* ready) {
    int n = 0;
    sd_status status = SD_OK;
    double begun = sd_now();
    *ready = 1;
    for (int i = 0; i < s->shape.n_sequences; i++) {
        const sd_sequence* q = &s->sequences[i];
        n += is_unread(q) && q->n_text + 1 < q->max_text; /* it has tokens left to draft */
    }
    if (n == 0) return SD_OK;
    for (int i = 0; i < s->shape.n_sequences && status == SD_OK; i++) {
        sd_sequence* q = &s->sequences[i];
        if (!is_unread(q) || q->draft_begun) continue;
        status = sd_session_begin_draft(s, i, s->drafter);
        q->draft_begun = status == SD_OK;
    }
    if (status == SD_OK) status = sd_drafter_read(s->drafter, ready);
    for (int i = 0; i < s->shape.n_sequences && status == SD_OK && *ready; i++) {
        sd_sequence* q = &s->sequences[i];
        if (!is_unread(q)) continue;
        q->draft_lazy = 0;
        if (q->n_text > q->n_draft_begun)
            status = note(q, sd_drafter_commit(s->drafter, i, q->text, q->n_text));
    }
    s->catch_up_s += sd_now() - begun;
    return status;
}

sd_status sd_session_begin_drafter(sd_session* s, sd_drafter* drafter) {
    if (s->failed) return sd_session_refuse(s);
    for (int i = 0; i < s->shape.n_sequences; i++) {
        if (!s->sequences[i].draft_begun || s->sequences[i].finished) continue;
        sd_status status = sd_session_begin_draft(s, i, drafter);
        if (status != SD_OK) return status;
    }
    for (int i = 0; i < s->shape.n_sequences; i++)
        s->sequences[i].ready &= s->sequences[i].finished || !s->sequences[i].draft_begun;
    return SD_OK;
}

int sd_session_is_ready(const sd_session* s, int sequence) { return s->sequences[sequence].ready; }

sd_drafter* sd_session_drafter(const sd_session* s) { return s->drafter; }
