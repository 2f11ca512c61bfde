#include "taps.h"

int sd_taps_find(const sd_taps* taps, int layer) {
    for (int i = 0; i < taps->n; i++)
        if (taps->layers[i] == layer) return i;
    return -1;
}

sd_status sd_taps_add(sd_taps* taps, int layer, const sd_config* config) {
    if (layer < 0 || layer > config->n_layer + 1)
        return sd_fail(SD_ERR_VALUE, "a draft reads hidden state %d of the target, expected 0 to %d", layer,
                       config->n_layer + 1);
    if (sd_taps_find(taps, layer) >= 0) return SD_OK;
    if (taps->n == SD_MAX_TAPS)
        return sd_fail(SD_ERR_SETTING, "drafts read more than %d hidden states of the target", SD_MAX_TAPS);
    int i = taps->n++;
    for (; i > 0 && taps->layers[i - 1] > layer; i--) taps->layers[i] = taps->layers[i - 1];
    taps->layers[i] = layer;
    return SD_OK;
}

int sd_taps_include(const sd_taps* taps, const sd_taps* wanted) {
    for (int i = 0; i < wanted->n; i++)
        if (sd_taps_find(taps, wanted->layers[i]) < 0) return 0;
    return 1;
}
