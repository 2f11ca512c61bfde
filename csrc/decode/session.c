#include "session.h"

#include "session_state.h"

/* Most forced tokens per round and sequence where constraints are possible but not known. */
#define FORCED_OF_MIXED 8

/* Most records of a call, if one round has fewer. */
#define RECORDS 64

#define MAX_SLOTS (1 << 20)

static void lay_out_sequence(sd_session* s, int i) {
    sd_arena* arena = &s->arena;
    size_t nodes = (size_t)s->max_nodes;
    const sd_model* encoder = s->options.target->encoder;
    int32_t* text = sd_arena_take(arena, (size_t)s->shape.n_text, sizeof *text);
    int32_t* source = encoder ? sd_arena_take(arena, (size_t)encoder->config.n_ctx, sizeof *source) : NULL;
    sd_distribution* drawn_from = sd_arena_take(arena, nodes, sizeof *drawn_from);
    int32_t* depths = sd_arena_take(arena, nodes, sizeof *depths);
    double* path_prob = sd_arena_take(arena, nodes, sizeof *path_prob);
    double* confidences = sd_arena_take(arena, nodes, sizeof *confidences);
    int32_t* parents = sd_arena_take(arena, nodes, sizeof *parents);
    if (arena->base == NULL) return;
    s->sequences[i].text = text;
    s->sequences[i].source = source;
    s->round.joints[i] = (sd_joint){.parents = parents, .drawn_from = drawn_from};
    s->round.proposals[i].depths = depths;
    s->round.proposals[i].path_prob = path_prob;
    s->round.proposals[i].confidences = confidences;
}

/* The distributions of draft tokens, after all else: their pages are made when a draft token is drawn. */
static void lay_out_weights(sd_session* s) {
    if (s->drafter == NULL || s->drafter->points) return;
    size_t n = ((size_t)s->options.gamma + 1) * (size_t)s->shape.n_vocab;
    for (int i = 0; i < s->shape.n_sequences; i++) {
        double* weights = sd_arena_take(&s->arena, n, sizeof *weights);
        if (s->arena.base != NULL) s->round.joints[i].weights = weights;
    }
}

static void lay_out_record(sd_session* s, int i) {
    sd_arena* arena = &s->arena;
    size_t nodes = (size_t)s->max_nodes;
    int32_t* tokens = sd_arena_take(arena, nodes, sizeof *tokens);
    int32_t* parents = sd_arena_take(arena, nodes, sizeof *parents);
    int32_t* path = sd_arena_take(arena, nodes, sizeof *path);
    double* betas = sd_arena_take(arena, nodes, sizeof *betas);
    int32_t* node_rows = sd_arena_take(arena, nodes, sizeof *node_rows);
    int32_t* origins = sd_arena_take(arena, nodes, sizeof *origins);
    sd_logprobs logprobs = sd_logprobs_take(arena, s->max_nodes, s->options.n_top);
    if (arena->base == NULL) return;
    s->records[i] = (sd_record){.node_rows = node_rows,
                                .origins = origins,
                                .logprobs = logprobs,
                                .tree = {.tokens = tokens, .parents = parents},
                                .verdict = {.path = path, .betas = betas}};
}

static void lay_out(sd_session* s) {
    sd_arena* arena = &s->arena;
    sd_round* r = &s->round;
    size_t n = (size_t)s->shape.n_sequences;
    s->sequences = sd_arena_take(arena, n, sizeof *s->sequences);
    s->caches = sd_arena_take(arena, n, sizeof *s->caches);
    s->prefills = sd_arena_take(arena, n, sizeof *s->prefills);
    r->proposals = sd_arena_take(arena, n, sizeof *r->proposals);
    r->joints = sd_arena_take(arena, n, sizeof *r->joints);
    r->branches = sd_arena_take(arena, n, sizeof *r->branches);
    r->row_tokens = sd_arena_take(arena, n, (size_t)s->max_rows * sizeof *r->row_tokens);
    r->row_parents = sd_arena_take(arena, n, (size_t)s->max_rows * sizeof *r->row_parents);
    r->scratch = sd_arena_take(arena, (size_t)s->max_nodes, sizeof *r->scratch);
    s->records = sd_arena_take(arena, (size_t)s->max_records, sizeof *s->records);
    sd_extra_take(s);
    r->verified = sd_arena_take(arena, n, sizeof *r->verified);
    s->verifiers = sd_arena_take(arena, (size_t)s->n_verifiers, sizeof *s->verifiers);
    for (int i = 0; i < s->n_verifiers; i++) {
        sd_verifier verifier = {.n_vocab = s->shape.n_vocab};
        sd_verifier_take(&verifier, arena, s->max_nodes, s->shape.n_text);
        if (arena->base != NULL) s->verifiers[i] = verifier;
    }
    for (int i = 0; i < s->shape.n_sequences; i++) lay_out_sequence(s, i);
    for (int i = 0; i < s->max_records; i++) lay_out_record(s, i);
    lay_out_weights(s);
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

/* Most tokens of the text of a prompt. */
static int text_limit(const sd_session_options* o, const sd_prompt* prompt) {
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
                         .expert_reads = sd_expert_reads_of(&o->target->config)};
}

