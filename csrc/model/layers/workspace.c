#include "workspace.h"

#include "gemm.h"
#include "library.h"

/* Row stride, in floats, of an array with n columns in whole panels. Rows that are a multiple of 4 KiB apart
 * would share few sets of the first-level cache, so they get one panel more. */
static ptrdiff_t row_stride(int n) {
    ptrdiff_t floats = sd_whole_panels(n);
    return floats % 1024 == 0 ? floats + SD_PANEL : floats;
}

/* Scratch of recurrent layers. */
static void lay_out_recurrence(sd_workspace* w, sd_arena* arena, const sd_mixer_sizes* sizes) {
    size_t rows = (size_t)w->max_rows;
    /* the delta rule has the most rates */
    const sd_recurrent_columns at = sd_recurrent_columns_of(sizes, SD_MIXER_DELTA);
    w->ld_rates = row_stride(at.n_rates);
    /* a panel more, as the last unit may read past the values */
    w->convolved = sd_arena_take(arena, rows * (size_t)at.n_channels + SD_PANEL, sizeof(float));
    size_t n_padded = sizes->d_value % SD_PANEL ? (size_t)at.n_units * SD_PANEL : 0;
    w->unit_outputs = n_padded ? sd_arena_take(arena, rows, n_padded * sizeof(float)) : NULL;
    w->rates = sd_arena_take(arena, rows, (size_t)w->ld_rates * sizeof(float));
    w->products = sd_arena_take(arena, rows, (size_t)sizes->n_key_head * sizeof(float));
    size_t n_tiles = (size_t)sd_walk_most_tiles(w->max_slots);
    for (int t = 0; t < w->n_threads; t++)
        w->tiles[t] = sd_arena_take(arena, n_tiles, (size_t)sizes->d_key * SD_PANEL * sizeof(float));
}

/* Scratch of per-layer embeddings. */
static void lay_out_per_layer(sd_workspace* w, sd_arena* arena, int n) {
    w->ld_per_layer = row_stride(n);
    w->per_layer = sd_arena_take(arena, (size_t)w->max_rows, (size_t)w->ld_per_layer * sizeof(float));
    for (int t = 0; t < w->n_threads; t++)
        w->per_layer_row[t] = sd_arena_take(arena, (size_t)n, sizeof(float));
}

/* Scratch of features, and of a head in clusters. */
static void lay_out_features(sd_workspace* w, sd_arena* arena, const sd_config* c) {
    size_t rows = (size_t)w->max_rows, n_logits = c->n_clusters > 0 ? (size_t)w->max_logits : 0;
    w->row_features = sd_arena_take(arena, rows, sizeof *w->row_features);
    w->given = sd_arena_take(arena, rows, (size_t)c->features.width * sizeof(float));
    w->joined = sd_arena_take(arena, rows, 2 * (size_t)sd_own_width(c) * sizeof(float));
    w->ld_own = row_stride(c->features.output ? c->features.width : 0);
    w->own = sd_arena_take(arena, c->features.output ? rows : 0, (size_t)w->ld_own * sizeof(float));
    w->ld_clusters = row_stride(c->n_clusters);
    w->cluster_scores = sd_arena_take(arena, n_logits, (size_t)w->ld_clusters * sizeof(float));
    w->clusters = sd_arena_take(arena, n_logits, (size_t)c->n_chosen_clusters * sizeof *w->clusters);
}

