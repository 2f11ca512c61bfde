#include "ngram_table.h"

#include "interrupt.h"

/* Entries that are checked between two looks for an interruption: a power of two. */
#define PIECE 65536

/* Is entry i of an array of the k-grams in low to high? */
static sd_status check_entry(const char* array, int64_t i, int k, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return i % PIECE == 0 ? sd_interrupted() : SD_OK;
    return sd_fail(SD_ERR_VALUE, "%s[%lld] of the %d-grams is %lld, expected %lld to %lld", array,
                   (long long)i, k, (long long)value, (long long)low, (long long)high);
}

static sd_status check_level(const sd_ngram_table* t, int k, int64_t n_before) {
    const sd_ngram_level* level = &t->levels[k - 2];
    sd_status status = SD_OK;
    if (level->n > INT32_MAX)
        return sd_fail(SD_ERR_VALUE, "there are %lld %d-grams, expected at most %d", (long long)level->n, k,
                       INT32_MAX);
    for (int64_t i = 0; i <= n_before && status == SD_OK; i++) {
        int64_t low = i == n_before ? level->n : i == 0 ? 0 : level->starts[i - 1];
        status = check_entry("starts", i, k, level->starts[i], low, i == 0 ? 0 : level->n);
    }
    for (int64_t i = 0; i < n_before && status == SD_OK; i++)
        for (int64_t j = level->starts[i], low = 0; j < level->starts[i + 1] && status == SD_OK; j++) {
            status = check_entry("tokens", j, k, level->tokens[j], low, t->n_vocab - 1);
            if (status == SD_OK) status = check_entry("counts", j, k, level->counts[j], 1, INT32_MAX);
            low = (int64_t)level->tokens[j] + 1;
        }
    return status;
}

sd_status sd_ngram_table_check(const sd_ngram_table* t) {
    for (int i = 0; i < t->n_vocab; i++)
        if (t->unigrams[i] < 0)
            return sd_fail(SD_ERR_VALUE, "unigrams[%d] is %d, expected at least 0", i, (int)t->unigrams[i]);
    sd_status status = SD_OK;
    int64_t n_before = t->n_vocab;
    for (int k = 2; k <= t->n && status == SD_OK; k++) {
        status = check_level(t, k, n_before);
        n_before = t->levels[k - 2].n;
    }
    return status;
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
