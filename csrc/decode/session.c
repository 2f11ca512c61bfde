#include "session.h"

#include "clock.h"
#include "interrupt.h"
#include "session_state.h"

/* Most forced tokens of a round where it is not known whether any text has a form: rows of the target that
 * each sequence has room for. */
#define FORCED_OF_MIXED 8

/* Records that a call may return, where one round has fewer. */
#define RECORDS 64

#define MAX_SLOTS (1 << 20)

static void lay_out(sd_session* s) {
    sd_arena* arena = &s->arena;
    size_t n = (size_t)s->n_sequences, nodes = (size_t)s->max_nodes;
    size_t n_vocab = (size_t)s->options.target->config.n_vocab;
    int dense = s->drafter != NULL && !s->drafter->points;
    const sd_model* encoder = s->options.target->encoder;
    s->sequences = sd_arena_take(arena, n, sizeof *s->sequences);
    s->caches = sd_arena_take(arena, n, sizeof *s->caches);
    s->prefills = sd_arena_take(arena, n, sizeof *s->prefills);
    s->proposals = sd_arena_take(arena, n, sizeof *s->proposals);
    s->joints = sd_arena_take(arena, n, sizeof *s->joints);
    s->branches = sd_arena_take(arena, n, sizeof *s->branches);
    s->row_tokens = sd_arena_take(arena, n, (size_t)s->max_rows * sizeof *s->row_tokens);
    s->row_parents = sd_arena_take(arena, n, (size_t)s->max_rows * sizeof *s->row_parents);
    sd_riding_take(&s->riding, arena, s->n_sequences);
    s->rides = sd_arena_take(arena, n, sizeof *s->rides);
    s->records = sd_arena_take(arena, (size_t)s->max_records, sizeof *s->records);
    s->kept = sd_arena_take(arena, nodes, sizeof *s->kept);
    sd_verifier_take(&s->verifier, arena, s->max_nodes, s->n_text);
    for (size_t i = 0; i < n; i++) {
        int32_t* text = sd_arena_take(arena, (size_t)s->n_text, sizeof *text);
        int32_t* source =
            encoder ? sd_arena_take(arena, (size_t)encoder->config.n_ctx, sizeof *source) : NULL;
        sd_distribution* drawn_from = sd_arena_take(arena, nodes, sizeof *drawn_from);
        int32_t* depths = sd_arena_take(arena, nodes, sizeof *depths);
        double* path_prob = sd_arena_take(arena, nodes, sizeof *path_prob);
        double* confidences = sd_arena_take(arena, nodes, sizeof *confidences);
        size_t drawn = dense ? (size_t)s->options.gamma + 1 : 0;
        double* weights = sd_arena_take(arena, drawn * n_vocab, sizeof *weights);
        int32_t* own_parents = sd_arena_take(arena, nodes, sizeof *own_parents);
        if (arena->base == NULL) continue;
        s->sequences[i].text = text;
        s->sequences[i].source = source;
        s->joints[i] =
            (sd_joint){.parents = own_parents, .drawn_from = drawn_from, .weights = dense ? weights : NULL};
        s->proposals[i].depths = depths;
        s->proposals[i].path_prob = path_prob;
        s->proposals[i].confidences = confidences;
    }
    for (int i = 0; i < s->max_records; i++) {
        int32_t* tokens = sd_arena_take(arena, nodes, sizeof *tokens);
        int32_t* parents = sd_arena_take(arena, nodes, sizeof *parents);
        int32_t* path = sd_arena_take(arena, nodes, sizeof *path);
        double* betas = sd_arena_take(arena, nodes, sizeof *betas);
        int32_t* node_rows = sd_arena_take(arena, nodes, sizeof *node_rows);
        int32_t* origins = sd_arena_take(arena, nodes, sizeof *origins);
        sd_token_laws laws = sd_token_laws_take(arena, s->max_nodes, s->n_top);
        if (arena->base == NULL) continue;
        s->records[i].node_rows = node_rows;
        s->records[i].origins = origins;
        s->records[i].laws = laws;
        s->records[i].tree = (sd_tree){.tokens = tokens, .parents = parents};
        s->records[i].verdict = (sd_verdict){.path = path, .betas = betas};
    }
}

