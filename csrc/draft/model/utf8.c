#include "utf8.h"

/* How many bytes the character has that begins with this byte; 0: none does. */
static int length_of(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

/* Bytes of a character that text [n] begins with: as many as fit one, up to `length`. */
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
