#include "thresholds.h"

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
