#include "translation.h"

#include <math.h>
#include <string.h>

#include "interrupt.h"
#include "kernels.h"
#include "row_distribution.h"

const char* sd_token_string(const sd_token_strings* s, int32_t token, int* n) {
    *n = token >= 0 && token < s->n ? s->starts[token + 1] - s->starts[token] : 0;
    return *n > 0 ? s->bytes + s->starts[token] : NULL;
}

double sd_translate_logits(const sd_translation* t, const float* from, float* to) {
    for (int i = 0; i < t->target.n; i++) to[i] = t->draft_of[i] < 0 ? -INFINITY : from[t->draft_of[i]];
    float most = from[sd_kernels_get()->argmax(t->draft.n, from)];
    return sd_row_mass(to, t->target.n, most) / sd_row_mass(from, t->draft.n, most);
}

/* Last tokens to tokenize again when text follows, which may change where they end; extended back to the
 * start of a word, if one is near. */
#define LOOK_BACK 2
#define MOST_BACK 24

sd_retokenized_text sd_retokenized_text_take(sd_arena* arena, const sd_translation* translation, void* caller,
                                             int text_capacity, int capacity) {
    return SD_MAKE(sd_retokenized_text, .translation = translation, .caller = caller,
                   .text = sd_arena_take(arena, (size_t)text_capacity, sizeof(int32_t)),
                   .begins = sd_arena_take(arena, (size_t)text_capacity + 1, sizeof(int32_t)),
                   .tokens = sd_arena_take(arena, (size_t)capacity, sizeof(int32_t)),
                   .ends = sd_arena_take(arena, (size_t)capacity, sizeof(int32_t)),
                   .text_capacity = text_capacity, .capacity = capacity);
}

static void push(sd_retokenized_text* r, int32_t token, int32_t end) {
    if (r->n == r->capacity) {
        r->full = 1;
        return;
    }
    r->tokens[r->n] = token;
    r->ends[r->n++] = end;
}

void sd_retokenized_text_begin(sd_retokenized_text* r) {
    r->n = r->n_text = r->full = r->within_character = 0;
    r->begins[0] = 0;
    for (int i = 0; i < r->translation->n_first; i++) push(r, r->translation->first[i], 0);
}

/* Does the draft's token k begin a word, or have no text? */
static int begins_word(const sd_retokenized_text* r, int k) {
    int n;
    const char* string = sd_token_string(&r->translation->draft, r->tokens[k], &n);
    return n == 0 || string[0] == ' ' || string[0] == '\n';
}

/* Drop the draft's tokens that text after the byte `limit` may change. */
static void cut(sd_retokenized_text* r, int32_t limit) {
    int first = r->translation->n_first, k = r->n;
    while (k > first && (r->ends[k - 1] < 0 || r->ends[k - 1] > limit)) k--;
    for (int back = 0; k > first && back < MOST_BACK; back++) {
        if (back >= LOOK_BACK && begins_word(r, k)) break;
        for (k--; k > first && r->ends[k - 1] < 0;) k--;
    }
    r->n = k;
    r->full = r->within_character = 0;
}

typedef struct piece {
    int32_t begin; /* its first byte in the text */
    int n;         /* its bytes so far */
} piece;

/* Encode text [n] of a piece, valid UTF-8, from byte `at` of the piece on. */
static sd_status encode(sd_retokenized_text* r, const piece* p, int at, int n) {
    int32_t begin = p->begin + at, end = begin + n;
    int lead = 0, length;
    while (lead < r->n_text && sd_token_string(&r->translation->target, r->text[lead], &length) == NULL)
        lead++;
    sd_encodable text = {
        .what = SD_ENCODE_FOR_DRAFT, .text = r->piece + at, .n = n, .begins = begin == r->begins[lead]};
    if (text.begins && r->translation->target_strips && text.text[0] == ' ') text.text++, text.n--;
    SD_TRY(sd_interrupted());
    sd_encoded_ids ids = {.ids = r->ids, .capacity = SD_RETOKENIZED_PIECE};
    if (text.n > 0) SD_TRY(r->translation->encode(r->translation, r->caller, &text, &ids));
    if (ids.n > ids.capacity) {
        r->full = 1;
        return SD_OK;
    }
    int32_t total = 0;
    for (int i = 0; i < ids.n; i++) {
        sd_token_string(&r->translation->draft, ids.ids[i], &length);
        total += length;
    }
    /* a tokenizer may prepend a space; if it changes the text, byte positions are unknown */
    int known = total == text.n || (text.begins && total == text.n + 1);
    int32_t left = total;
    for (int i = 0; i < ids.n; i++) {
        sd_token_string(&r->translation->draft, ids.ids[i], &length);
        left -= length;
        push(r, ids.ids[i], i == ids.n - 1 ? end : known ? end - left : -1);
    }
    return SD_OK;
}

/* Encode the first `most` bytes of the piece and keep the rest, including an incomplete character. Invalid
 * bytes become byte tokens. `last`: no text follows. */
