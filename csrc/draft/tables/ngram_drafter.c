/* Draft a chain from an n-gram model: what followed the last tokens in a corpus, or earlier in this text. Its
 * cost is negligible (section 3.6).
 *
 * Let h be the last k tokens, n(hx) how often x followed h, N = Σ n(hx), and D how many different tokens
 * followed h. The unigram model is k = 0, over the uniform distribution. Of the contexts k = 1 … n − 1 those
 * that were ever followed by anything count, each with the escape probability D / (N + D) of Witten and Bell
 * (IEEE Transactions on Information Theory 37, 1991; method C):
 *
 *     unigrams       P_0(x) = n(x) / (N + D) + D / (N + D) / n_vocab, with D = 1 if nothing was seen
 *     interpolated   P_k(x) = n(hx) / (N + D) + D / (N + D) · P_{k−1}(x)
 *     back-off       P_k(x) = n(hx) / (N + D)                          if n(hx) > 0,
 *                             D / (N + D) · P_{k−1}(x) / max(U, 1e-9)  otherwise,
 *                    with U = 1 − Σ P_{k−1}(x) over the x with n(hx) > 0 (Katz 1987), and what the maximum
 *                    or a vocabulary without other tokens leaves over divided among all in proportion
 *
 * At temperature 0 only tokens seen after these contexts and the most frequent one are considered. */
#include "tables.h"

#include <math.h>
#include <string.h>

#include "interrupt.h"

/* Entries checked between two checks for an interruption: a power of two. */
#define PIECE 65536

/* Is entry i of an array of the k-grams within low to high? */
static sd_status check_entry(const char* array, int64_t i, int k, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return i % PIECE == 0 ? sd_interrupted() : SD_OK;
    return sd_fail(SD_ERR_VALUE, "%s[%lld] of the %d-grams is %lld, expected %lld to %lld", array,
                   (long long)i, k, (long long)value, (long long)low, (long long)high);
}

static sd_status check_level(const sd_ngram_table* t, int k, int64_t n_before) {
    const sd_ngram_level* level = &t->levels[k - 2];
    SD_FAIL_IF(level->n > INT32_MAX, SD_ERR_VALUE, "there are %lld %d-grams, expected at most %d",
               (long long)level->n, k, INT32_MAX);
    for (int64_t i = 0; i <= n_before; i++) {
        int64_t low = i == n_before ? level->n : i == 0 ? 0 : level->starts[i - 1];
        SD_TRY(check_entry("starts", i, k, level->starts[i], low, i == 0 ? 0 : level->n));
    }
    for (int64_t i = 0; i < n_before; i++)
        for (int64_t j = level->starts[i], low = 0; j < level->starts[i + 1]; j++) {
            SD_TRY(check_entry("tokens", j, k, level->tokens[j], low, t->n_vocab - 1));
            SD_TRY(check_entry("counts", j, k, level->counts[j], 1, INT32_MAX));
            low = (int64_t)level->tokens[j] + 1;
        }
    return SD_OK;
}

sd_status sd_ngram_table_check(const sd_ngram_table* t) {
    for (int i = 0; i < t->n_vocab; i++)
        if (t->unigrams[i] < 0)
            return sd_fail(SD_ERR_VALUE, "unigrams[%d] is %d, expected at least 0", i, (int)t->unigrams[i]);
    for (int k = 2; k <= t->n; k++) SD_TRY(check_level(t, k, k == 2 ? t->n_vocab : t->levels[k - 3].n));
    return SD_OK;
}

/* The (k + 1)-grams that begin with entry i of level k. */
static void children(const sd_ngram_level* level, int64_t i, int64_t* begin, int64_t* end) {
    *begin = level->starts[i];
    *end = level->starts[i + 1];
    if (*begin < 0 || *begin > *end || *end > level->n) *begin = *end = 0;
}

