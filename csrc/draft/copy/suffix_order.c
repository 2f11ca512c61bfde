#include "suffix_order.h"

#include <string.h>

#include "interrupt.h"

/* Places that are sorted between two looks for an interruption: a power of two. */
#define PIECE 1024

static sd_suffix suffix_at(const int32_t* tokens, int32_t place) {
    return (sd_suffix){tokens + place, place + 1};
}

/* The i-th token of a suffix, from its end; -1 where it has ended. */
static int32_t token_of(sd_suffix s, int i) { return i < s.n ? s.last[-i] : -1; }

/* Tokens that two suffixes have in common, `depth` at most. */
static int common(sd_suffix a, sd_suffix b, int depth) {
    int i = 0;
    while (i < depth && token_of(a, i) >= 0 && token_of(a, i) == token_of(b, i)) i++;
    return i;
}

/* Is suffix a before suffix b? Not if they are equal. */
static int before(sd_suffix a, sd_suffix b, int depth) {
    int i = common(a, b, depth);
    if (i == depth) return 0;
    int32_t token_a = token_of(a, i), token_b = token_of(b, i);
    return token_b >= 0 && token_a < token_b;
}

/* Merge sorted runs of places, the first [n_left], into merged [n]. Places of the left run are lower. */
static sd_status merge(const int32_t* tokens, int depth, const int32_t* left, int n_left,
                       const int32_t* right, int n_right, int32_t* merged) {
    for (int i = 0, j = 0; i + j < n_left + n_right;) {
        if ((i + j) % PIECE == PIECE - 1) {
            sd_status status = sd_interrupted();
            if (status != SD_OK) return status;
        }
        int from_right = i == n_left || (j < n_right && before(suffix_at(tokens, right[j]),
                                                               suffix_at(tokens, left[i]), depth));
        int32_t next = from_right ? right[j] : left[i];
        merged[i + j] = next;
        i += !from_right;
        j += from_right;
    }
    return SD_OK;
}

sd_status sd_suffix_sort(const int32_t* tokens, int depth, int32_t* places, int n, int32_t* spare) {
    int32_t *from = places, *to = spare;
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t i = 0; i < n; i += 2 * width) {
            int n_left = (int)(n - i < width ? n - i : width);
            int n_right = (int)(n - i - n_left < width ? n - i - n_left : width);
            sd_status status = i % PIECE == 0 ? sd_interrupted() : SD_OK;
            if (status == SD_OK)
                status = merge(tokens, depth, from + i, n_left, from + i + n_left, n_right, to + i);
            if (status != SD_OK) return status;
        }
        int32_t* sorted = to;
        to = from;
        from = sorted;
    }
    if (from != places) memcpy(places, from, (size_t)n * sizeof *places);
    return SD_OK;
}

/* How many of the first `n` places lie before a suffix; with `equals`, or have an equal one. */
static int count_before(const sd_suffix_order* o, const int32_t* tokens, int n, sd_suffix s, int equals) {
    int low = 0, high = n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        sd_suffix there = suffix_at(tokens, o->places[middle]);
        if (equals ? !before(s, there, o->depth) : before(there, s, o->depth))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* From the last place to the first: each goes where it belongs, and what lies behind moves once. */
sd_status sd_suffix_order_add(sd_suffix_order* o, const int32_t* tokens, const int32_t* places, int n) {
    int end = o->n;
    for (int i = n - 1; i >= 0; i--) {
        sd_status status = i % PIECE == PIECE - 1 ? sd_interrupted() : SD_OK;
        if (status != SD_OK) return status;
        int at = count_before(o, tokens, end, suffix_at(tokens, places[i]), 1);
        memmove(o->places + at + i + 1, o->places + at, (size_t)(end - at) * sizeof *o->places);
        o->places[at + i] = places[i];
        end = at;
    }
    o->n += n;
    return SD_OK;
}

sd_suffix_range sd_suffix_order_find(const sd_suffix_order* o, const int32_t* tokens, sd_suffix s) {
    int at = count_before(o, tokens, o->n, s, 0);
    int left = at > 0 ? common(suffix_at(tokens, o->places[at - 1]), s, o->depth) : 0;
    int right = at < o->n ? common(suffix_at(tokens, o->places[at]), s, o->depth) : 0;
    int length = left > right ? left : right;
    if (length == 0) return (sd_suffix_range){0, 0, 0};
    int low = 0, high = at; /* before `at` the suffixes agree the better the later they come */
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (common(suffix_at(tokens, o->places[middle]), s, length) < length)
            low = middle + 1;
        else
            high = middle;
    }
    sd_suffix_range range = {low, at, length};
    for (low = at, high = o->n; low < high;) {
        int middle = low + (high - low) / 2;
        if (common(suffix_at(tokens, o->places[middle]), s, length) == length)
            low = middle + 1;
        else
            high = middle;
    }
    range.end = low;
    return range;
}
