/* Characters in bytes: where UTF-8 is valid, and where a character has only begun. */
#ifndef SD_UTF8_H
#define SD_UTF8_H

/* Bytes of the valid UTF-8 that text [n] begins with. */
int sd_utf8_valid(const char* text, int n);

/* Is text [n], which does not begin with a character, the beginning of one? */
int sd_utf8_begun(const char* text, int n);

#endif