static void lay_out(sd_workspace* w) {
    const sd_config* c = &w->model->config;
    sd_arena* arena = &w->arena;
    size_t rows = (size_t)w->max_rows, d_model = (size_t)c->d_model,
           d_q = (size_t)sd_widest(c, sd_query_width);
    int n_projected = c->d_per_layer;
    if (d_q < (size_t)c->d_per_layer) d_q = (size_t)c->d_per_layer;
    for (int i = 0; i < c->n_layer; i++) {
        const sd_layer_config* own = &c->layers[i];
        int outputs = own->values_from_keys ? sd_qkv_width(own) : sd_qkv_outputs(c, own);
        int mixer_outputs = sd_mixer_outputs(c, own);
        size_t width = (size_t)sd_mixer_width(c, own);
        if (own->attends && outputs > n_projected) n_projected = outputs;
        if (mixer_outputs > n_projected) n_projected = mixer_outputs;
        if (width > d_q) d_q = width;
    }
    size_t inputs = d_model > d_q ? d_model : d_q;
    w->ld_qkv = row_stride(n_projected);
    w->ld_update = row_stride(c->d_model);
    w->ld_logits = row_stride(w->n_vocab > c->n_vocab ? w->n_vocab : c->n_vocab);
    w->tokens = sd_arena_take(arena, rows, sizeof *w->tokens);
    w->positions = sd_arena_take(arena, rows, sizeof *w->positions);
    w->inputs = sd_arena_take(arena, rows, sizeof *w->inputs);
    w->parts = sd_arena_take(arena, rows, sizeof *w->parts);
    w->stored_finite = sd_arena_take(arena, rows, sizeof *w->stored_finite);
    w->hidden = sd_arena_take(arena, rows, d_model * sizeof(float));
    w->qkv = sd_arena_take(arena, rows, (size_t)w->ld_qkv * sizeof(float));
    w->attended = sd_arena_take(arena, rows, d_q * sizeof(float));
    if (sd_any_has_state(c)) lay_out_recurrence(w, arena, &c->mixers);
    if (c->d_per_layer > 0) lay_out_per_layer(w, arena, c->n_layer * c->d_per_layer);
    int d_ff = 0;
    for (int i = 0; i < c->n_layer; i++)
        if ((!c->layers[i].mixture || c->experts.with_dense) && c->layers[i].d_ff > d_ff)
            d_ff = c->layers[i].d_ff;
    w->activated = sd_arena_take(arena, d_ff > 0 ? rows : 0, sd_prepared_bytes((size_t)d_ff));
    w->routing = sd_routing_take(arena, c, w->max_rows);
    w->update = sd_arena_take(arena, rows, (size_t)w->ld_update * sizeof(float));
    w->logits = sd_arena_take(arena, (size_t)w->max_logits, (size_t)w->ld_logits * sizeof(float));
    w->normed = sd_arena_take(arena, rows, d_model * sizeof(float));
    w->dense = sd_arena_take(arena, c->experts.with_dense ? rows : 0, d_model * sizeof(float));
    if (c->features.use != SD_FEATURE_NONE) {
        size_t read = (size_t)sd_feature_inputs(c), both = 2 * d_model, widest = read > both ? read : both;
        if (widest > inputs) inputs = widest;
        lay_out_features(w, arena, c);
    }
    w->prepared = sd_arena_take(arena, rows, sd_prepared_bytes(inputs));
    if (c->parallel != SD_PARALLEL_NO)
        w->parallel_input = sd_arena_take(arena, rows, sd_prepared_bytes(d_model));
    w->angles = sd_angles_take(arena, c, sd_whole_panels(w->max_slots));
    size_t projected = rows * 2 * SD_PANEL, slice = (size_t)SD_GEMM_ROWS * SD_GEMM_COLUMNS;
    if (sd_prompts_in_slices(w->model) && slice > projected) projected = slice;
    for (int t = 0; t < w->n_threads; t++) {
        w->projected[t] = sd_arena_take(arena, projected, sizeof(float));
        w->attention[t] = sd_attention_take(arena, c, w->max_slots);
        if (sd_prompt_engine(w->model) == SD_ENGINE_TILES)
            w->attention_tiles[t] = sd_attention_tiles_take(arena, c, w->max_slots);
    }
}

int sd_rows_with_prompts(const sd_model* model, int n_rows, int n, int n_tokens) {
    int slice = sd_prompt_slice(model);
    if ((int64_t)n * n_tokens < slice) slice = n * n_tokens;
    return n_rows > slice ? n_rows : slice;
}

sd_status sd_workspace_create(sd_workspace* w, const sd_model* model, int n_threads, int max_rows,
                              int max_logits, int max_slots) {
    return sd_workspace_create_for(w, model, model->config.n_vocab, n_threads, max_rows, max_logits,
                                   max_slots);
}

sd_status sd_workspace_create_for(sd_workspace* w, const sd_model* model, int n_vocab, int n_threads,
                                  int max_rows, int max_logits, int max_slots) {
    *w = sd_workspace_plan(model, n_vocab, n_threads, max_rows, max_logits, max_slots);
    return sd_workspace_reserve(w);
}

