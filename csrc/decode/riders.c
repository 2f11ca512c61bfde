#include "riders.h"

int sd_riders_append(const sd_riders* riders, int n_rows, int depth, int32_t* tokens, int32_t* parents,
                     int32_t* first) {
    int n = n_rows;
    for (int row = 0; row < n_rows; row++) {
        int room =
            depth - 1; /* behind the guesses come the target's own tokens, of this round and the next */
        for (int at = row; parents[at] >= 0; at = parents[at]) room--;
        first[row] = n;
        for (int k = 0; k < riders->n && k < room; k++, n++) {
            tokens[n] = -1 - k;
            parents[n] = k == 0 ? row : n - 1;
        }
    }
    first[n_rows] = n;
    return n;
}
