#include "ngram_table.h"

#include <math.h>
#include <string.h>

#include "interrupt.h"

/* Entries that are checked between two looks for an interruption: a power of two. */
#define PIECE 65536

static sd_status check_level(int n_vocab, int k, int64_t n_before, const sd_ngram_level* level) {
    if (level->n > INT32_MAX)
        return sd_fail(SD_ERR_VALUE, "there are %lld %d-grams, expected at most %d", (long long)level->n, k,
                       INT32_MAX);
    for (int64_t i = 0; i <= n_before; i++) {
        sd_status status = i % PIECE == 0 ? sd_interrupted() : SD_OK;
        if (status != SD_OK) return status;
        int64_t low = i == 0 ? 0 : level->starts[i - 1], high = i == 0 ? 0 : level->n;
        if (i == n_before) low = level->n;
        if (level->starts[i] < low || level->starts[i] > high)
            return sd_fail(SD_ERR_VALUE, "starts[%lld] of the %d-grams is %lld, expected %lld to %lld",
                           (long long)i, k, (long long)level->starts[i], (long long)low, (long long)high);
    }
    for (int64_t i = 0; i < n_before; i++) {
        sd_status status = i % PIECE == 0 ? sd_interrupted() : SD_OK;
        if (status != SD_OK) return status;
        for (int64_t j = level->starts[i]; j < level->starts[i + 1]; j++) {
            int32_t low = j == level->starts[i] ? 0 : level->tokens[j - 1] + 1;
            if (level->tokens[j] < low || level->tokens[j] >= n_vocab)
                return sd_fail(SD_ERR_VALUE, "tokens[%lld] of the %d-grams is %d, expected %d to %d",
                               (long long)j, k, (int)level->tokens[j], (int)low, n_vocab - 1);
            if (level->counts[j] < 1)
                return sd_fail(SD_ERR_VALUE, "counts[%lld] of the %d-grams is %d, expected at least 1",
                               (long long)j, k, (int)level->counts[j]);
        }
    }
    return SD_OK;
}

static sd_status check(int n_vocab, const int32_t* counts, int n, const sd_ngram_level* levels) {
    if (n < 1 || n > SD_MAX_NGRAM) return sd_fail(SD_ERR_VALUE, "n is %d, expected 1 to %d", n, SD_MAX_NGRAM);
    for (int i = 0; i < n_vocab; i++)
        if (counts[i] < 0)
            return sd_fail(SD_ERR_VALUE, "unigrams[%d] is %d, expected at least 0", i, (int)counts[i]);
    int64_t n_before = n_vocab;
    for (int k = 2; k <= n; k++) {
        sd_status status = check_level(n_vocab, k, n_before, &levels[k - 2]);
        if (status != SD_OK) return status;
        n_before = levels[k - 2].n;
    }
    return SD_OK;
}

sd_unigrams sd_unigrams_take(sd_arena* arena, int n_vocab) {
    size_t n = (size_t)n_vocab;
    return (sd_unigrams){.counts = sd_arena_take(arena, n, sizeof(int32_t)),
                         .logs = sd_arena_take(arena, n, sizeof(float))};
}

void sd_unigrams_share(sd_unigrams* u, int n_vocab) {
    u->total = u->n > 0 ? (double)(u->n + u->n_different) : 1.0;
    u->share = (double)(u->n > 0 ? u->n_different : 1) / n_vocab;
}

void sd_unigrams_log(sd_unigrams* u, int n_vocab) {
    if (!u->logs_stale) return;
    for (int i = 0; i < n_vocab; i++) u->logs[i] = logf((float)sd_unigram_weight(u, i));
    u->logs_stale = 0;
}

void sd_unigrams_fill(sd_unigrams* u, int n_vocab) {
    u->n = 0;
    u->n_different = 0;
    u->best = 0;
    for (int i = 0; i < n_vocab; i++) {
        u->n += u->counts[i];
        u->n_different += u->counts[i] > 0;
        if (u->counts[i] > u->counts[u->best]) u->best = i;
    }
    sd_unigrams_share(u, n_vocab);
    u->logs_stale = 1;
    sd_unigrams_log(u, n_vocab);
}

sd_status sd_ngram_table_create(sd_ngram_table* table, int n_vocab, const int32_t* counts, int n,
                                const sd_ngram_level* levels, int back_off) {
    sd_status status = check(n_vocab, counts, n, levels);
    if (status != SD_OK) return status;
    sd_ngram_table t = {.n_vocab = n_vocab, .n = n, .back_off = back_off};
    status = SD_ARENA_BUILD(&t.arena, t.unigrams = sd_unigrams_take(&t.arena, n_vocab));
    if (status != SD_OK) return status;
    memcpy(t.unigrams.counts, counts, (size_t)n_vocab * sizeof *counts);
    for (int i = 0; i < n_vocab; i++) /* they may have changed since the check */
        if (t.unigrams.counts[i] < 0) t.unigrams.counts[i] = 0;
    sd_unigrams_fill(&t.unigrams, n_vocab);
    for (int k = 0; k < n - 1; k++) t.levels[k] = levels[k];
    *table = t;
    return SD_OK;
}

void sd_ngram_table_free(sd_ngram_table* table) { sd_arena_free(&table->arena); }

void sd_ngram_after(const sd_ngram_table* t, int k, int64_t entry, int64_t* begin, int64_t* end) {
    *begin = *end = 0;
    if (entry < 0 || k >= t->n) return;
    const sd_ngram_level* level = &t->levels[k - 1];
    int64_t from = level->starts[entry], to = level->starts[entry + 1];
    if (from >= 0 && from < to && to <= level->n) *begin = from, *end = to;
}

int64_t sd_ngram_find(const sd_ngram_table* t, int k, int64_t entry, int32_t token) {
    if (k == 0) return token;
    int64_t begin, end;
    sd_ngram_after(t, k, entry, &begin, &end);
    int64_t past = end;
    while (begin < end) { /* the first that is not smaller */
        int64_t middle = begin + (end - begin) / 2;
        if (t->levels[k - 1].tokens[middle] < token)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin < past && t->levels[k - 1].tokens[begin] == token ? begin : -1;
}
