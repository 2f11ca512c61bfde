#include "session.h"

#include <stdio.h>

#include "clock.h"
#include "interrupt.h"
#include "riding.h"
#include "tree_rows.h"

struct sd_session {
    sd_session_options options;
    sd_drafter* drafter;    /* owned; NULL: plain decoding */
    sd_workspace workspace; /* of the target */
    sd_arena arena;         /* owns the arrays below */
    int n_sequences, max_nodes, n_text;
    int max_rows; /* of a sequence: max_nodes with their riders */
    int ready;    /* the prompts are in */
    int failed;   /* a round has failed and left nodes in the caches: no round can follow */
    /* Status and message of the failed round, if its call returned the records of earlier rounds instead; the
     * next call returns them. */
    sd_status untold;
    char message[SD_MESSAGE_SIZE];
    int turn;               /* which open sequence has the first claim to what is left of the node budget */
    sd_sequence* sequences; /* [n_sequences] */
    sd_cache* caches;       /* [n_sequences] of the target; each holds text[0 … n_text - 2] */
    sd_prefill* prefills;   /* [n_sequences] the prompts on their way into them */
    sd_proposal* proposals; /* [n_sequences] of the unfinished sequences, first n_open */
    sd_branch* branches;    /* [n_sequences] */
    int32_t* row_tokens;    /* [n_sequences, max_rows] of the rows that the target is run on */
    int32_t* row_parents;   /* [n_sequences, max_rows] */
    sd_riding riding;
    sd_ride* rides; /* [n_sequences] of the open texts in a round */
    int n_open;
    int drafting;       /* some sequence may guess in this round */
    sd_record* records; /* [max_records] of the rounds of a call; the last n_open are of this round */
    int n_records, max_records;
    sd_verifier verifier;
    int32_t* stop_ids; /* [options.n_stop_ids] */
    int32_t* kept;     /* [max_nodes] the root and the accepted path of a sequence */
};

/* Records that a call may return, where one round has fewer. */
#define RECORDS 64

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
    s->branches = sd_arena_take(arena, n, sizeof *s->branches);
    s->row_tokens = sd_arena_take(arena, n, (size_t)s->max_rows * sizeof *s->row_tokens);
    s->row_parents = sd_arena_take(arena, n, (size_t)s->max_rows * sizeof *s->row_parents);
    sd_riding_take(&s->riding, arena, s->n_sequences);
    s->rides = sd_arena_take(arena, n, sizeof *s->rides);
    s->records = sd_arena_take(arena, (size_t)s->max_records, sizeof *s->records);
    s->stop_ids = sd_arena_take(arena, (size_t)s->options.n_stop_ids, sizeof *s->stop_ids);
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
        double* weights = sd_arena_take(arena, dense ? nodes * n_vocab : 0, sizeof *weights);
        if (arena->base == NULL) continue;
        s->sequences[i].text = text;
        s->sequences[i].source = source;
        s->proposals[i].tree.drawn_from = drawn_from;
        s->proposals[i].depths = depths;
        s->proposals[i].path_prob = path_prob;
        s->proposals[i].confidences = confidences;
        for (size_t j = 0; j < nodes && dense; j++) drawn_from[j].weights = weights + j * n_vocab;
    }
    for (int i = 0; i < s->max_records; i++) {
        int32_t* tokens = sd_arena_take(arena, nodes, sizeof *tokens);
        int32_t* parents = sd_arena_take(arena, nodes, sizeof *parents);
        int32_t* path = sd_arena_take(arena, nodes, sizeof *path);
        double* betas = sd_arena_take(arena, nodes, sizeof *betas);
        int32_t* node_rows = sd_arena_take(arena, nodes, sizeof *node_rows);
        sd_token_laws laws = sd_token_laws_take(arena, &s->options.laws, s->max_nodes);
        if (arena->base == NULL) continue;
        s->records[i].node_rows = node_rows;
        s->records[i].laws = laws;
        s->records[i].tree = (sd_tree){.tokens = tokens, .parents = parents};
        s->records[i].verdict = (sd_verdict){.path = path, .betas = betas};
    }
}