void sd_ngram_followers(const sd_ngram_table* t, const int32_t* context, int k, int64_t* begin,
                        int64_t* end) {
    children(&t->levels[0], context[0], begin, end);
    for (int i = 1; i < k; i++) { /* the entry of the context's first i + 1 tokens, by bisection */
        const int32_t* tokens = t->levels[i - 1].tokens;
        int64_t low = *begin, high = *end;
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (tokens[middle] < context[i])
                low = middle + 1;
            else
                high = middle;
        }
        if (low == *end || tokens[low] != context[i]) {
            *begin = *end = 0;
            return;
        }
        children(&t->levels[i], low, begin, end);
    }
}

/* Unigram counts of the table and, online, of a text. */
typedef struct counts {
    int32_t* unigrams; /* [n_vocab] count of each token in the table and the text */
    int64_t total;     /* their sum */
    int n_different;   /* number of tokens with a count above 0 */
    int32_t best;      /* most frequent token, the lowest id on ties */
    int n_text;        /* tokens of the text counted so far */
    int32_t* last;     /* [n_vocab] online: last index of each token in the text; -1: none */
    /* [drafting.n_text] online: previous index of the token at each position; -1: none */
    int32_t* previous;
} counts;

typedef struct followers {
    int32_t* tokens; /* [n_vocab] the first n are set */
    int64_t* counts; /* [n_vocab] by token; all 0 between contexts */
    int n;
    int64_t total; /* Σ counts */
} followers;

/* Distribution of the next token. Tokens that followed no context, which are most, have the probability
 * factor · (unigram count + share); the others have factor · values. */
typedef struct row {
    const counts* counts;
    double share, factor;
    double* values; /* [n_vocab] by token; 0: followed no context; all 0 between rows */
    int32_t* seen;  /* [n_vocab] the first n_seen are tokens with a value */
    int n_seen;
} row;

typedef struct ngram_drafter {
    sd_drafter base; /* must stay first */
    sd_drafting drafting;
    sd_ngram_drafter_options options;
    sd_token_drafter token_drafter;
    counts* counts; /* [n_sequences], or one for all unless online */
    followers followers;
    row row;
    int has_logs;  /* `logs` holds those of the table: not online */
    float* logs;   /* [n_vocab] ln(unigram count + share) */
    float* logits; /* [n_vocab] */
} ngram_drafter;

static void add_unigram(counts* c, int32_t token, int32_t n) {
    int32_t *here = &c->unigrams[token], most = c->unigrams[c->best];
    if (n <= 0 || *here > INT32_MAX - n) return;
    c->total += n;
    c->n_different += *here == 0;
    *here += n;
    if (*here > most || (*here == most && token < c->best)) c->best = token;
}

/* Reset the counts to the table's. */
static void clear(counts* c, const sd_ngram_table* t) {
    size_t size = (size_t)t->n_vocab * sizeof(int32_t);
    memset(c->unigrams, 0, size);
    if (c->last != NULL) memset(c->last, -1, size);
    c->total = c->n_different = c->best = c->n_text = 0;
    for (int32_t i = 0; i < t->n_vocab; i++) add_unigram(c, i, t->unigrams[i]);
}

/* The term D / n_vocab of P_0, or 1 / n_vocab if nothing was counted. */
static double share_of(const counts* c, int n_vocab) {
    return (double)(c->total > 0 ? c->n_different : 1) / n_vocab;
}

static void fill_logs(const counts* c, int n_vocab, float* logs) {
    double share = share_of(c, n_vocab);
    for (int i = 0; i < n_vocab; i++) logs[i] = logf((float)(c->unigrams[i] + share));
}

static void add_follower(followers* f, int n_vocab, int32_t token, int64_t n) {
    if (token < 0 || token >= n_vocab) token = 0; /* the mapped file has changed */
    if (n < 1) n = 1;
    if (f->counts[token] == 0) f->tokens[f->n++] = token;
    f->counts[token] += n;
    f->total += n;
}