sd_status sd_session_check(const sd_session_options* o) {
    const sd_config* c = &o->target->config;
    if (o->n_slots < 1 || o->n_slots > MAX_SLOTS)
        return sd_fail(SD_ERR_VALUE, "n_slots is %d, expected 1 to %d", o->n_slots, MAX_SLOTS);
    sd_status status = sd_gamma_check(o->gamma);
    if (status != SD_OK) return status;
    if (o->n_text < 1 || o->n_text > c->n_ctx)
        return sd_fail(SD_ERR_VALUE, "n_text is %d, expected 1 to %d", o->n_text, c->n_ctx);
    if (o->n_top < 0 || o->n_top > c->n_vocab)
        return sd_fail(SD_ERR_VALUE, "n_top is %d, expected 0 to %d", o->n_top, c->n_vocab);
    if (o->node_budget != 0 && o->node_budget < o->n_slots)
        return sd_fail(SD_ERR_VALUE, "node_budget is %d, expected at least a row for each of %d sequences",
                       o->node_budget, o->n_slots);
    return o->settings ? sd_settings_check(o->settings, c->n_vocab) : SD_OK;
}

/* Tokens that the text of a prompt may have. */
static int text_room(const sd_session_options* o, const sd_prompt* prompt) {
    long wanted = (long)prompt->n + prompt->settings->max_new_tokens;
    return wanted < o->target->config.n_ctx ? (int)wanted : o->target->config.n_ctx;
}

static int couples(const sd_settings* settings) {
    return settings->verify.rule == SD_RULE_COUPLED && sd_settings_draws(settings);
}

sd_drafting sd_session_drafting(const sd_session_options* o) {
    const sd_settings* all = o->settings;
    int forced = all == NULL ? FORCED_OF_MIXED : o->constrained ? SD_MAX_FORCED : 0;
    return (sd_drafting){.n_vocab = o->target->config.n_vocab,
                         .draws = all == NULL || sd_settings_draws(all),
                         .couples = all == NULL || couples(all),
                         .gamma = o->gamma,
                         .max_forced = forced,
                         .n_sequences = o->n_slots,
                         .n_text = o->n_text,
                         .n_threads = o->n_threads,
                         .has_sources = o->target->encoder != NULL,
                         .reading = sd_reading_of(&o->target->config)};
}

sd_status sd_session_check_settings(const sd_session* s, const sd_settings* settings) {
    if (settings->laws.n_top > s->n_top)
        return sd_fail(SD_ERR_VALUE, "n_top is %d, expected at most the session's, %d", settings->laws.n_top,
                       s->n_top);
    if (s->drafter == NULL || !sd_settings_drafted(settings)) return SD_OK;
    int draws = sd_settings_draws(settings);
    if (draws > s->draws || couples(settings) > s->couples)
        return sd_fail(SD_ERR_SETTING,
                       "the settings %s, expected a session made for any settings: its own do not",
                       draws > s->draws ? "let the draft draw" : "couple draws");
    const sd_verifier_options* verify = &settings->verify;
    return sd_drafter_check_rule(s->drafter, sd_rule_at(verify->rule, verify->sampling->temperature), draws,
                                 settings->drafters, "verify");
}

/* Is the drafter told of texts that begin now when it drafts next? */
static int rests(const sd_session* s) {
    return s->extends && s->options.adaptive_gamma && sd_adaptive_gamma_rests(s->options.adaptive_gamma);
}

static void begin(sd_session* s, int i, const sd_prompt* prompt) {
    sd_sequence* q = &s->sequences[i];
    sd_sequence_begin(q, prompt, text_room(&s->options, prompt));
    const sd_verifier_options* verify = &q->settings.verify;
    if (verify->constraint != NULL) sd_constraint_restart(verify->constraint);
    if (verify->transform.states != NULL) sd_state_tree_restart(verify->transform.states);
    q->draft_late = q->source == NULL && sd_sequence_is_drafted(q) && rests(s);
    /* The last token of the prompt is the root of the first round. Where nothing is drafted that round
     * computes no other row, so the root is read with the prompt, unless prompts have bits of their own. */
    int alone = (s->drafter == NULL || q->draft_late) && verify->constraint == NULL;
    int with_root = alone && !sd_prompts_apart(s->options.target);
    s->prefills[i] = (sd_prefill){.text = q->text,
                                  .n = q->n_text - 1,
                                  .n_read = -1,
                                  .order = s->n_begun++,
                                  .failure = &q->failure,
                                  .with_root = with_root,
                                  .source = q->source,
                                  .n_source = q->n_source};
}

/* Tell gamma="auto" of the new prompts that the drafter has not been told of. */
static void count_missed(sd_session* s) {
    int n_running = 0;
    if (s->n_missed == 0) return;
    for (int i = 0; i < s->n_sequences; i++)
        n_running += s->sequences[i].n_text > 0 && !s->sequences[i].finished;
    if (n_running > 0) sd_adaptive_gamma_misses(s->options.adaptive_gamma, (double)s->n_missed / n_running);
    s->n_missed = 0;
}

