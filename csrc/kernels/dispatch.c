/* Which table this machine can run, and which one this process uses. */
#include <string.h>

#include "kernels.h"

static const sd_kernels* chosen;

float sdk_tree_sum(const float* lanes) {
    float sum[SD_LANES / 2];
    for (int i = 0; i < 8; i++) sum[i] = lanes[i] + lanes[i + 8];
    for (int i = 0; i < 4; i++) sum[i] += sum[i + 4];
    for (int i = 0; i < 2; i++) sum[i] += sum[i + 2];
    return sum[0] + sum[1];
}

int sd_kernels_available(const sd_kernels** tables, int n_max) {
    const sd_kernels* found[4];
    int n = 0;
#if defined(__x86_64__) || defined(__i386__)
    /* These built-ins also ask whether the operating system saves the wide registers. */
    __builtin_cpu_init();
    if (sdk_table_avx512() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        found[n++] = sdk_table_avx512();
    if (sdk_table_avx2() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        found[n++] = sdk_table_avx2();
#endif
    if (sdk_table_neon()) found[n++] = sdk_table_neon(); /* part of every AArch64 */
    found[n++] = sdk_table_ref();
    for (int i = 0; i < n && i < n_max; i++) tables[i] = found[i];
    return n;
}

sd_status sd_kernels_choose(const char* forced) {
    const sd_kernels* tables[4];
    int n = sd_kernels_available(tables, 4);
    if (forced == NULL || *forced == '\0') {
        chosen = tables[0];
        return SD_OK;
    }
    for (int i = 0; i < n; i++) {
        if (strcmp(forced, tables[i]->name) == 0) {
            chosen = tables[i];
            return SD_OK;
        }
    }
    return sd_fail(SD_ERR_VALUE, "SPECDEC_KERNELS is \"%s\", but this machine has: %s%s%s%s%s", forced,
                   tables[0]->name, n > 1 ? ", " : "", n > 1 ? tables[1]->name : "", n > 2 ? ", " : "",
                   n > 2 ? tables[2]->name : "");
}

const sd_kernels* sd_kernels_get(void) {
    if (chosen == NULL) sd_kernels_choose(NULL);
    return chosen;
}