/* Count what followed a context [k] in the table and, online, in the counted part of the text. */
static void find_followers(followers* f, const sd_ngram_table* t, const counts* c, const int32_t* tokens,
                           const int32_t* context, int k) {
    int64_t begin, end;
    sd_ngram_followers(t, context, k, &begin, &end);
    const sd_ngram_level* level = &t->levels[k - 1];
    for (int64_t i = begin; i < end; i++) add_follower(f, t->n_vocab, level->tokens[i], level->counts[i]);
    if (c->last == NULL) return;
    for (int32_t i = c->last[context[k - 1]]; i >= k - 1; i = c->previous[i])
        if (i + 1 < c->n_text && memcmp(&tokens[i - k + 1], context, (size_t)k * sizeof *tokens) == 0)
            add_follower(f, t->n_vocab, tokens[i + 1], 1);
}

static double value(const row* r, int32_t token) {
    return r->values[token] > 0.0 ? r->values[token] : r->counts->unigrams[token] + r->share;
}

/* Go from P_{k−1} to P_k (above), and clear the followers. */
static void lengthen(row* r, followers* f, int back_off) {
    if (f->n == 0) return;
    double sum = (double)(f->total + f->n), escape = f->n / sum, covered = 0.0;
    for (int i = 0; back_off && i < f->n; i++) covered += value(r, f->tokens[i]);
    if (back_off) escape /= fmax(1.0 - covered * r->factor, 1e-9);
    r->factor *= escape;
    for (int i = 0; i < f->n; i++) {
        int32_t token = f->tokens[i];
        double shorter = back_off ? 0.0 : value(r, token);
        if (r->values[token] == 0.0) r->seen[r->n_seen++] = token;
        r->values[token] = shorter + (double)f->counts[token] / (sum * r->factor);
        f->counts[token] = 0;
    }
    f->n = 0;
    f->total = 0;
}

static void fill_row(ngram_drafter* d, const sd_proposal* p, int node, const counts* c) {
    const sd_ngram_table* t = d->options.table;
    row* r = &d->row;
    r->counts = c;
    r->share = share_of(c, t->n_vocab);
    r->factor = c->total > 0 ? 1.0 / (double)(c->total + c->n_different) : 1.0;
    int n = p->n_text + node, longest = n < t->n ? n : t->n - 1;
    int32_t context[SD_MAX_NGRAM]; /* the last tokens, including draft tokens */
    for (int i = 0; i < longest; i++) {
        int at = n - longest + i;
        context[i] = at < p->n_text ? p->text[at] : p->tree.tokens[at - p->n_text + 1];
    }
    for (int k = 1; k <= longest; k++) {
        find_followers(&d->followers, t, c, p->text, &context[longest - k], k);
        lengthen(r, &d->followers, t->back_off);
    }
}

static void clear_row(row* r) {
    for (int i = 0; i < r->n_seen; i++) r->values[r->seen[i]] = 0.0;
    r->n_seen = 0;
}

/* The more probable of two tokens, the lower id on ties. */
static int32_t better(const row* r, int32_t a, int32_t b) {
    double at_a = value(r, a), at_b = value(r, b);
    return at_a > at_b || (at_a == at_b && a < b) ? a : b;
}

static int32_t best_of(const row* r, int n_vocab) {
    int32_t frequent = r->counts->best, best = frequent;
    for (int i = 0; i < r->n_seen; i++) best = better(r, r->seen[i], best);
    /* an unseen token is at most as probable as the most frequent one if it were unseen */
    if (value(r, best) < r->counts->unigrams[frequent] + r->share)
        for (int32_t i = 0; i < n_vocab; i++) best = better(r, i, best);
    return best;
}

static void fill_logits(const row* r, int n_vocab, const float* logs, float* logits) {
    float shift = (float)log(r->factor);
    for (int i = 0; i < n_vocab; i++) logits[i] = logs[i] + shift;
    for (int i = 0; i < r->n_seen; i++) logits[r->seen[i]] = logf((float)(r->values[r->seen[i]] * r->factor));
}

static int is_greedy(const sd_proposal* p) {
    const sd_sampling* s = p->sampling;
    return p->constraint == NULL && s->temperature == 0.0 && !sd_sampling_changes_logits(s);
}