static sd_status flush(sd_retokenized_text* r, piece* p, int most, int last) {
    int at = 0;
    while (at < most) {
        int n = sd_utf8_valid(r->piece + at, most - at);
        SD_TRY(n > 0 ? encode(r, p, at, n) : SD_OK);
        at += n;
        if (at == most) break;
        int begun = sd_utf8_begun(r->piece + at, most - at);
        if (begun && !last) break;
        int32_t token = r->translation->byte_tokens[(unsigned char)r->piece[at]];
        if (token >= 0)
            push(r, token, p->begin + at + 1);
        else
            r->within_character |= begun;
        at++;
    }
    memmove(r->piece, r->piece + at, (size_t)(p->n - at));
    p->begin += at;
    p->n -= at;
    return SD_OK;
}

/* Where to divide a full piece: before the last word, unless that is half of it. */
static int division_of(const sd_retokenized_text* r, const piece* p) {
    for (int at = p->n - 1; at > p->n / 2; at--)
        if (r->piece[at] == ' ' || r->piece[at] == '\n') return at;
    return p->n;
}

/* Append a string [n] to the piece, which is encoded when full. */
static sd_status append(sd_retokenized_text* r, piece* p, const char* string, int n) {
    while (n > 0) {
        int capacity = SD_RETOKENIZED_PIECE - p->n, some = n < capacity ? n : capacity;
        memcpy(r->piece + p->n, string, (size_t)some);
        p->n += some, string += some, n -= some;
        if (p->n < SD_RETOKENIZED_PIECE) continue;
        SD_TRY(flush(r, p, division_of(r, p), 0));
    }
    return SD_OK;
}

/* Is the text's token `at` one of the target's leading special tokens? */
static int is_first(const sd_retokenized_text* r, int at) {
    const sd_translation* t = r->translation;
    for (int i = 0; i <= at; i++)
        if (i >= t->n_target_first || r->text[i] != t->target_first[i]) return 0;
    return 1;
}

/* Encode the text from its byte `begin` on. */
static sd_status encode_from(sd_retokenized_text* r, int32_t begin) {
    int at = r->n_text, n;
    while (at > 0 && r->begins[at] > begin) at--;
    piece p = {.begin = begin};
    for (int skip = begin - r->begins[at]; at < r->n_text && !r->full; at++, skip = 0) {
        const char* string = sd_token_string(&r->translation->target, r->text[at], &n);
        sd_status status = SD_OK;
        if (string != NULL) {
            status = append(r, &p, string + skip, n - skip);
        } else if (skip == 0) {
            status = flush(r, &p, p.n, 1);
            int32_t token = r->translation->draft_of[r->text[at]];
            if (token >= 0 && !is_first(r, at)) push(r, token, r->begins[at + 1]);
            p.begin = r->begins[at + 1];
            r->within_character = 0;
        }
        if (status != SD_OK) return status;
    }
    return flush(r, &p, p.n, 1);
}

sd_status sd_retokenized_text_follow(sd_retokenized_text* r, const int32_t* text, int n_text) {
    if (n_text > r->text_capacity) {
        r->full = 1;
        return SD_OK;
    }
    int same = 0;
    while (same < n_text && same < r->n_text && r->text[same] == text[same]) same++;
    if (same == n_text && same == r->n_text) return SD_OK;
    cut(r, r->begins[same]);
    for (int i = same; i < n_text; i++) {
        int n;
        sd_token_string(&r->translation->target, text[i], &n);
        r->text[i] = text[i];
        r->begins[i + 1] = r->begins[i] + (n > 0 ? n : 1);
    }
    r->n_text = n_text;
    sd_status status = encode_from(r, r->n > 0 ? r->ends[r->n - 1] : 0);
    if (status != SD_OK) r->n_text = 0, r->n = r->translation->n_first; /* read again next time */
    return status;
}

/* Bytes of the character that begins with this byte; 0: invalid. */
static int length_of(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

/* Bytes at the start of text [n] that fit a character, up to `length`. */
static int matching(const unsigned char* text, int n, int length) {
    int i = 1;
    for (; i < length && i < n; i++) {
        unsigned char low = 0x80, high = 0xBF;
        if (i == 1 && text[0] == 0xE0) low = 0xA0;
        if (i == 1 && text[0] == 0xED) high = 0x9F;
        if (i == 1 && text[0] == 0xF0) low = 0x90;
        if (i == 1 && text[0] == 0xF4) high = 0x8F;
        if (text[i] < low || text[i] > high) break;
    }
    return i;
}

int sd_utf8_valid(const char* text, int n) {
    const unsigned char* bytes = (const unsigned char*)text;
    int at = 0;
    while (at < n) {
        int length = length_of(bytes[at]);
        if (length == 0 || matching(bytes + at, n - at, length) < length) break;
        at += length;
    }
    return at;
}

int sd_utf8_begun(const char* text, int n) {
    const unsigned char* bytes = (const unsigned char*)text;
    int length = n > 0 ? length_of(bytes[0]) : 0;
    return n < length && matching(bytes, n, length) == n;
}