sd_status sd_session_check(const sd_session_options* o, const sd_prompt* prompts, int n) {
    const sd_config* c = &o->target->config;
    if (n < 1) return sd_fail(SD_ERR_VALUE, "there are no prompts");
    sd_status status = sd_gamma_check(o->gamma);
    if (status != SD_OK) return status;
    if (o->max_new_tokens < 1)
        return sd_fail(SD_ERR_VALUE, "max_new_tokens is %d, expected at least 1", o->max_new_tokens);
    if (o->laws.n_top < 0 || o->laws.n_top > c->n_vocab)
        return sd_fail(SD_ERR_VALUE, "n_top is %d, expected 0 to %d", o->laws.n_top, c->n_vocab);
    if (o->n_text < 0 || o->n_text > c->n_ctx)
        return sd_fail(SD_ERR_VALUE, "n_text is %d, expected 0 to %d", o->n_text, c->n_ctx);
    if (o->node_budget != 0 && o->node_budget < n)
        return sd_fail(SD_ERR_VALUE, "node_budget is %d, expected at least a row for each of %d sequences",
                       o->node_budget, n);
    for (int i = 0; i < n && status == SD_OK; i++) status = sd_prompt_check(&prompts[i], i, o->target);
    if (status == SD_OK) status = sd_sampling_check(o->verify.sampling, c->n_vocab);
    return status == SD_OK ? sd_rule_check(o->verify.rule, o->verify.lenience) : status;
}

/* Tokens that the text of a prompt may have. */
static int text_room(const sd_session_options* o, const sd_prompt* prompt) {
    long wanted = (long)prompt->n + o->max_new_tokens;
    return wanted < o->target->config.n_ctx ? (int)wanted : o->target->config.n_ctx;
}

int sd_session_text_room(const sd_session_options* o, const sd_prompt* prompts, int n) {
    int longest = o->n_text;
    for (int i = 0; i < n; i++)
        if (text_room(o, &prompts[i]) > longest) longest = text_room(o, &prompts[i]);
    return longest;
}

static void begin(sd_session* s, int i, const sd_prompt* prompt) {
    sd_sequence* q = &s->sequences[i];
    sd_sequence_begin(q, prompt, text_room(&s->options, prompt));
    /* The last token of the prompt is the root of the first round. Where nothing is drafted that round
     * computes no other row, so the root is read with the prompt, unless prompts have bits of their own. */
    int with_root = s->drafter == NULL && !sd_prompts_apart(s->options.target);
    s->prefills[i] = (sd_prefill){.text = q->text,
                                  .n = q->n_text - 1,
                                  .n_read = -1,
                                  .with_root = with_root,
                                  .source = q->source,
                                  .n_source = q->n_source};
}

