#include "adapter.h"

#include <stdlib.h>
#include <string.h>

#include "pack.h"

#define MOST_RANK 65536

#define DOWN ".down"
#define UP ".up"

static int compare(const void* a, const void* b) {
    uintptr_t of_a = (uintptr_t)((const sd_adapted_matrix*)a)->panels;
    uintptr_t of_b = (uintptr_t)((const sd_adapted_matrix*)b)->panels;
    return (of_a > of_b) - (of_a < of_b);
}

const sd_adapted_matrix* sd_adapter_find(const sd_adapter* adapter, const sd_matrix* matrix) {
    const sd_adapted_matrix key = {.panels = matrix->panels};
    if (matrix->panels == NULL) return NULL;
    return bsearch(&key, adapter->matrices, (size_t)adapter->n, sizeof *adapter->matrices, compare);
}

/* Can an adapter adapt this tensor? A tied head is not a tensor. */
static int is_adaptable(const sd_tensor_spec* spec) {
    switch (spec->role) {
    case SD_ATTN_Q:
    case SD_ATTN_K:
    case SD_ATTN_V:
    case SD_ATTN_GATE:
    case SD_ATTN_OUT:
    case SD_MIXER_IN:
    case SD_MIXER_GATE:
    case SD_MIXER_OUT:
    case SD_MLP_GATE:
    case SD_MLP_UP:
    case SD_MLP_DOWN:
    case SD_HEAD: return 1;
    default: return 0;
    }
}

static sd_status find(const sd_model* base, const sd_adapted_tensor* tensor, sd_tensor_spec* spec) {
    if (sd_tensor_find(&base->config, tensor->name, spec) < 0)
        return sd_fail(SD_ERR_VALUE, "tensor %.64s: not part of the model", tensor->name);
    SD_FAIL_IF(!is_adaptable(spec), SD_ERR_VALUE,
               "tensor %s: cannot be adapted, expected a matrix of attention or another mixer, of a dense "
               "feed-forward block, or a head that is not tied",
               spec->name);
    SD_FAIL_IF(tensor->rank < 1 || tensor->rank > MOST_RANK, SD_ERR_VALUE,
               "tensor %s: the rank is %d, expected 1 to %d", spec->name, tensor->rank, MOST_RANK);
    return SD_OK;
}

/* The low-rank matrices of the model's matrix with these panels; new ones if there are none yet. */
static sd_adapted_matrix* matrix_of(sd_adapter* adapter, const sd_panel* panels) {
    int i = 0;
    while (i < adapter->n && adapter->matrices[i].panels != panels) i++;
    if (i == adapter->n) adapter->matrices[adapter->n++] = (sd_adapted_matrix){.panels = panels};
    return &adapter->matrices[i];
}

static sd_status add_part(const sd_model* base, sd_adapter* adapter, const sd_tensor_spec* spec, int rank) {
    sd_rows rows;
    const sd_matrix* of = sd_model_matrix_rows(base, spec, &rows);
    sd_adapted_matrix* to = matrix_of(adapter, of->panels);
    for (int i = 0; i < to->n_parts; i++)
        if (to->parts[i].role == spec->role && to->parts[i].layer == spec->layer)
            return sd_fail(SD_ERR_VALUE, "tensor %s: adapted twice", spec->name);
    to->mlp_input = spec->role == SD_MLP_GATE || spec->role == SD_MLP_UP;
    /* before allocation the matrices hold only shapes */
    to->down.n_in = spec->n_cols;
    to->parts[to->n_parts++] =
        SD_MAKE(sd_low_rank, .rows = rows, .first = sd_whole_panels(to->down.n_out), .rank = rank,
                .up = {.n_out = spec->n_rows}, .role = spec->role, .layer = spec->layer);
    to->down.n_out = sd_whole_panels(to->down.n_out) + rank;
    return SD_OK;
}

/* Lay out matrices of known shapes, copied from `from`. */
static void lay_out(sd_adapter* adapter, const sd_adapted_matrix* from) {
    sd_arena* arena = &adapter->arena;
    adapter->matrices = sd_arena_take(arena, (size_t)adapter->n, sizeof *adapter->matrices);
    for (int i = 0; i < adapter->n; i++) {
        sd_adapted_matrix m = from[i];
        m.down = sd_matrix_take(arena, SD_FORMAT_F32, SD_LAYOUT_PANELS, m.down.n_out, m.down.n_in, 1);
        for (int j = 0; j < m.n_parts; j++)
            m.parts[j].up = sd_matrix_take(arena, SD_FORMAT_F32, SD_LAYOUT_PANELS, m.parts[j].up.n_out,
                                           m.parts[j].rank, 1);
        if (adapter->matrices) adapter->matrices[i] = m;
    }
}

static sd_status build(const sd_model* base, const sd_adapted_tensor* tensors, int n, sd_adapter* adapter) {
    sd_adapted_matrix* listed = sd_alloc((size_t)n * sizeof *listed);
    if (listed == NULL) return SD_ERR_MEMORY;
    adapter->matrices = listed;
    sd_status status = SD_OK;
    for (int i = 0; i < n && status == SD_OK; i++) {
        sd_tensor_spec spec;
        status = find(base, &tensors[i], &spec);
        if (status == SD_OK) status = add_part(base, adapter, &spec, tensors[i].rank);
    }
    qsort(listed, (size_t)adapter->n, sizeof *listed, compare);
    for (int i = 0; i < adapter->n; i++) {
        int n_low = sd_whole_panels(listed[i].down.n_out), n_inputs = listed[i].down.n_in;
        if (n_low > adapter->n_low) adapter->n_low = n_low;
        if (n_inputs > adapter->n_inputs) adapter->n_inputs = n_inputs;
    }
    if (status == SD_OK) status = SD_ARENA_BUILD(&adapter->arena, lay_out(adapter, listed));
    sd_free(listed);
    return status;
}

