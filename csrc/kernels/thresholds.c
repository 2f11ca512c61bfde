/* Row counts at which products change their method, and the name of the processor. */
#include "kernels.h"

#include <stdio.h>
#include <string.h>

const sd_threshold_field sd_threshold_fields[SD_N_THRESHOLDS] = {
    {"fetch_from", offsetof(sd_thresholds, fetch_from)},
    {"fetch_from_near", offsetof(sd_thresholds, fetch_from_near)},
    {"block_rows", offsetof(sd_thresholds, block_rows)},
    {"tiles_from", offsetof(sd_thresholds, tiles_from)},
    {"floats_from", offsetof(sd_thresholds, floats_from)},
};

sd_thresholds sd_thresholds_used;

int* sd_threshold_values(sd_thresholds* thresholds, const sd_threshold_field* field) {
    return (int*)(void*)((char*)thresholds + field->offset);
}

sd_status sd_thresholds_set(const sd_thresholds* thresholds) {
    sd_thresholds copy = *thresholds;
    for (int i = 0; i < SD_N_THRESHOLDS; i++) {
        const int* values = sd_threshold_values(&copy, &sd_threshold_fields[i]);
        for (int f = 0; f < SD_N_FORMATS; f++)
            if (values[f] < 1 || values[f] > SD_NEVER)
                return sd_fail(SD_ERR_VALUE, "%s of %s is %d, expected 1 to %d", sd_threshold_fields[i].name,
                               sd_format_names[f], values[f], SD_NEVER);
    }
    sd_thresholds_used = copy;
    return SD_OK;
}

const char* sd_kernels_digest(void) { return SD_KERNELS_DIGEST; }

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

void sd_processor_name(char name[SD_PROCESSOR_NAME]) {
    unsigned a = 0, b = 0, c = 0, d = 0, unused;
    char maker[13] = "", brand[49] = "";
    if (__get_cpuid(0, &unused, &b, &c, &d)) {
        memcpy(maker, &b, 4);
        memcpy(maker + 4, &d, 4);
        memcpy(maker + 8, &c, 4);
    }
    for (unsigned i = 0; i < 3; i++) {
        unsigned part[4];
        if (__get_cpuid(0x80000002u + i, &part[0], &part[1], &part[2], &part[3]))
            memcpy(brand + sizeof part * i, part, sizeof part);
    }
    if (!__get_cpuid(1, &a, &b, &c, &d)) a = 0;
    unsigned family = a >> 8 & 15, model = a >> 4 & 15;
    if (family == 6 || family == 15) model += (a >> 16 & 15) << 4;
    if (family == 15) family += a >> 20 & 255;
    snprintf(name, SD_PROCESSOR_NAME, "%s %u %u %u %s", maker, family, model, a & 15, brand);
}
#else
void sd_processor_name(char name[SD_PROCESSOR_NAME]) {
#if defined(__aarch64__)
    snprintf(name, SD_PROCESSOR_NAME, "aarch64");
#else
    snprintf(name, SD_PROCESSOR_NAME, "unknown");
#endif
}
#endif
