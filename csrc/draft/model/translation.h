/* Two vocabularies: their tokens' strings, common tokens, encoding of texts, and retokenization of the
 * target's texts for a draft with another vocabulary. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "memory.h"
#include "status.h"

/* Bytes of tokens: token i has those from starts[i] to starts[i + 1]; a token without text has none.
 * Borrowed. */
typedef struct sd_token_strings {
    const char* bytes;
    const int32_t* starts; /* [n + 1] */
    int n;
} sd_token_strings;

typedef struct sd_translation sd_translation;

/* Directions: text of the target for the draft, text of the draft for the target, a source of the target for
 * the draft's encoder. */
typedef enum sd_encoding { SD_ENCODE_FOR_DRAFT, SD_ENCODE_FOR_TARGET, SD_ENCODE_SOURCE } sd_encoding;

/* Input of an encoding. */
typedef struct sd_encodable {
    sd_encoding what;
    const char* text; /* [n] valid UTF-8; NULL: a source; borrowed */
    int n;
    int n_before;          /* bytes of context before the text to encode, for the target */
    int begins;            /* no text comes before; then n_before is 0 */
    const int32_t* source; /* [n_source] ids of the target; borrowed */
    int n_source;
} sd_encodable;

/* Ids of an encoding. If there are more than `capacity`, n is greater, and none is set. */
typedef struct sd_encoded_ids {
    int32_t* ids; /* [capacity] owned by the caller */
    int capacity, n;
} sd_encoded_ids;

/* Constant tables, all borrowed from their owner, who also encodes. */
struct sd_translation {
    sd_token_strings target, draft;
    const int32_t* draft_of;    /* [target.n] the draft's token of the same string or meaning; -1: none */
    const int32_t* target_of;   /* [draft.n] the inverse; each token is in at most one pair */
    const int32_t* byte_tokens; /* [256] the draft's token of each single byte; -1: none */
    const int32_t* first;       /* [n_first] leading special tokens of the draft's texts */
    int n_first;
    const int32_t* target_first; /* [n_target_first] the same of the target; not translated */
    int n_target_first;
    /* 1: the tokenizer adds a space at the start of a text, which is not part of the text. */
    int target_strips, draft_strips;
    /* Encode from a thread that does not hold the GIL; `caller` is that thread's. */
    sd_status (*encode)(const sd_translation* self, void* caller, const sd_encodable* text,
                        sd_encoded_ids* ids);
    /* Statistics: rows of the draft, and the summed probability of common tokens times SD_SHARE_UNIT. */
    atomic_llong *n_rows, *named;
};

#define SD_SHARE_UNIT (1 << 20)

/* A token's bytes; *n: their number. An unknown id has no text. */
const char* sd_token_string(const sd_token_strings* strings, int32_t token, int* n);

/* Translate logits [n_draft] of a draft's tokens to the target's, [n_target], -infinity for tokens that the
 * draft lacks. Returns the draft's probability of the common tokens. All borrowed. */
double sd_translate_logits(const sd_translation* translation, const float* from, float* to);

/* A text of the target in the tokens of a draft with another vocabulary. When the text grows, only its last
 * words are tokenized again. */
typedef struct sd_retokenized_text {
    const sd_translation* translation; /* borrowed */
    void* caller;                      /* for its encoder; borrowed */
    /* [text_capacity] the target's tokens read, and [text_capacity + 1] the first byte of each; a token
     * without text counts as one byte. */
    int32_t *text, *begins;
    int n_text, text_capacity;
    /* [capacity] the draft's tokens, and the end byte of each; -1: unknown. */
    int32_t *tokens, *ends;
    int n, capacity;
    int full;             /* the draft's tokens exceeded the capacity and do not cover the text */
    int within_character; /* the text ends within a character that the draft has no tokens for */
    char* piece;          /* [SD_RETOKENIZED_PIECE] text encoded at once */
    int32_t* ids;         /* [SD_RETOKENIZED_PIECE] ids of that text */
} sd_retokenized_text;

/* Most bytes encoded at once. */
#define SD_RETOKENIZED_PIECE 8192

/* Take one with arrays from the arena, except for `piece` and `ids`, which several may share. */
sd_retokenized_text sd_retokenized_text_take(sd_arena* arena, const sd_translation* translation, void* caller,
                                             int text_capacity, int capacity);

/* Start over for another text. */
void sd_retokenized_text_begin(sd_retokenized_text* retokenized);

/* Retokenize text [n_text] of the target, from the first difference to the last text on. */
sd_status sd_retokenized_text_follow(sd_retokenized_text* retokenized, const int32_t* text, int n_text);

/* Can the draft continue at the end of the text? */
static inline int sd_retokenized_text_is_whole(const sd_retokenized_text* r) {
    return r->n > 0 && !r->full && !r->within_character;
}

/* Bytes of valid UTF-8 at the start of text [n]. */
int sd_utf8_valid(const char* text, int n);

/* Is text [n], which does not start with a complete character, the start of one? */
int sd_utf8_begun(const char* text, int n);
