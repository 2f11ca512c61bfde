/* Two vocabularies: what their tokens stand for, which of them both have, how texts are encoded, and how a
 * draft with another vocabulary than the target's reads the target's texts. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "memory.h"
#include "status.h"

/* The bytes that tokens add to a text: token i those from starts[i] to starts[i + 1]; a token that stands for
 * no text has none. Borrowed. */
typedef struct sd_token_strings {
    const char* bytes;
    const int32_t* starts; /* [n + 1] */
    int n;
} sd_token_strings;

typedef struct sd_translation sd_translation;

/* What is encoded: text of the target for the draft, text of the draft for the target, a source of the target
 * for the draft's encoder. */
typedef enum sd_encoding { SD_ENCODE_FOR_DRAFT, SD_ENCODE_FOR_TARGET, SD_ENCODE_SOURCE } sd_encoding;

/* What is to be encoded. */
typedef struct sd_encodable {
    sd_encoding what;
    const char* text; /* [n] valid UTF-8; NULL: a source. Borrowed */
    int n;
    int n_before; /* of the text's bytes: what stands before that which is to be encoded, for the target */
    int begins;   /* nothing stands before the text; then n_before is 0 */
    const int32_t* source; /* [n_source] ids of the target; borrowed */
    int n_source;
} sd_encodable;

/* Ids with room for as many. Where there are more, n is greater than room, and none is set. */
typedef struct sd_encoded_ids {
    int32_t* ids; /* [room] owned by the caller */
    int capacity, n;
} sd_encoded_ids;

/* Tables that never change. All borrowed from their owner, who also encodes. */
struct sd_translation {
    sd_token_strings target, draft;
    const int32_t* draft_of;    /* [target.n] the draft's token of the same string or meaning; -1: none */
    const int32_t* target_of;   /* [draft.n] the other way; pairs of tokens, so each is in one pair at most */
    const int32_t* byte_tokens; /* [256] the draft's token of each single byte; -1: none */
    const int32_t* first;       /* [n_first] what each text of the draft begins with */
    int n_first;
    const int32_t* target_first; /* [n_target_first] the same of the target, which is not translated */
    int n_target_first;
    /* A space at the beginning of a text in its tokens is the tokenizer's, not the text's. */
    int target_strips, draft_strips;
    /* Encode, for a thread that computes without the interpreter's lock; `caller` is its own. */
    sd_status (*encode)(const sd_translation* self, void* caller, const sd_encodable* text,
                        sd_encoded_ids* ids);
    /* How much of the draft's law the target can name: rows, and their shares times SD_SHARE_UNIT. */
    atomic_llong *n_rows, *named;
};

#define SD_SHARE_UNIT (1 << 20)

/* A token's bytes; *n is how many. An id that the strings have not stands for no text. */
const char* sd_token_string(const sd_token_strings* strings, int32_t token, int* n);

/* The logits [n_draft] of a draft's tokens to those of the target's tokens, [n_target], -infinity where both
 * have no such token. Returns the share of the draft's law that the target can name. All borrowed. */
double sd_translate_logits(const sd_translation* translation, const float* from, float* to);

/* A text of the target as a draft with another vocabulary reads it: in the draft's own tokens, as the draft's
 * tokenizer cuts it. When the text goes on, its last words are cut again, never all of it. */
typedef struct sd_retokenized_text {
    const sd_translation* translation; /* borrowed */
    void* caller;                      /* for its encoder; borrowed */
    /* [text_room] the target's tokens that have been read, and [text_room + 1] where each begins: in bytes,
     * where a token that stands for no text counts as one. */
    int32_t *text, *begins;
    int n_text, text_capacity;
    /* [room] the draft's tokens, and where each ends, as above; -1 where that is not known. */
    int32_t *tokens, *ends;
    int n, capacity;
    int full;             /* the draft's tokens are not all of the text: there was no room for them */
    int within_character; /* The text ends within a character that the draft has no tokens for. */
    char* piece;          /* [SD_RETOKENIZED_PIECE] what is encoded at once */
    int32_t* ids;         /* [SD_RETOKENIZED_PIECE] what it is encoded to */
} sd_retokenized_text;

/* Bytes that are encoded at once, at most. */
#define SD_RETOKENIZED_PIECE 8192

/* A reading whose arrays are pieces of the arena, but for `piece` and `ids`, which readings may share. */
sd_retokenized_text sd_retokenized_text_take(sd_arena* arena, const sd_translation* translation, void* caller,
                                             int text_capacity, int capacity);

/* Another text begins. */
void sd_retokenized_text_begin(sd_retokenized_text* retokenized);

/* Read text [n_text] of the target, from where it differs from what was read. */
sd_status sd_retokenized_text_follow(sd_retokenized_text* retokenized, const int32_t* text, int n_text);

/* Can the draft go on where the text ends? */
static inline int sd_retokenized_text_is_whole(const sd_retokenized_text* r) {
    return r->n > 0 && !r->full && !r->within_character;
}

/* Bytes of the valid UTF-8 that text [n] begins with. */
int sd_utf8_valid(const char* text, int n);

/* Is text [n], which does not begin with a character, the beginning of one? */
int sd_utf8_begun(const char* text, int n);