/* A slot that no prompt has: nothing is to be read, and no round is taken. */
static void leave_empty(sd_sequence* q) { q->finished = q->draft_begun = q->ready = 1; }

/* The caches of the slots and the scratch of forwards, those of the drafter too, unless it rests: then these
 * are made when it is told of a text. */
static sd_status make_room(sd_session* s) {
    const sd_session_options* o = &s->options;
    sd_taps taps = {0};
    sd_status status = s->drafter ? sd_drafter_add_taps(s->drafter, &o->target->config, &taps) : SD_OK;
    if (status == SD_OK && s->drafter && !rests(s)) status = sd_drafter_make_room(s->drafter);
    for (int i = 0; i < s->n_sequences && status == SD_OK; i++)
        status = sd_cache_create(&s->caches[i], o->target, s->n_text + s->max_rows, s->max_rows, s->max_rows,
                                 &taps);
    if (status != SD_OK) return status;
    int rows = s->n_sequences * s->max_rows, slice = sd_prompt_slice(o->target);
    if (o->node_budget > 0 && o->node_budget < rows) rows = o->node_budget;
    int n_logits = rows / (1 + s->riding.n) + s->n_sequences * s->riding.n;
    status = sd_workspace_create(&s->workspace, o->target, o->n_threads, rows > slice ? rows : slice,
                                 n_logits, s->n_text + s->max_rows);
    s->workspace.name = "the target";
    return status;
}

sd_status sd_session_create(const sd_session_options* options, sd_drafter* drafter, sd_session** out) {
    sd_session* s = NULL;
    sd_status status = sd_session_check(options);
    if (status == SD_OK && (s = sd_alloc(sizeof *s)) == NULL) status = SD_ERR_MEMORY;
    if (status != SD_OK) goto fail;
    const sd_drafting drafting = sd_session_drafting(options);
    s->drafter = drafter; /* from here on it is freed with the session */
    s->options = *options;
    s->n_sequences = drafting.n_sequences;
    s->n_text = drafting.n_text;
    s->draws = drafting.draws;
    s->couples = drafting.couples;
    s->n_top = options->settings ? options->settings->laws.n_top : options->n_top;
    if (options->settings && (status = sd_session_check_settings(s, options->settings)) != SD_OK) goto fail;
    s->options.settings = NULL; /* it was borrowed */
    status =
        sd_riding_begin(&s->riding, drafter, &options->target->config, s->n_sequences, options->node_budget);
    if (status != SD_OK) goto fail;
    s->max_forced = drafting.max_forced;
    s->extends = drafter != NULL && sd_drafter_reads_text(drafter);
    s->max_nodes = s->riding.max_nodes = (drafter ? options->gamma + 1 : 1) + s->max_forced;
    s->max_rows = s->max_nodes * (1 + s->riding.n);
    /* lists of top tokens are long */
    s->max_records = s->n_sequences > RECORDS || s->n_top > 0 ? s->n_sequences : RECORDS;
    s->verifier = (sd_verifier){.n_vocab = options->target->config.n_vocab};
    if (options->adaptive_gamma)
        sd_adaptive_gamma_start(options->adaptive_gamma, drafting.reading, s->riding.n);
    if ((status = SD_ARENA_BUILD(&s->arena, lay_out(s))) != SD_OK) goto fail;
    for (int i = 0; i < s->n_sequences; i++) leave_empty(&s->sequences[i]);
    if ((status = make_room(s)) != SD_OK) goto fail;
    *out = s;
    return SD_OK;
fail:
    if (s != NULL)
        sd_session_free(s);
    else if (drafter != NULL)
        drafter->free(drafter);
    return status;
}

void sd_session_free(sd_session* s) {
    if (s == NULL) return;
    if (s->drafter) s->drafter->free(s->drafter);
    for (int i = 0; s->arena.base && i < s->n_sequences; i++) sd_cache_free(&s->caches[i]);
    sd_workspace_free(&s->workspace);
    sd_arena_free(&s->arena);
    sd_free(s);
}

/* Give a drafter the text of a sequence so far; if it will not draft, or the sequence has failed, only the
 * first token, which leaves it nothing to read. If that fails, the sequence ends with its next round. */