sd_status sd_session_create(const sd_session_options* options, const sd_prompt* prompts, int n,
                            sd_drafter* drafter, sd_session** out) {
    sd_session* s = NULL;
    sd_status status = sd_session_check(options, prompts, n);
    const sd_rule rule = sd_rule_at(options->verify.rule, options->verify.sampling->temperature);
    if (status == SD_OK && drafter) status = sd_rule_check_trees(rule, drafter->tree_kind, "verify");
    if (status != SD_OK) goto fail;
    status = SD_ERR_MEMORY;
    if ((s = sd_alloc(sizeof *s)) == NULL) goto fail;
    s->drafter = drafter; /* from here on it is freed with the session */
    s->options = *options;
    s->options.verify.rule = rule;
    s->n_sequences = n;
    status = sd_riding_begin(&s->riding, drafter, &options->target->config, n, options->node_budget);
    if (status != SD_OK) goto fail;
    s->max_nodes = s->riding.max_nodes = drafter ? options->gamma + 1 : 1;
    s->max_rows = s->max_nodes * (1 + s->riding.n);
    s->max_records = n > RECORDS || options->laws.n_top > 0 ? n : RECORDS; /* lists of top tokens are long */
    s->n_text = sd_session_text_room(options, prompts, n);
    s->verifier = (sd_verifier){.n_vocab = options->target->config.n_vocab, .options = &s->options.verify};
    if (options->adaptive_gamma)
        sd_adaptive_gamma_start(options->adaptive_gamma, sd_reading_of(&options->target->config),
                                s->riding.n);
    if ((status = SD_ARENA_BUILD(&s->arena, lay_out(s))) != SD_OK) goto fail;
    for (int i = 0; i < options->n_stop_ids; i++) s->stop_ids[i] = options->stop_ids[i];
    sd_taps taps = {0};
    if (drafter && (status = sd_drafter_add_taps(drafter, &options->target->config, &taps)) != SD_OK)
        goto fail;
    for (int i = 0; i < n; i++) {
        begin(s, i, &prompts[i]);
        status = sd_cache_create(&s->caches[i], options->target, s->n_text + s->max_rows, s->max_rows,
                                 s->max_rows, &taps);
        if (status != SD_OK) goto fail;
    }
    int rows = n * s->max_rows, budget = options->node_budget, slice = sd_prompt_slice(options->target);
    if (budget > 0 && budget < rows) rows = budget;
    int n_logits = rows / (1 + s->riding.n) + n * s->riding.n;
    status = sd_workspace_create(&s->workspace, options->target, options->n_threads,
                                 rows > slice ? rows : slice, n_logits, s->n_text + s->max_rows);
    if (status != SD_OK) goto fail;
    s->workspace.name = "the target";
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

/* Tell a drafter of the text of a sequence so far. */
static sd_status begin_draft(const sd_session* s, int i, sd_drafter* drafter) {
    const sd_sequence* q = &s->sequences[i];
    const sd_prompt prompt = {.tokens = q->text,
                              .n = q->n_text,
                              .stream = q->stream,
                              .source = q->source,
                              .n_source = q->n_source,
                              .cache = &s->caches[i]};
    sd_status status = sd_drafter_begin(drafter, i, &prompt);
    return status == SD_OK ? sd_interrupted() : status;
}

/* Tell the drafter of all prompts that are new, so that it may read them together. */
static sd_status begin_drafts(sd_session* s) {
    for (int i = 0; i < s->n_sequences; i++) {
        if (s->sequences[i].draft_begun) continue;
        sd_status status = begin_draft(s, i, s->drafter);
        if (status != SD_OK) return status;
        s->sequences[i].draft_begun = 1;
    }
    return SD_OK;
}

/* What is said when no round can follow. */
static sd_status refuse(sd_session* s) {
    sd_status status = s->untold;
    s->untold = SD_OK;
    if (status != SD_OK) return sd_fail(status, "%s", s->message);
    return sd_fail(SD_ERR_STATE, s->failed ? "a round has failed" : "the prompts have not been read");
}

sd_status sd_session_prefill(sd_session* s, int* done) {
    *done = 0;
    if (s->failed) return refuse(s);
    for (int i = 0; i < s->n_sequences; i++)
        if (!sd_prefill_done(&s->prefills[i]))
            return sd_prefill_slice(&s->workspace, s->caches, s->prefills, s->n_sequences);
    sd_status status = s->drafter ? begin_drafts(s) : SD_OK;
    *done = 1;
    if (status == SD_OK && s->drafter) status = sd_drafter_read(s->drafter, done);
    s->ready = status == SD_OK && *done;
    return status;
}

sd_drafter* sd_session_drafter(const sd_session* s) { return s->drafter; }

sd_status sd_session_tell(sd_session* s, sd_drafter* drafter) {
    if (s->failed) return refuse(s);
    for (int i = 0; i < s->n_sequences; i++) {
        if (!s->sequences[i].draft_begun || s->sequences[i].finished) continue;
        sd_status status = begin_draft(s, i, drafter);
        if (status != SD_OK) return status;
    }
    s->ready = 0;
    return SD_OK;
}

/* Collect the unfinished sequences and say how far each may guess: a round adds at most one token
 * more than it guesses in a row, and the text must not pass its length. */
static void open_round(sd_session* s, const int32_t* gammas) {
    int n_open = 0, gamma = s->max_nodes - 1;
    for (int i = 0; i < s->n_sequences; i++) n_open += !s->sequences[i].finished;
    sd_adaptive_gamma* adaptive = s->options.adaptive_gamma;
    if (adaptive && n_open && !sd_adaptive_gamma_begin(adaptive, n_open, gamma)) gamma = 0;
    s->n_open = 0;
    for (int i = 0; i < s->n_sequences; i++) {
        sd_sequence* q = &s->sequences[i];
        if (q->finished) continue;
        int wanted = gammas && gammas[i] < gamma ? gammas[i] : gamma;
        sd_proposal* p = &s->proposals[s->n_open];
        sd_record* record = &s->records[s->n_records + s->n_open++];
        p->sequence = i;
        p->text = q->text;
        p->n_text = q->n_text;
        p->stream = q->stream;
        p->depth = q->max_text - q->n_text - 1;
        p->budget = p->depth > 0 ? wanted : 0;
        p->policy = adaptive ? &adaptive->drafter : NULL;
        p->rejected_at = 0;
        p->cache = &s->caches[i];
        p->tree.n_nodes = 1;
        p->tree.tokens = record->tree.tokens; /* the guesses go where they are kept */
        p->tree.parents = record->tree.parents;
        p->tree.tokens[0] = q->text[q->n_text - 1];
        p->tree.parents[0] = -1;
        p->depths[0] = 0;
        p->path_prob[0] = 1.0;
    }
    int n_nodes = s->options.node_budget / (1 + s->riding.n);
    if (n_nodes > 0) sd_proposals_share(s->proposals, n_open, n_nodes, &s->turn);
    s->drafting = 0;
    for (int i = 0; i < n_open; i++) {
        sd_sequence* q = &s->sequences[s->proposals[i].sequence];
        q->drafts = s->proposals[i].budget > 0;
        s->drafting |= q->drafts;
    }
}

/* The drafter with riders in a round that has them, else NULL. */
static sd_drafter* find_rider(const sd_session* s) {
    return s->drafting && s->riding.n > 0 ? sd_drafter_riding(s->drafter) : NULL;
}

/* The rows of a tree, as nodes of the forward, and their riders. Nothing rides for a text that may not guess,
 * whatever others do: what it guesses next must not depend on them. */
static void fill_branch(sd_session* s, int i, const sd_riders* riders, sd_record* record) {
    static const sd_riders none = {0};
    sd_cache* cache = s->proposals[i].cache;
    const sd_sequence* q = &s->sequences[record->sequence];
    if (!q->drafts) riders = &none;
    int32_t *tokens = s->row_tokens + (ptrdiff_t)i * s->max_rows,
            *parents = s->row_parents + (ptrdiff_t)i * s->max_rows;
    int n = sd_tree_rows_fill(&s->proposals[i].tree, cache, record->node_rows, tokens, parents, s->kept);
    record->n_rows = sd_riding_append(&s->riding, i, riders, n, q->max_text - q->n_text - 1, tokens, parents);
    s->branches[i] = (sd_branch){.cache = cache,
                                 .tokens = tokens,
                                 .parents = parents,
                                 .n_new = record->n_rows,
                                 .n_logits = n,
                                 .n_riders = record->n_rows - n,
                                 .riders = riders->embeddings};
}

static sd_status run_target(sd_session* s, sd_record* records) {
    const sd_drafter* rider = find_rider(s);
    const sd_riders none = {0}, *riders = rider ? &rider->riders : &none;
    ptrdiff_t logits_row = 0;
    for (int i = 0, row = 0; i < s->n_open; i++) {
        records[i].sequence = s->proposals[i].sequence;
        records[i].tree = s->proposals[i].tree;
        records[i].first_row = row;
        records[i].logits_row = logits_row;
        fill_branch(s, i, riders, &records[i]);
        row += records[i].n_rows;
        logits_row += s->branches[i].n_logits;
    }
    const sd_workspace* w = &s->workspace;
    long n_mixtures = w->n_mixtures, n_touched = w->n_touched;
    sd_status status =
        sd_forward_finish(&s->workspace, s->branches, s->n_open); /* a drafter may have begun */
    n_mixtures = w->n_mixtures - n_mixtures, n_touched = w->n_touched - n_touched;
    for (int i = 0; i < s->n_open; i++)
        records[i].experts = n_mixtures > 0 ? (double)n_touched / (double)n_mixtures : 0.0;
    return status;
}

/* Show the drafter what the target says of its guesses. */
static sd_status observe(sd_session* s, int i, const sd_record* record) {
    if (!s->drafting || s->drafter->observe == NULL) return SD_OK;
    const sd_workspace* w = &s->workspace;
    return s->drafter->observe(s->drafter, &s->proposals[i], record->node_rows,
                               w->logits + record->logits_row * w->ld_logits, w->ld_logits);
}

static sd_status verify(sd_session* s, sd_record* record) {
    const sd_sequence* q = &s->sequences[record->sequence];
    const sd_workspace* w = &s->workspace;
    const sd_verification verification = {.text = q->text,
                                          .n_text = q->n_text,
                                          .stream = q->stream,
                                          .tree = &record->tree,
                                          .node_rows = record->node_rows,
                                          .logits = w->logits + record->logits_row * w->ld_logits,
                                          .stride = w->ld_logits,
                                          .forward = &s->workspace,
                                          .first_row = record->first_row};
    sd_status status = sd_verifier_run(&s->verifier, &verification, &record->verdict);
    if (status != SD_OK) return status;
    return sd_token_laws_fill(&record->laws, &s->options.laws, &s->verifier, &verification, &record->verdict);
}

static void append(const sd_session* s, sd_sequence* q, int32_t token) {
    sd_sequence_append(q, token, s->stop_ids, s->options.n_stop_ids);
}

/* Keep the accepted path in the target's cache, append the new tokens and tell the drafter. */
static sd_status commit(sd_session* s, const sd_record* record) {
    sd_sequence* q = &s->sequences[record->sequence];
    const sd_verdict* v = &record->verdict;
    s->kept[0] = 0; /* the root */
    for (int i = 0; i < v->n_path; i++) s->kept[i + 1] = record->node_rows[v->path[i]];
    sd_status status = sd_cache_keep(&s->caches[record->sequence], s->kept, v->n_path + 1);
    if (status != SD_OK) return status;
    for (int i = 0; i < v->n_path; i++) append(s, q, record->tree.tokens[v->path[i]]);
    append(s, q, v->token);
    return s->drafter ? sd_drafter_commit(s->drafter, record->sequence, q->text, q->n_text) : SD_OK;
}

/* Tell the drafter with riders what the target says after those behind the last accepted node of each text
 * that goes on. */
static sd_status ride(sd_session* s, const sd_record* records) {
    sd_drafter* rider = find_rider(s);
    int n = 0;
    for (int i = 0; i < s->n_open && rider != NULL; i++) {
        const sd_sequence* q = &s->sequences[records[i].sequence];
        const sd_verdict* v = &records[i].verdict;
        int node = v->n_path > 0 ? v->path[v->n_path - 1] : 0;
        if (q->finished) continue;
        s->rides[n] = sd_riding_behind(&s->riding, i, records[i].node_rows[node], records[i].first_row);
        s->rides[n].sequence = records[i].sequence;
        s->rides[n++].n_text = q->n_text;
    }
    return sd_riding_tell(&s->riding, rider, &s->workspace, s->rides, n);
}

/* What the round was like: seconds of proposing and of all else. */
static void tell_adaptive_gamma(sd_session* s, const sd_record* records, double draft_s, double rest_s) {
    sd_adaptive_gamma_round round = {
        .n_asked = s->drafting ? s->n_open : 0, .draft_s = draft_s, .rest_s = rest_s};
    for (int i = 0; i < s->n_open; i++) {
        const sd_proposal* p = &s->proposals[i];
        const sd_verdict* v = &records[i].verdict;
        int deepest = p->rejected_at;
        for (int node = 1; node < p->tree.n_nodes; node++)
            if (p->depths[node] > deepest) deepest = p->depths[node];
        if (s->drafting) sd_adaptive_gamma_observe(s->options.adaptive_gamma, p, v->path, v->n_path);
        round.n_rows += records[i].n_rows;
        round.n_guesses += s->branches[i].n_logits - 1;
        round.n_steps += deepest;
        round.n_tokens += v->n_path + 1;
    }
    sd_adaptive_gamma_end(s->options.adaptive_gamma, &round);
}

/* One round of the open sequences. */
static sd_status run_round(sd_session* s) {
    double begun = sd_now();
    sd_record* records = s->records + s->n_records;
    sd_status status = SD_OK;
    if (s->drafting) status = s->drafter->propose(s->drafter, s->proposals, s->n_open);
    if (status != SD_OK) return status;
    double drafted = sd_now();
    status = run_target(s, records);
    if (status != SD_OK) return status;
    double verified = sd_now();
    for (int i = 0; i < s->n_open && status == SD_OK; i++) {
        status = observe(s, i, &records[i]);
        if (status == SD_OK) status = verify(s, &records[i]);
        if (status == SD_OK) status = commit(s, &records[i]);
    }
    if (status == SD_OK) status = ride(s, records);
    double draft_s = s->drafting ? drafted - begun - s->drafter->other_s : 0.0;
    double verify_s = verified - drafted, ended = sd_now(), other_s = ended - begun - draft_s - verify_s;
    if (s->options.adaptive_gamma && status == SD_OK)
        tell_adaptive_gamma(s, records, drafted - begun, ended - drafted);
    for (int i = 0; i < s->n_open; i++)
        records[i].draft_s = draft_s, records[i].verify_s = verify_s, records[i].other_s = other_s;
    if (status == SD_OK) s->n_records += s->n_open;
    return status;
}

/* Has a sequence of the last round ended? */
static int one_ended(const sd_session* s) {
    for (int i = 0; i < s->n_open; i++)
        if (s->sequences[s->proposals[i].sequence].finished) return 1;
    return 0;
}

sd_status sd_session_rounds(sd_session* s, double seconds, int until_end, const int32_t* gammas) {
    if (s->failed || !s->ready) return refuse(s);
    double begun = sd_now();
    sd_status status = SD_OK;
    s->n_records = 0;
    do {
        open_round(s, gammas);
        if (s->n_open == 0) break;
        status = run_round(s);
    } while (status == SD_OK && s->n_records + s->n_sequences <= s->max_records &&
             sd_now() - begun < seconds && !(until_end && one_ended(s)));
    s->failed = status != SD_OK;
    if (status == SD_OK || status == SD_ERR_CALLBACK || s->n_records == 0) return status;
    s->untold = status; /* this call returns the records of the earlier rounds */
    snprintf(s->message, sizeof s->message, "%s", sd_message());
    return SD_OK;
}

const sd_record* sd_session_records(const sd_session* s, int* n) {
    *n = s->n_records;
    return s->records;
}

const sd_token_laws_options* sd_session_laws(const sd_session* s) { return &s->options.laws; }

const float* sd_session_logits(const sd_session* s, ptrdiff_t* stride) {
    *stride = s->workspace.ld_logits;
    return s->workspace.logits;
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
    if (sd_drafter_cache(s->drafter, sequence, known->model) == NULL && known->model != s->options.target)
        return fail_model();
    *n = 0;
    int n_source = known->model->encoder ? prefill->n_source : 0;
    if (!sd_encoded_is_of(known->encoded, prefill->source, n_source)) return SD_OK;
    if (s->drafter != NULL)
        *n = sd_drafter_begin_with(s->drafter, sequence, known, prefill->text, prefill->n);
    if (known->model == s->options.target) {
        sd_cache_attend(&s->caches[sequence], known->encoded);
        *n = sd_cache_begin_with(&s->caches[sequence], known, prefill->text, prefill->n);
    }
    return SD_OK;
}

const sd_cache* sd_session_cache(const sd_session* s, int sequence, const sd_model* model) {
    if (check_sequence(s, sequence) != SD_OK) return NULL;
    if (model == s->options.target) return &s->caches[sequence];
    const sd_cache* cache = sd_drafter_cache(s->drafter, sequence, model);
    if (cache == NULL) fail_model();
    return cache;
}

sd_status sd_session_finish(sd_session* s, int sequence) {
    sd_status status = check_sequence(s, sequence);
    if (status == SD_OK) s->sequences[sequence].finished = 1;
    return status;
}

sd_status sd_session_replace(sd_session* s, int sequence, const sd_prompt* prompt) {
    sd_status status = check_sequence(s, sequence);
    if (status != SD_OK) return status;
    if (!s->sequences[sequence].finished) return sd_fail(SD_ERR_STATE, "sequence %d has not ended", sequence);
    if ((status = sd_prompt_check(prompt, 0, s->options.target)) != SD_OK) return status;
    int n_text = text_room(&s->options, prompt);
    if (n_text > s->n_text)
        return sd_fail(SD_ERR_CONTEXT, "the text may have %d tokens, expected at most n_text, %d", n_text,
                       s->n_text);
    begin(s, sequence, prompt);
    s->ready = 0;
    return SD_OK;
}
