#include "config.h"

/* Far above any model, and small enough that products of two fit 64 bits with room. */
#define LARGEST (1 << 26)

sd_status sd_config_check(const sd_config* c) {
    const struct {
        const char* name;
        int value;
    } sizes[] = {
        {"n_vocab", c->n_vocab},     {"n_ctx", c->n_ctx},     {"n_layer", c->n_layer}, {"n_head", c->n_head},
        {"n_kv_head", c->n_kv_head}, {"d_model", c->d_model}, {"d_head", c->d_head},   {"d_ff", c->d_ff},
    };
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value < 1 || sizes[i].value > LARGEST)
            return sd_fail(SD_ERR_VALUE, "config: %s is %d, expected 1 to %d", sizes[i].name, sizes[i].value,
                           LARGEST);
    }
    if (c->n_head % c->n_kv_head != 0)
        return sd_fail(SD_ERR_VALUE, "config: n_head is %d, expected a multiple of n_kv_head = %d", c->n_head,
                       c->n_kv_head);
    if ((long)c->n_head * c->d_head > LARGEST)
        return sd_fail(SD_ERR_VALUE, "config: n_head * d_head is %ld, expected at most %d",
                       (long)c->n_head * c->d_head, LARGEST);
    if (c->position == SD_POSITION_ROTARY && c->d_head % 2 != 0)
        return sd_fail(SD_ERR_VALUE, "config: d_head is %d, expected an even number for rotary positions",
                       c->d_head);
    if (!(c->norm_eps >= 0.0f && c->norm_eps < 1.0f))
        return sd_fail(SD_ERR_VALUE, "config: norm_eps is %g, expected 0 to 1", (double)c->norm_eps);
    if (c->sliding_window < 0)
        return sd_fail(SD_ERR_VALUE, "config: sliding_window is %d, expected 0 or more", c->sliding_window);
    return SD_OK;
}