static sd_status begin_draft(sd_session* s, int i, sd_drafter* drafter) {
    sd_sequence* q = &s->sequences[i];
    sd_settings settings = q->settings;
    if (drafter != s->drafter &&
        sd_settings_drafted(&settings)) /* it is within the one that they choose from */
        settings.drafters = SD_EVERY_DRAFTER;
    if (q->finished || q->failure.status != SD_OK) settings.drafters = 0;
    q->n_told = q->n_text;
    const sd_prompt prompt = {.tokens = q->text,
                              .n = sd_settings_drafted(&settings) ? q->n_text : 1,
                              .stream = q->stream,
                              .settings = &settings,
                              .source = q->source,
                              .n_source = q->n_source,
                              .failure = &q->failure,
                              .cache = &s->caches[i]};
    sd_status status = sd_drafter_make_room(drafter);
    if (status == SD_OK) status = sd_drafter_begin(drafter, i, &prompt);
    if (status == SD_ERR_CALLBACK) {
        sd_failure_note(&q->failure, status);
        status = SD_OK;
    }
    return status == SD_OK ? sd_interrupted() : status;
}

/* Tell the drafter of the prompts that the target has read, so that it may read them together. *n: how many
 * it has been told of and has not read, as far as is known. */
static sd_status begin_drafts(sd_session* s, int* n) {
    *n = 0;
    for (int i = 0; i < s->n_sequences; i++) {
        sd_sequence* q = &s->sequences[i];
        if (!q->draft_begun && !q->draft_late && sd_prefill_done(&s->prefills[i])) {
            sd_status status = begin_draft(s, i, s->drafter);
            if (status != SD_OK) return status;
            q->draft_begun = 1;
        }
        *n += q->draft_begun && !q->ready;
    }
    return SD_OK;
}

/* Sequences whose prompts are in the target and, with a drafter that is not late, in that too, may have
 * rounds. draft_read: the drafter has read all that it has been told of. */
static void make_ready(sd_session* s, int draft_read) {
    for (int i = 0; i < s->n_sequences; i++) {
        sd_sequence* q = &s->sequences[i];
        int waits = s->drafter != NULL && !q->draft_late;
        if (waits ? draft_read && q->draft_begun : sd_prefill_done(&s->prefills[i])) q->ready = 1;
    }
}

/* One slice of the drafter's reading, if it has any; *read says whether it had. */
static sd_status read_drafts(sd_session* s, int* read) {
    int n, done;
    sd_status status = begin_drafts(s, &n);
    *read = n > 0;
    if (status != SD_OK || n == 0) return status;
    status = sd_drafter_read(s->drafter, &done);
    if (status == SD_OK && done) make_ready(s, 1);
    return status;
}

sd_status sd_session_prefill(sd_session* s, int* done) {
    int read = 0, n_left = 0;
    *done = 0;
    if (s->failed) return sd_session_refuse(s);
    count_missed(s);
    sd_status status = s->drafter ? read_drafts(s, &read) : SD_OK;
    if (status != SD_OK) return status;
    if (!read) {
        status = sd_prefill_slice(&s->workspace, s->caches, s->prefills, s->n_sequences);
        if (status != SD_OK) return status;
        make_ready(s, 0);
    }
    for (int i = 0; i < s->n_sequences; i++) n_left += !s->sequences[i].ready;
    *done = n_left == 0;
    return SD_OK;
}

/* Has the drafter to be told of the text of a sequence, or to read it, before it may draft for that? */
static int is_unread(const sd_sequence* q) { return q->draft_late && q->ready && !q->finished; }

sd_status sd_session_wake(sd_session* s, int* awake) {
    int n = 0;
    sd_status status = SD_OK;
    double begun = sd_now();
    *awake = 1;
    for (int i = 0; i < s->n_sequences; i++) {
        const sd_sequence* q = &s->sequences[i];
        n += is_unread(q) && q->n_text + 1 < q->max_text; /* there is something to guess */
    }
    if (n == 0) return SD_OK;
    for (int i = 0; i < s->n_sequences && status == SD_OK; i++) {
        sd_sequence* q = &s->sequences[i];
        if (!is_unread(q) || q->draft_begun) continue;
        status = begin_draft(s, i, s->drafter);
        q->draft_begun = status == SD_OK;
    }
    if (status == SD_OK) status = sd_drafter_read(s->drafter, awake);
    for (int i = 0; i < s->n_sequences && status == SD_OK && *awake; i++) {
        sd_sequence* q = &s->sequences[i];
        if (!is_unread(q)) continue;
        q->draft_late = 0;
        if (q->n_text > q->n_told) status = sd_drafter_commit(s->drafter, i, q->text, q->n_text);
        if (status != SD_ERR_CALLBACK) continue;
        sd_failure_note(&q->failure, status);
        status = SD_OK;
    }
    s->waking_s += sd_now() - begun;
    return status;
}

