/* A text of the target as a draft with another vocabulary reads it: in the draft's own tokens, as the draft's
 * tokenizer cuts it. When the text goes on, its last words are cut again, never all of it. */
#ifndef SD_READING_H
#define SD_READING_H

#include "memory.h"
#include "translation.h"

typedef struct sd_reading {
    const sd_translation* translation; /* borrowed */
    void* caller;                      /* for its encoder; borrowed */
    /* [text_room] the target's tokens that have been read, and [text_room + 1] where each begins: in bytes,
     * where a token that stands for no text counts as one. */
    int32_t *text, *begins;
    int n_text, text_room;
    /* [room] the draft's tokens, and where each ends, as above; -1 where that is not known. */
    int32_t *tokens, *ends;
    int n, room;
    int full; /* the draft's tokens are not all of the text: there was no room for them */
    /* The text ends within a character that the draft has no tokens for. */
    int within_character;
    char* piece;  /* [SD_READING_PIECE] what is encoded at once */
    int32_t* ids; /* [SD_READING_PIECE] what it is encoded to */
} sd_reading;

/* Bytes that are encoded at once, at most. */
#define SD_READING_PIECE 8192

/* A reading whose arrays are pieces of the arena, but for `piece` and `ids`, which readings may share. */
sd_reading sd_reading_take(sd_arena* arena, const sd_translation* translation, void* caller, int text_room,
                           int room);

/* Another text begins. */
void sd_reading_begin(sd_reading* reading);

/* Read text [n_text] of the target, from where it differs from what was read. */
sd_status sd_reading_follow(sd_reading* reading, const int32_t* text, int n_text);

/* Can the draft go on where the text ends? */
static inline int sd_reading_is_whole(const sd_reading* r) {
    return r->n > 0 && !r->full && !r->within_character;
}

#endif