sd_status sd_session_check_settings(const sd_session* s, const sd_settings* settings) {
    if (settings->logprobs.n_top > s->options.n_top)
        return sd_fail(SD_ERR_VALUE, "n_top is %d, expected at most the session's, %d",
                       settings->logprobs.n_top, s->options.n_top);
    if (s->drafter == NULL || !sd_settings_drafted(settings)) return SD_OK;
    int draws = sd_settings_draws(settings);
    if (draws > s->shape.draws || couples(settings) > s->shape.couples)
        return sd_fail(SD_ERR_SETTING, "the settings %s, expected a session created for any settings",
                       draws > s->shape.draws ? "let the draft draw" : "couple draws");
    sd_rule rule;
    return sd_drafter_find_rule(s->drafter, settings, &rule);
}

/* Begin a sequence with checked settings. */
static void begin(sd_session* s, int i, const sd_prompt* prompt) {
    sd_sequence* q = &s->sequences[i];
    sd_sequence_begin(q, prompt, text_limit(&s->options, prompt));
    sd_drafter_find_rule(s->drafter, prompt->settings, &q->settings.verify.rule);
    const sd_verifier_options* verify = &q->settings.verify;
    if (verify->constraint != NULL) sd_constraint_restart(verify->constraint);
    if (verify->transform.states != NULL) sd_state_tree_restart(verify->transform.states);
    q->draft_lazy = q->source == NULL && sd_sequence_is_drafted(q) && sd_session_draft_paused(s);
    /* The last token of the prompt is the root of the first round. Without drafting that round computes no
     * other row, so the root is read with the prompt, unless prefill computes other bits than rows. */
    int alone = (s->drafter == NULL || q->draft_lazy) && verify->constraint == NULL;
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

/* Mark a slot as empty: nothing to read, no rounds. */
static void leave_empty(sd_sequence* q) { q->finished = q->draft_begun = q->ready = 1; }

/* Allocate the caches of the slots and the workspace, also the drafter's, unless it is paused: then they are
 * allocated when it begins a text. */
static sd_status reserve(sd_session* s) {
    const sd_session_options* o = &s->options;
    sd_captures captures = {0};
    sd_status status =
        s->drafter ? sd_drafter_add_captures(s->drafter, &o->target->config, &captures) : SD_OK;
    if (status == SD_OK && s->drafter && !sd_session_draft_paused(s)) status = sd_drafter_reserve(s->drafter);
    for (int i = 0; i < s->shape.n_sequences && status == SD_OK; i++)
        status = sd_cache_create(&s->caches[i], o->target, s->shape.n_text + s->max_rows, s->max_rows,
                                 s->max_rows, &captures);
    if (status != SD_OK) return status;
    int rows = s->shape.n_sequences * s->max_rows;
    if (o->node_budget > 0 && o->node_budget < rows) rows = o->node_budget;
    int n_logits = rows / (1 + s->extra.n) + s->shape.n_sequences * s->extra.n;
    rows = sd_rows_with_prompts(o->target, rows, s->shape.n_sequences, s->shape.n_text);
    status = sd_workspace_create(&s->workspace, o->target, o->n_threads, rows, n_logits,
                                 s->shape.n_text + s->max_rows);
    s->workspace.name = "the target";
    return status;
}

sd_status sd_session_create(const sd_session_options* options, sd_drafter* drafter, sd_session** out) {
    sd_session* s = NULL;
    sd_status status = sd_session_check(options);
    if (status == SD_OK && (s = sd_alloc(sizeof *s)) == NULL) status = SD_ERR_MEMORY;
    if (status != SD_OK) goto fail;
    s->drafter = drafter; /* from now on freed with the session */
    s->options = *options;
    s->shape = sd_session_drafting(options);
    if (options->settings) s->options.n_top = options->settings->logprobs.n_top;
    if (options->settings && (status = sd_session_check_settings(s, options->settings)) != SD_OK) goto fail;
    s->options.settings = NULL; /* was borrowed */
    int n_slots = s->shape.n_sequences;
    status = sd_extra_begin(s);
    if (status != SD_OK) goto fail;
    s->reads_text = drafter != NULL && sd_drafter_reads_text(drafter);
    s->max_nodes = (drafter ? options->gamma + 1 : 1) + s->shape.max_forced;
    s->max_rows = s->max_nodes * (1 + s->extra.n);
    /* lists of top tokens are long */
    s->max_records = n_slots > RECORDS || s->options.n_top > 0 ? n_slots : RECORDS;
    s->n_verifiers = options->n_threads < n_slots ? options->n_threads : n_slots;
    if (options->adaptive_gamma)
        sd_adaptive_gamma_start(options->adaptive_gamma, s->shape.expert_reads, s->extra.n, n_slots);
    if ((status = SD_ARENA_BUILD(&s->arena, lay_out(s))) != SD_OK) goto fail;
    for (int i = 0; i < n_slots; i++) leave_empty(&s->sequences[i]);
    if ((status = reserve(s)) != SD_OK) goto fail;
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
    for (int i = 0; s->arena.base && i < s->shape.n_sequences; i++) sd_cache_free(&s->caches[i]);
    sd_workspace_free(&s->workspace);
    sd_arena_free(&s->arena);
    sd_free(s);
}

static sd_status check_sequence(const sd_session* s, int sequence) {
    if (sequence >= 0 && sequence < s->shape.n_sequences) return SD_OK;
    return sd_fail(SD_ERR_VALUE, "sequence is %d, expected 0 to %d", sequence, s->shape.n_sequences - 1);
}

static sd_status fail_model(void) {
    return sd_fail(SD_ERR_VALUE, "the model is neither the target nor a model that drafts");
}

sd_status sd_session_begin_with(sd_session* s, int sequence, const sd_cache* known, int* n) {
    sd_status status = check_sequence(s, sequence);
    if (status != SD_OK) return status;
    const sd_prefill* prefill = &s->prefills[sequence];
    if (prefill->n_read >= 0) return sd_fail(SD_ERR_STATE, "sequence %d is already being read", sequence);
    int is_own = known->model == s->caches[sequence].model;
    if (sd_drafter_cache(s->drafter, sequence, known->model) == NULL && !is_own) return fail_model();
    *n = 0;
    int n_source = known->model->encoder ? prefill->n_source : 0;
    const sd_prompt prompt = {
        .tokens = prefill->text, .n = prefill->n, .source = prefill->source, .n_source = prefill->n_source};
    if (s->drafter != NULL) status = sd_drafter_begin_with(s->drafter, sequence, known, &prompt, n);
    if (status != SD_OK) return status;
    if (is_own && sd_encoded_has_source(known->encoded, prefill->source, n_source)) {
        sd_cache_set_source(&s->caches[sequence], known->encoded);
        *n = sd_cache_begin_with(&s->caches[sequence], known, prefill->text, prefill->n);
    }
    return SD_OK;
}

void sd_session_keep_snapshots(sd_session* s, int most, size_t max_bytes) {
    int n = s->shape.n_sequences;
    for (int i = 0; i < n; i++) sd_cache_keep_snapshots(&s->caches[i], most, max_bytes);
    if (s->drafter) sd_drafter_keep_snapshots(s->drafter, n, most, max_bytes);
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
    int reads = q->draft_begun && (!q->ready || q->draft_lazy);
    q->finished = 1;
    if (reads && s->drafter) status = sd_session_begin_draft(s, sequence, s->drafter); /* stop its reading */
    s->prefills[sequence] = (sd_prefill){0};
    q->draft_begun = q->ready = 1;
    return status;
}

sd_status sd_session_admit(sd_session* s, int sequence, const sd_prompt* prompt) {
    sd_status status = check_sequence(s, sequence);
    if (status != SD_OK) return status;
    if (!s->sequences[sequence].finished) return sd_fail(SD_ERR_STATE, "sequence %d has not ended", sequence);
    if ((status = sd_prompt_check(prompt, s->options.target)) != SD_OK) return status;
    int n_text = text_limit(&s->options, prompt);
    if (n_text > s->shape.n_text)
        return sd_fail(SD_ERR_CONTEXT, "the text may have %d tokens, expected at most n_text, %d", n_text,
                       s->shape.n_text);
    if ((status = sd_session_check_settings(s, prompt->settings)) != SD_OK) return status;
    const sd_model* model = prompt->settings->model ? prompt->settings->model : s->options.target;
    if ((status = sd_workspace_admit(&s->workspace, model)) != SD_OK) return status;
    sd_cache_set_model(&s->caches[sequence], model);
    begin(s, sequence, prompt);
    if (s->sequences[sequence].draft_lazy) s->n_missed += s->sequences[sequence].n_text;
    return SD_OK;
}

sd_rule sd_session_rule(const sd_session* s, int sequence) {
    return s->sequences[sequence].settings.verify.rule;
}