sd_status sd_session_check_read(const sd_session* s) {
    for (int i = 0; i < s->n_sequences; i++) {
        const sd_failure* failure = &s->sequences[i].failure;
        if (failure->status == SD_ERR_OVERFLOW && !s->sequences[i].finished)
            return sd_fail(failure->status, "%s", failure->message);
    }
    return SD_OK;
}

int sd_session_is_ready(const sd_session* s, int sequence) { return s->sequences[sequence].ready; }

sd_drafter* sd_session_drafter(const sd_session* s) { return s->drafter; }

sd_status sd_session_tell(sd_session* s, sd_drafter* drafter) {
    if (s->failed) return sd_session_refuse(s);
    for (int i = 0; i < s->n_sequences; i++) {
        if (!s->sequences[i].draft_begun || s->sequences[i].finished) continue;
        sd_status status = begin_draft(s, i, drafter);
        if (status != SD_OK) return status;
    }
    for (int i = 0; i < s->n_sequences; i++)
        s->sequences[i].ready &= s->sequences[i].finished || !s->sequences[i].draft_begun;
    return SD_OK;
}

static sd_status check_sequence(const sd_session* s, int sequence) {
    if (sequence >= 0 && sequence < s->n_sequences) return SD_OK;
    return sd_fail(SD_ERR_VALUE, "sequence is %d, expected 0 to %d", sequence, s->n_sequences - 1);
}

static sd_status fail_model(void) {
    return sd_fail(SD_ERR_VALUE, "the model is neither the target nor a model that drafts");
}

sd_status sd_session_begin_with(sd_session* s, int sequence, const sd_cache* known, int* n) {
    sd_status status = check_sequence(s, sequence);
    if (status != SD_OK) return status;
    const sd_prefill* prefill = &s->prefills[sequence];
    if (prefill->n_read >= 0) return sd_fail(SD_ERR_STATE, "sequence %d has begun to be read", sequence);
    int is_own = known->model == s->caches[sequence].model;
    if (sd_drafter_cache(s->drafter, sequence, known->model) == NULL && !is_own) return fail_model();
    *n = 0;
    int n_source = known->model->encoder ? prefill->n_source : 0;
    const sd_prompt prompt = {
        .tokens = prefill->text, .n = prefill->n, .source = prefill->source, .n_source = prefill->n_source};
    if (s->drafter != NULL) status = sd_drafter_begin_with(s->drafter, sequence, known, &prompt, n);
    if (status != SD_OK) return status;
    if (is_own && sd_encoded_is_of(known->encoded, prefill->source, n_source)) {
        sd_cache_attend(&s->caches[sequence], known->encoded);
        *n = sd_cache_begin_with(&s->caches[sequence], known, prefill->text, prefill->n);
    }
    return SD_OK;
}

const sd_cache* sd_session_cache(const sd_session* s, int sequence, const sd_model* model) {
    if (check_sequence(s, sequence) != SD_OK) return NULL;
    if (model == s->caches[sequence].model) return &s->caches[sequence];
    const sd_cache* cache = sd_drafter_cache(s->drafter, sequence, model);
    if (cache == NULL) fail_model();
    return cache;
}

sd_status sd_session_finish(sd_session* s, int sequence) {
    sd_status status = check_sequence(s, sequence);
    if (status != SD_OK) return status;
    sd_sequence* q = &s->sequences[sequence];
    int reads = q->draft_begun && (!q->ready || q->draft_late);
    q->finished = 1;
    if (reads && s->drafter) status = begin_draft(s, sequence, s->drafter); /* it need not read on */
    s->prefills[sequence] = (sd_prefill){0};
    q->draft_begun = q->ready = 1;
    return status;
}

sd_status sd_session_admit(sd_session* s, int sequence, const sd_prompt* prompt) {
    sd_status status = check_sequence(s, sequence);
    if (status != SD_OK) return status;
    if (!s->sequences[sequence].finished) return sd_fail(SD_ERR_STATE, "sequence %d has not ended", sequence);
    if ((status = sd_prompt_check(prompt, s->options.target)) != SD_OK) return status;
    int n_text = text_room(&s->options, prompt);
    if (n_text > s->n_text)
        return sd_fail(SD_ERR_CONTEXT, "the text may have %d tokens, expected at most n_text, %d", n_text,
                       s->n_text);
    if ((status = sd_session_check_settings(s, prompt->settings)) != SD_OK) return status;
    const sd_model* model = prompt->settings->model ? prompt->settings->model : s->options.target;
    if ((status = sd_workspace_admit(&s->workspace, model)) != SD_OK) return status;
    sd_cache_belong(&s->caches[sequence], model);
    begin(s, sequence, prompt);
    if (s->sequences[sequence].draft_late) s->n_missed += s->sequences[sequence].n_text;
    return SD_OK;
}
