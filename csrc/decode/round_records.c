/* Rows of the target's forward pass, failures of single sequences and times of a round. */
#include "round_parts.h"

/* Old index of the row that matches pending node k; -1: none. moved [n]: new index of each row matched so
 * far, -1 for the rest. */
static int row_of(const sd_cache* cache, int k, int n, const int32_t* moved, const int32_t* tokens,
                  const int32_t* parents) {
    int32_t token = cache->tokens[cache->n_committed + k];
    for (int row = 1; row < n; row++)
        if (moved[row] < 0 && tokens[row] == token && moved[parents[row]] == cache->parents[k]) return row;
    return -1;
}

/* Number the rows of a tree (tree.h) in the order of its nodes. Rows that a drafter has begun in the target's
 * cache come first, in cache order: the target continues from there (sd_forward_finish). Fills rows
 * [n_nodes], the row of each node, and tokens [n_rows] and parents [n_rows] of the rows, -1 for the root's.
 * moved [n_nodes] is scratch. Returns n_rows. */
static int fill_rows(const sd_tree* tree, const sd_cache* cache, int32_t* rows, int32_t* tokens,
                     int32_t* parents, int32_t* moved) {
    int n = sd_tree_number_rows(tree, rows), n_begun = 1;
    sd_tree_merge(tree, rows, tokens, parents);
    if (cache->n_pending < 2) return n; /* the root is first in any case */
    moved[0] = 0;
    for (int row = 1; row < n; row++) moved[row] = -1;
    for (int k = 1; k < cache->n_pending; k++) {
        int row = row_of(cache, k, n, moved, tokens, parents);
        if (row < 0) break;
        moved[row] = n_begun++;
    }
    for (int row = 1; row < n; row++)
        if (moved[row] < 0) moved[row] = n_begun++;
    for (int node = 0; node < tree->n_nodes; node++) rows[node] = moved[rows[node]];
    sd_tree_merge(tree, rows, tokens, parents);
    return n;
}

static void fill_branch(const sd_session* s, int i) {
    const sd_round* r = &s->round;
    sd_record* record = &r->records[i];
    sd_cache* cache = r->proposals[i].cache;
    int32_t* tokens = r->row_tokens + (ptrdiff_t)i * s->max_rows;
    int32_t* parents = r->row_parents + (ptrdiff_t)i * s->max_rows;
    int n = fill_rows(&record->tree, cache, record->node_rows, tokens, parents, r->scratch);
    record->n_rows = n;
    const float* extra = sd_extra_append(s, i, &record->n_rows, tokens, parents);
    r->branches[i] = (sd_branch){.cache = cache,
                                 .tokens = tokens,
                                 .parents = parents,
                                 .n_new = record->n_rows,
                                 .n_logits = n,
                                 .n_extra = record->n_rows - n,
                                 .extra = extra};
}

void sd_round_fill_branches(sd_session* s) {
    const sd_round* r = &s->round;
    ptrdiff_t logits_row = 0;
    s->n_mixtures = s->workspace.n_mixtures;
    s->n_touched = s->workspace.n_touched;
    for (int i = 0, row = 0; i < r->n_open; i++) {
        r->records[i].first_row = row;
        r->records[i].logits_row = logits_row;
        fill_branch(s, i);
        row += r->records[i].n_rows;
        logits_row += r->branches[i].n_logits;
    }
}

sd_status sd_round_observe(const sd_session* s, int i) {
    if (!s->round.drafting || s->drafter->observe == NULL) return SD_OK;
    const sd_workspace* w = &s->workspace;
    const sd_record* record = &s->round.records[i];
    return s->drafter->observe(s->drafter, &s->round.proposals[i],
                               record->node_rows + s->round.joints[i].n_shown,
                               w->logits + record->logits_row * w->ld_logits, w->ld_logits);
}

sd_status sd_round_end_by(sd_session* s, int i, sd_status status) {
    sd_record* record = &s->round.records[i];
    sd_sequence* q = &s->sequences[record->sequence];
    sd_failure_note(&q->failure, status);
    record->status = q->failure.status;
    record->message = q->failure.message;
    record->verdict.n_path = record->verdict.n_betas = 0;
    q->finished = 1;
    return sd_cache_keep(&s->caches[record->sequence], NULL, 0);
}

void sd_round_note(sd_session* s, const sd_round_times* t) {
    const sd_round* r = &s->round;
    const sd_workspace* w = &s->workspace;
    double caught_up_s = r->drafting ? s->catch_up_s : 0.0, proposing_s = t->drafted - t->begun + caught_up_s;
    double draft_s = r->drafting ? proposing_s - s->drafter->other_s : 0.0;
    long n_mixtures = w->n_mixtures - s->n_mixtures, n_touched = w->n_touched - s->n_touched;
    s->catch_up_s -= caught_up_s;
    sd_adaptive_after_commit(s, proposing_s, t->ended - t->drafted);
    for (int i = 0; i < r->n_open; i++) {
        r->records[i].experts = n_mixtures > 0 ? (double)n_touched / (double)n_mixtures : 0.0;
        r->records[i].planned = r->planned;
        r->records[i].gain = r->gain;
        r->records[i].draft_s = draft_s;
        r->records[i].verify_s = t->forwarded - t->drafted;
        r->records[i].other_s = t->ended - t->forwarded + proposing_s - draft_s;
    }
    s->n_records += r->n_open;
}

sd_verification sd_round_verification(sd_session* s, int i, int in_team) {
    const sd_record* record = &s->round.records[i];
    const sd_sequence* q = &s->sequences[record->sequence];
    const sd_workspace* w = &s->workspace;
    return (sd_verification){.options = &q->settings.verify,
                             .text = q->text,
                             .n_text = q->n_text,
                             .n_prompt = q->n_prompt,
                             .stream = q->stream,
                             .tree = &record->tree,
                             .node_rows = record->node_rows,
                             .logits = w->logits + record->logits_row * w->ld_logits,
                             .stride = w->ld_logits,
                             .forward = &s->workspace,
                             .first_row = record->first_row,
                             .branch = i,
                             .in_team = in_team};
}