sd_status sd_model_adapt(const sd_model* base, const sd_adapted_tensor* tensors, int n, sd_model** out) {
    SD_FAIL_IF(base->base != NULL, SD_ERR_VALUE, "the model is adapted, expected one without an adapter");
    if (base->encoder != NULL || base->config.features.use != SD_FEATURE_NONE)
        return sd_fail(SD_ERR_VALUE, "the model %s, expected a decoder-only model without features",
                       base->encoder ? "has an encoder" : "reads features");
    if (n < 1) return sd_fail(SD_ERR_VALUE, "the adapter adapts no tensor, expected at least one");
    sd_model* model = sd_alloc(sizeof *model);
    sd_adapter* adapter = model ? sd_alloc(sizeof *adapter) : NULL;
    sd_status status = adapter ? build(base, tensors, n, adapter) : SD_ERR_MEMORY;
    if (status != SD_OK) {
        if (adapter) sd_arena_free(&adapter->arena);
        sd_free(adapter);
        sd_free(model);
        return status;
    }
    *model = *base;
    model->base = base;
    model->adapter = adapter;
    model->finished = 0;
    *out = model;
    return SD_OK;
}

sd_status sd_model_windowed(const sd_model* model, int window, sd_model** out) {
    SD_FAIL_IF(window < 1, SD_ERR_VALUE, "window is %d, expected 1 or more", window);
    size_t n_layer = (size_t)model->config.n_layer;
    sd_model* made = sd_alloc(sizeof *made + n_layer * sizeof *model->config.layers);
    if (made == NULL) return SD_ERR_MEMORY;
    *made = *model;
    made->windowed = 1;
    sd_layer_config* layers = (sd_layer_config*)(made + 1);
    for (size_t i = 0; i < n_layer; i++) {
        layers[i] = model->config.layers[i];
        if (!layers[i].attends) continue;
        if (layers[i].window == 0 || layers[i].window > window) layers[i].window = window;
    }
    made->config.layers = layers;
    *out = made;
    return SD_OK;
}

static void describe(const sd_model* model, const sd_low_rank* part, sd_tensor_spec* spec) {
    sd_tensor_at(&model->config, sd_tensor_index(&model->config, part->role, part->layer, -1), spec);
}

/* Find a tensor's part, and its matrix, by name; NULL: it is not adapted. */
static sd_low_rank* part_of(const sd_model* model, const char* name, size_t n_name, sd_adapted_matrix** of) {
    sd_tensor_spec spec;
    char of_tensor[sizeof spec.name];
    if (n_name >= sizeof of_tensor) return NULL;
    memcpy(of_tensor, name, n_name);
    of_tensor[n_name] = '\0';
    if (sd_tensor_find(&model->config, of_tensor, &spec) < 0) return NULL;
    for (int i = 0; i < model->adapter->n; i++) {
        *of = &model->adapter->matrices[i];
        for (int j = 0; j < (*of)->n_parts; j++) {
            sd_low_rank* part = &(*of)->parts[j];
            if (part->role == spec.role && part->layer == spec.layer) return part;
        }
    }
    return NULL;
}

static int ends_with(const char* name, const char* end) {
    size_t n = strlen(name), n_end = strlen(end);
    return n > n_end && strcmp(name + n - n_end, end) == 0;
}

sd_status sd_model_set_low_rank(sd_model* model, const char* name, const sd_source* source, int n_rows,
                                int n_cols, int n_threads) {
    int is_down = ends_with(name, DOWN), is_up = ends_with(name, UP);
    sd_adapted_matrix* of = NULL;
    sd_low_rank* part = NULL;
    if (is_down || is_up) part = part_of(model, name, strlen(name) - strlen(is_down ? DOWN : UP), &of);
    SD_FAIL_IF(part == NULL, SD_ERR_SHAPE,
               "tensor %.72s: not part of the adapter, expected " DOWN " or " UP
               " after the name of an adapted tensor",
               name);
    const sd_destination to = {.name = name,
                               .n_rows = is_down ? part->rank : part->up.n_out,
                               .n_cols = is_down ? of->down.n_in : part->rank,
                               .matrix = is_down ? &of->down : &part->up,
                               .rows = {is_down ? part->first : 0, 1}};
    int* has = is_down ? &part->has_down : &part->has_up;
    if (*has) return sd_destination_fail_twice(&to);
    sd_status status = sd_destination_fill(&to, source, n_rows, n_cols, n_threads);
    if (status == SD_OK) *has = 1;
    return status;
}

sd_status sd_model_finish_adapted(sd_model* model) {
    for (int i = 0; i < model->adapter->n; i++) {
        const sd_adapted_matrix* of = &model->adapter->matrices[i];
        for (int j = 0; j < of->n_parts; j++) {
            sd_tensor_spec spec;
            if (of->parts[j].has_down && of->parts[j].has_up) continue;
            describe(model, &of->parts[j], &spec);
            return sd_fail(SD_ERR_SHAPE, "tensor %s%s: missing", spec.name,
                           of->parts[j].has_down ? UP : DOWN);
        }
    }
    model->finished = 1;
    return SD_OK;
}