static int draft_token(ngram_drafter* d, sd_proposal* p, int node, const counts* c) {
    int n_vocab = d->options.table->n_vocab, next = -1;
    fill_row(d, p, node, c);
    if (is_greedy(p)) {
        int32_t token = best_of(&d->row, n_vocab);
        double probability = fmin(value(&d->row, token) * d->row.factor, 1.0);
        if (sd_proposal_worth_verifying(p, node, probability))
            next = sd_proposal_add_point(p, node, token, probability);
    } else {
        fill_logits(&d->row, n_vocab, d->logs, d->logits);
        next = sd_draft_token_add_if_it_pays(&d->token_drafter, p, node, d->logits);
    }
    clear_row(&d->row);
    return next;
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    ngram_drafter* d = (ngram_drafter*)base;
    for (int i = 0; i < n; i++) {
        sd_proposal* p = &proposals[i];
        const counts* c = &d->counts[d->options.online ? p->sequence : 0];
        if (!is_greedy(p) && (d->options.online || !d->has_logs)) {
            fill_logs(c, d->options.table->n_vocab, d->logs);
            d->has_logs = 1;
        }
        for (int node = 0; node >= 0 && sd_proposal_may_draft(p, node); node = draft_token(d, p, node, c))
            SD_TRY(sd_interrupted());
    }
    return SD_OK;
}

static sd_status commit(sd_drafter* base, int sequence, const int32_t* tokens, int n_tokens) {
    counts* c = &((ngram_drafter*)base)->counts[sequence];
    for (; c->n_text < n_tokens; c->n_text++) {
        int32_t token = tokens[c->n_text];
        add_unigram(c, token, 1);
        c->previous[c->n_text] = c->last[token];
        c->last[token] = c->n_text;
    }
    return SD_OK;
}

/* Counts the prompt at once: it takes some nanoseconds per token. */
static sd_status begin(sd_drafter* base, int sequence, const sd_prompt* prompt) {
    ngram_drafter* d = (ngram_drafter*)base;
    clear(&d->counts[sequence], d->options.table);
    return commit(base, sequence, prompt->tokens, prompt->n);
}

static void lay_out(ngram_drafter* d) {
    size_t n_vocab = (size_t)d->options.table->n_vocab, n_text = (size_t)d->drafting.n_text;
    int online = d->options.online, n_counts = online ? d->drafting.n_sequences : 1;
    d->token_drafter = sd_token_drafter_take(&d->base.arena, &d->drafting);
    d->followers.tokens = sd_arena_take(&d->base.arena, n_vocab, sizeof *d->followers.tokens);
    d->followers.counts = sd_arena_take(&d->base.arena, n_vocab, sizeof *d->followers.counts);
    d->row.values = sd_arena_take(&d->base.arena, n_vocab, sizeof *d->row.values);
    d->row.seen = sd_arena_take(&d->base.arena, n_vocab, sizeof *d->row.seen);
    d->logs = sd_arena_take(&d->base.arena, n_vocab, sizeof *d->logs);
    d->logits = sd_arena_take(&d->base.arena, n_vocab, sizeof *d->logits);
    d->counts = sd_arena_take(&d->base.arena, (size_t)n_counts, sizeof *d->counts);
    for (int i = 0; i < n_counts; i++) {
        counts c = {.unigrams = sd_arena_take(&d->base.arena, n_vocab, sizeof(int32_t))};
        if (online) {
            c.last = sd_arena_take(&d->base.arena, n_vocab, sizeof(int32_t));
            c.previous = sd_arena_take(&d->base.arena, n_text, sizeof(int32_t));
        }
        if (d->base.arena.base == NULL) continue;
        d->counts[i] = c;
        clear(&d->counts[i], d->options.table);
    }
}

sd_status sd_ngram_drafter_create(const sd_drafting* drafting, const sd_ngram_drafter_options* options,
                                  sd_drafter** drafter) {
    SD_NEW(ngram_drafter, d);
    d->base = (sd_drafter){.points = !drafting->draws, .propose = propose, .free = sd_drafter_release};
    if (options->online) d->base.begin = begin, d->base.commit = commit;
    d->drafting = *drafting;
    d->options = *options;
    return sd_drafter_made(&d->base, SD_ARENA_BUILD(&d->base.arena, lay_out(d)), drafter);
}