sd_workspace sd_workspace_plan(const sd_model* model, int n_vocab, int n_threads, int max_rows,
                               int max_logits, int max_slots) {
    return SD_MAKE(sd_workspace, .model = model, .n_vocab = n_vocab, .n_threads = n_threads,
                   .max_rows = max_rows, .max_logits = max_logits, .max_slots = max_slots);
}

sd_status sd_workspace_reserve(sd_workspace* w) {
    if (w->arena.base != NULL) return sd_workspace_admit(w, w->model);
    w->arena = (sd_arena){0};
    sd_status status = sd_pool_reserve(w->n_threads);
    if (status == SD_OK && sd_prompts_in_slices(w->model)) status = sd_library_reserve(w->n_threads);
    if (status == SD_OK) status = SD_ARENA_BUILD(&w->arena, lay_out(w));
    return status == SD_OK ? sd_workspace_admit(w, w->model) : status;
}

void sd_workspace_free(sd_workspace* w) {
    sd_arena_free(&w->arena);
    sd_arena_free(&w->adaptation.arena);
}

static void lay_out_adaptation(sd_adaptation* a, int max_rows) {
    size_t rows = (size_t)max_rows;
    a->of_row = sd_arena_take(&a->arena, rows, sizeof *a->of_row);
    a->of_head = sd_arena_take(&a->arena, rows, sizeof *a->of_head);
    a->pass = sd_adapted_rows_take(&a->arena, max_rows, a->n_inputs, a->n_low);
    a->head = a->pass; /* which has its own groups */
    a->head.groups = sd_arena_take(&a->arena, rows, sizeof *a->head.groups);
    a->head.rows = sd_arena_take(&a->arena, rows, sizeof *a->head.rows);
}

int sd_workspace_fits(const sd_workspace* w, const sd_model* model) {
    const sd_adapter* adapter = model->adapter;
    if (adapter == NULL) return 1;
    return adapter->n_low <= w->adaptation.n_low && adapter->n_inputs <= w->adaptation.n_inputs;
}

sd_status sd_workspace_admit(sd_workspace* w, const sd_model* model) {
    const sd_adapter* adapter = model->adapter;
    const sd_adaptation* old = &w->adaptation;
    if (sd_workspace_fits(w, model)) return SD_OK;
    sd_adaptation a = {.n_low = adapter->n_low > old->n_low ? adapter->n_low : old->n_low,
                       .n_inputs = adapter->n_inputs > old->n_inputs ? adapter->n_inputs : old->n_inputs};
    SD_TRY(SD_ARENA_BUILD(&a.arena, lay_out_adaptation(&a, w->max_rows)));
    sd_arena_free(&w->adaptation.arena);
    w->adaptation = a;
    return SD_OK;
}

void sd_workspace_begin(sd_workspace* w, const sd_branch* branches, int n_branches) {
    sd_adaptation* a = &w->adaptation;
    a->now = NULL;
    if (a->of_row == NULL) return;
    int row = 0, n_head = 0;
    for (int b = 0; b < n_branches; b++) {
        const sd_branch* branch = &branches[b];
        int first_extra = branch->n_new - branch->n_extra;
        for (int i = 0; i < branch->n_new; i++) {
            a->of_row[row++] = branch->cache->model->adapter;
            if (i < first_extra && i >= first_extra - branch->n_logits)
                a->of_head[n_head++] = branch->cache->model->adapter;
        }
    }
    sd_adapted_rows_group(&a->pass, a->of_row, row);
    if (a->pass.n_groups > 0) a->now = &a->pass;
}

void sd_workspace_choose_head(sd_workspace* w, const int32_t* rows, int n) {
    sd_adaptation* a = &w->adaptation;
    for (int i = 0; a->of_row != NULL && i < n; i++) a->of_head[i] = a->of_row[rows[i]];
}

void sd_workspace_use_head(sd_workspace* w, int n) {
    sd_adaptation* a = &w->adaptation;
    a->now = NULL;
    if (a->of_row == NULL) return;
    sd_adapted_rows_group(&a->head, a->of_head, n);
    if (a->head.n_groups > 0) a->now = &a->head;
}
