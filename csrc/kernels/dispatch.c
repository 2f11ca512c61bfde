/* Choice of the kernel table: those this machine can run, and the one this process uses. */
#include <stdio.h>
#include <string.h>

#include "parts.h"
#include "system.h"

#if defined(SD_X86_SETS) /* their files are compiled for them */
#include <cpuid.h>

/* Constants that GCC 12's headers lack. */
static int has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 29);
}

static int has_avxvnni(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

/* Whether the processor has tiles for int8 and bf16, and the system lets this process use them. */
static int may_use_tiles(void) {
    const unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & wanted) == wanted && sd_tiles_permitted();
}
#endif

#define NAME_ENTRY(name, format) #name,
const char* const sd_format_names[SD_N_FORMATS] = {"f32", "bf16", "int8", "int4",
                                                   SD_CODED_FORMATS(NAME_ENTRY)};

const sd_kernels* sd_kernels_chosen;

float sdk_tree_sum(const float* lanes) {
    float sum[SD_LANES / 2];
    for (int i = 0; i < 8; i++) sum[i] = lanes[i] + lanes[i + 8];
    for (int i = 0; i < 4; i++) sum[i] += sum[i + 4];
    for (int i = 0; i < 2; i++) sum[i] += sum[i + 2];
    return sum[0] + sum[1];
}

#define MAX_TABLES 7

typedef struct set {
    const char* name;
    int runs;                 /* on this machine */
    sd_kernels_part parts[8]; /* in this order, up to NULL */
} set;

static void build(const set* from, sd_kernels* table) {
    *table = (sd_kernels){.name = from->name};
    for (int f = 0; f < SD_N_FORMATS; f++) {
        table->thresholds.fetch_from[f] = table->thresholds.fetch_from_near[f] = 3;
        table->thresholds.tiles_from[f] = table->thresholds.floats_from[f] = SD_NEVER;
    }
    table->thresholds.fetch_from[SD_FORMAT_F32] = 6;
    table->thresholds.fetch_from[SD_FORMAT_INT8] = 4;
    for (const sd_kernels_part* part = from->parts; *part != NULL; part++) (*part)(table);
}

/* Tables that this machine can run, best first, built by the first call. */
static int all_tables(const sd_kernels** tables) {
    static sd_kernels built[MAX_TABLES];
    static int n;
    *tables = built;
    if (n > 0) return n;
#if defined(SD_X86_SETS)
    /* These built-ins also test whether the operating system saves the wide registers. */
    __builtin_cpu_init();
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    /* every processor with AVX2 but one from 2012 has F16C; GCC 12 cannot ask for it */
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    int dots = avx512 && __builtin_cpu_supports("avx512vnni");
    int pairs = __builtin_cpu_supports("avx512bf16");
    int bytes = __builtin_cpu_supports("avx512vbmi"); /* every processor with tiles has it */
    const set sets[] = {
        {"amx",
         dots && pairs && bytes && may_use_tiles(),
         {sdk_floats_avx512, sdk_loading_avx2, sdk_loading_avx512, sdk_dots_avx512, sdk_pairs_avx512,
          sdk_tiles_amx}},
        {"avx512",
         dots && pairs,
         {sdk_floats_avx512, sdk_loading_avx2, sdk_loading_avx512, sdk_dots_avx512, sdk_pairs_avx512}},
        {"avx512vnni", dots, {sdk_floats_avx512, sdk_loading_avx2, sdk_loading_avx512, sdk_dots_avx512}},
        {"avx512f", avx512, {sdk_floats_avx512, sdk_loading_avx2, sdk_loading_avx512, sdk_dots_avx512f}},
        {"avxvnni", avx2 && has_avxvnni(), {sdk_floats_avx2, sdk_loading_avx2, sdk_dots_avxvnni}},
        {"avx2", avx2, {sdk_floats_avx2, sdk_loading_avx2, sdk_dots_avx2}},
#elif defined(__aarch64__)
    const set sets[] = {
        {"neon", 1, {sdk_floats_neon, sdk_loading_neon, sdk_dots_neon}}, /* part of every AArch64 */
#else
    const set sets[] = {
#endif
        {"ref", 1, {sdk_floats_ref, sdk_loading_ref, sdk_dots_ref}},
    };
    int found = 0;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (sets[i].runs) build(&sets[i], &built[found++]);
    return n = found;
}

int sd_kernels_available(const sd_kernels** tables, int n_max) {
    const sd_kernels* all;
    int n = all_tables(&all);
    for (int i = 0; i < n && i < n_max; i++) tables[i] = &all[i];
    return n;
}

static sd_status choose(const sd_kernels* table) {
    sd_kernels_chosen = table;
    return sd_thresholds_set(&table->thresholds);
}

sd_status sd_kernels_choose(const char* forced) {
    const sd_kernels* tables[MAX_TABLES];
    int n = sd_kernels_available(tables, MAX_TABLES);
    if (forced == NULL || *forced == '\0') return choose(tables[0]);
    for (int i = 0; i < n; i++)
        if (strcmp(forced, tables[i]->name) == 0) return choose(tables[i]);
    char names[128] = "";
    for (int i = 0; i < n; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", tables[i]->name);
    }
    return sd_fail(SD_ERR_VALUE, "SPECDEC_KERNELS is \"%s\", but this machine has: %s", forced, names);
}
