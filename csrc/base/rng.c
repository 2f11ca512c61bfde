#include "rng.h"

void sd_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

static void draw(sd_stream stream, uint32_t position, sd_purpose purpose, uint32_t index, uint32_t word[4]) {
    const uint32_t counter[4] = {position, index, (uint32_t)purpose, stream.sequence};
    const uint32_t key[2] = {(uint32_t)stream.seed, (uint32_t)(stream.seed >> 32)};
    sd_philox(counter, key, word);
}

double sd_uniform(sd_stream stream, uint32_t position, sd_purpose purpose, uint32_t index) {
    uint32_t word[4];
    draw(stream, position, purpose, index, word);
    uint64_t bits = ((uint64_t)(word[0] >> 5) << 26) | (word[1] >> 6);
    return (double)bits * 0x1p-53;
}

sd_stream sd_stream_inner(sd_stream stream, uint32_t position, uint32_t index) {
    uint32_t word[4];
    draw(stream, position, SD_DRAW_INNER, index, word);
    return (sd_stream){((uint64_t)word[1] << 32) | word[0], stream.sequence};
}
