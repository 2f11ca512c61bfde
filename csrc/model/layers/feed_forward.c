#include "feed_forward.h"

#include "mixture.h"
#include "mlp.h"
#include "profile.h"

typedef struct activation {
    sd_pass* pass;
    const sd_mlp* mlp;
    const void* input; /* prepared */
    sd_bands bands;    /* of the rows, where OpenBLAS does not multiply them */
} activation;

/* (Band of rows, group of panels) pairs. */
static void activate_groups(void* argument, int thread, int pair, int end) {
    const activation* a = argument;
    int n_groups = sd_mlp_groups(a->mlp);
    for (int n; pair < end; pair += n) {
        int group = pair % n_groups;
        n = n_groups - group < end - pair ? n_groups - group : end - pair;
        sd_mlp_activate(a->pass->w, a->mlp, a->pass->engine, a->bands, pair / n_groups, a->input, thread,
                        group, group + n, a->pass->w->activated);
    }
}

static void activate_slices(void* argument, int thread, int first, int end) {
    const activation* a = argument;
    sd_mlp_activate_slices(a->pass->w, a->mlp, a->pass->n_rows, a->input, thread, first, end,
                           a->pass->w->activated);
}

static void activate(activation* a) {
    sd_pass* pass = a->pass;
    const sd_mlp* mlp = a->mlp;
    double n_multiplications = (double)pass->n_rows * mlp->in.n_out * mlp->in.n_in;
    if (pass->engine == SD_ENGINE_BLAS) {
        sd_pass_run(pass, n_multiplications, sd_mlp_slices(mlp, pass->n_rows), 1, activate_slices, a);
        return;
    }
    a->bands = sd_mlp_bands(mlp, pass->engine, pass->n_rows);
    sd_pass_run(pass, n_multiplications, a->bands.n * sd_mlp_groups(mlp),
                sd_matrix_grain(&mlp->in, &pass->team), activate_groups, a);
}

void sd_feed_forward_run(sd_pass* pass, int i, const void* input) {
    const sd_layer* layer = &pass->w->model->layers[i];
    const sd_mlp* mlp = &layer->mlp;
    if (layer->experts) {
        const sd_workspace* w = pass->w;
        sd_mixture_run(pass, i, sd_norms_input(&w->model->config) ? w->normed : w->hidden, input);
        return;
    }
    activation a = {.pass = pass, .mlp = mlp, .input = input};
    SD_PROFILED(SD_DOES_PRODUCT, activate(&a));
    sd_pass_reduce(pass, &mlp->down);
    sd_pass_add_product(pass, &mlp->down, mlp->down_bias, pass->w->activated,
                        (sd_norm_weights){layer->mlp_post_norm, layer->mlp_post_norm_bias});
}
