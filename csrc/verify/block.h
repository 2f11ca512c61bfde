/* Block verification: a chain of guesses judged as a whole. */
#ifndef SD_BLOCK_H
#define SD_BLOCK_H

#include "verify.h"

/* Sun, Mendlovic, Leviathan et al. 2024, Block Verification Accelerates Speculative Decoding (arXiv
 * 2403.10444), Algorithm 2. The tree is a chain and its lenience 1. Each guess has a chance
 * of its own to be the last one kept, whatever becomes of those before it, so in expectation no other
 * rule keeps more. */
sd_status sd_verify_block(const sd_verify_input* input, sd_verdict* verdict);

#endif
