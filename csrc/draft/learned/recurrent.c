#include "recurrent.h"

#include <math.h>
#include <string.h>

#include "draft_tokens.h"
#include "kernels.h"
#include "pass.h"

/* Panels of a product from which on the team shares it: with fewer the caller is done before the others have
 * come. */
#define SHARED_PANELS 64

#define N_CELL_TENSORS 4
#define N_OTHER_TENSORS 3

static sd_status check(const sd_recurrent_shape* s) {
    const struct {
        const char* name;
        int value, most;
    } fields[] = {{"n_vocab", s->n_vocab, 1 << 26},
                  {"n_draft_vocab", s->n_draft_vocab, s->n_vocab},
                  {"d_embed", s->d_embed, 1 << 16},
                  {"d_hidden", s->d_hidden, 1 << 16},
                  {"n_layers", s->n_layers, SD_MAX_RECURRENT_LAYERS}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < 1 || fields[i].value > fields[i].most)
            return sd_fail(SD_ERR_VALUE, "%s is %d, expected 1 to %d", fields[i].name, fields[i].value,
                           fields[i].most);
    return SD_OK;
}

static int inputs_of(const sd_recurrent_shape* s, int layer) { return layer == 0 ? s->d_embed : s->d_hidden; }

static void list_tensors(sd_recurrent* r) {
    sd_tensor_list* list = &r->tensors;
    int n_gates = 3 * r->shape.d_hidden;
    sd_tensor_list_add_table(list, &r->embedding, "embedding.weight");
    for (int i = 0; i < r->shape.n_layers; i++) {
        sd_recurrent_cell* cell = &r->cells[i];
        sd_tensor_list_add_matrix(list, &cell->input, "cells.%d.weight_ih", i);
        sd_tensor_list_add_matrix(list, &cell->state, "cells.%d.weight_hh", i);
        sd_tensor_list_add_vector(list, cell->input_bias, n_gates, "cells.%d.bias_ih", i);
        sd_tensor_list_add_vector(list, cell->state_bias, n_gates, "cells.%d.bias_hh", i);
    }
    sd_tensor_list_add_matrix(list, &r->output, "output.weight");
    sd_tensor_list_add_vector(list, r->output_bias, r->shape.n_draft_vocab, "output.bias");
}

static void lay_out(sd_recurrent* r) {
    const sd_recurrent_shape* s = &r->shape;
    sd_arena* arena = &r->arena;
    int n_gates = 3 * s->d_hidden, n_outputs = s->n_draft_vocab;
    r->tensors = sd_tensor_list_take(arena, N_CELL_TENSORS * s->n_layers + N_OTHER_TENSORS);
    sd_number number = r->format == SD_FORMAT_F32 ? SD_F32 : SD_BF16;
    r->embedding = sd_table_take(arena, number, s->n_vocab, s->d_embed);
    for (int i = 0; i < s->n_layers; i++) {
        sd_recurrent_cell* cell = &r->cells[i];
        cell->input = sd_matrix_take(arena, r->format, SD_LAYOUT_PANELS, n_gates, inputs_of(s, i), 1);
        cell->state = sd_matrix_take(arena, r->format, SD_LAYOUT_PANELS, n_gates, s->d_hidden, 1);
        cell->input_bias = sd_arena_take(arena, (size_t)n_gates, sizeof(float));
        cell->state_bias = sd_arena_take(arena, (size_t)n_gates, sizeof(float));
    }
    r->output = sd_matrix_take(arena, r->format, SD_LAYOUT_PANELS, n_outputs, s->d_hidden, 1);
    r->output_bias = sd_arena_take(arena, (size_t)n_outputs, sizeof(float));
    int32_t* tokens = sd_arena_take(arena, r->reduced ? (size_t)n_outputs : 0, sizeof *tokens);
    r->tokens = r->reduced ? tokens : NULL;
    if (arena->base != NULL) list_tensors(r);
}

sd_status sd_recurrent_create(const sd_recurrent_shape* shape, sd_format format, const int32_t* tokens,
                              sd_recurrent** out) {
    sd_status status = check(shape);
    if (status == SD_OK) status = sd_draft_tokens_check(tokens, shape->n_draft_vocab, shape->n_vocab);
    if (status != SD_OK) return status;
    sd_recurrent* r = sd_alloc(sizeof *r);
    if (r == NULL) return SD_ERR_MEMORY;
    r->shape = *shape;
    r->format = format;
    r->reduced = tokens != NULL;
    status = SD_ARENA_BUILD(&r->arena, lay_out(r));
    if (status != SD_OK) {
        sd_recurrent_free(r);
        return status;
    }
    for (int i = 0; tokens != NULL && i < shape->n_draft_vocab; i++) r->tokens[i] = tokens[i];
    *out = r;
    return SD_OK;
}

void sd_recurrent_free(sd_recurrent* r) {
    if (r == NULL) return;
    sd_arena_free(&r->arena);
    sd_free(r);
}

/* --------------------------------------------------------------------------------------------- steps */

double sd_recurrent_step_work(const sd_recurrent* r) {
    const sd_recurrent_shape* s = &r->shape;
    double work = 0.0;
    for (int i = 0; i < s->n_layers; i++) work += 3.0 * s->d_hidden * (inputs_of(s, i) + s->d_hidden);
    return work;
}

sd_recurrent_scratch sd_recurrent_scratch_take(sd_arena* arena, const sd_recurrent* r, int max_rows,
                                               int n_threads) {
    const sd_recurrent_shape* s = &r->shape;
    size_t rows = (size_t)max_rows, hidden = (size_t)s->d_hidden;
    size_t widest = (size_t)(s->d_embed > s->d_hidden ? s->d_embed : s->d_hidden);
    ptrdiff_t ld_gates = sd_whole_panels(3 * s->d_hidden), ld_outputs = sd_whole_panels(s->n_draft_vocab);
    return (sd_recurrent_scratch){
        .max_rows = max_rows,
        .n_threads = n_threads,
        .ld_gates = ld_gates,
        .ld_outputs = ld_outputs,
        .rows = sd_arena_take(arena, rows, widest * sizeof(float)),
        .states = sd_arena_take(arena, rows, hidden * sizeof(float)),
        .prepared = sd_arena_take(arena, rows, sd_prepared_bytes(widest)),
        .from_input = sd_arena_take(arena, rows, (size_t)ld_gates * sizeof(float)),
        .from_state = sd_arena_take(arena, rows, (size_t)ld_gates * sizeof(float)),
        .outputs = sd_arena_take(arena, rows, (size_t)ld_outputs * sizeof(float)),
    };
}

/* y [n, n_out] = x · matrixᵀ + bias for rows x [n, n_in] of steps [n], without gaps. A row of y that is not
 * finite is a failure of its step and becomes 0. */
static void multiply(sd_recurrent_scratch* s, const sd_matrix* matrix, const float* bias, const float* x,
                     const sd_recurrent_step* steps, int n, float* y, ptrdiff_t ldy) {
    int shared = sd_matrix_panels(matrix->n_out) >= SHARED_PANELS;
    sd_pass pass = {.team = sd_team_open(shared ? s->n_threads : 1)};
    sd_pass_multiply_rows(
        &pass, x, matrix->n_in, s->prepared,
        (sd_product){.matrix = matrix, .bias = bias, .n_rows = n, .y = y, .ldy = ldy, .factor = 1.0f});
    sd_team_close(&pass.team);
    for (int i = 0; i < n; i++) {
        if (sd_all_finite(y + i * ldy, matrix->n_out)) continue;
        sd_failure_note(steps[i].failure,
                        sd_fail(SD_ERR_OVERFLOW, "the draft: a recurrent network's product is not finite"));
        memset(y + i * ldy, 0, (size_t)matrix->n_out * sizeof *y);
    }
}

void sd_recurrent_advance(const sd_recurrent* r, sd_recurrent_scratch* s, const sd_recurrent_step* steps,
                          int n) {
    if (n == 0) return;
    const sd_recurrent_shape* shape = &r->shape;
    size_t d_embed = (size_t)shape->d_embed, d_hidden = (size_t)shape->d_hidden;
    for (int i = 0; i < n; i++) sd_table_row(&r->embedding, steps[i].token, s->rows + (size_t)i * d_embed);
    for (int layer = 0; layer < shape->n_layers; layer++) {
        const sd_recurrent_cell* cell = &r->cells[layer];
        size_t at = (size_t)layer * d_hidden;
        for (int i = 0; i < n; i++)
            memcpy(s->states + (size_t)i * d_hidden, steps[i].from + at, d_hidden * sizeof(float));
        multiply(s, &cell->input, cell->input_bias, s->rows, steps, n, s->from_input, s->ld_gates);
        multiply(s, &cell->state, cell->state_bias, s->states, steps, n, s->from_state, s->ld_gates);
        for (int i = 0; i < n; i++) { /* the state is the next layer's input too */
            float* row = s->rows + (size_t)i * d_hidden;
            memcpy(row, s->states + (size_t)i * d_hidden, d_hidden * sizeof *row);
            sd_kernels_get()->gated_step(shape->d_hidden, s->from_input + i * s->ld_gates,
                                         s->from_state + i * s->ld_gates, row);
            memcpy(steps[i].to + at, row, d_hidden * sizeof *row);
        }
    }
}

void sd_recurrent_predict(const sd_recurrent* r, sd_recurrent_scratch* s, const sd_recurrent_step* steps,
                          int n, float* logits, ptrdiff_t ld_logits) {
    const sd_recurrent_shape* shape = &r->shape;
    size_t d_hidden = (size_t)shape->d_hidden, top = (size_t)(shape->n_layers - 1) * d_hidden;
    for (int i = 0; i < n; i++)
        memcpy(s->states + (size_t)i * d_hidden, steps[i].to + top, d_hidden * sizeof(float));
    const float* y = s->outputs;
    multiply(s, &r->output, r->output_bias, s->states, steps, n, s->outputs, s->ld_outputs);
    for (int i = 0; i < n; i++, y += s->ld_outputs, logits += ld_logits) {
        for (int token = 0; r->tokens != NULL && token < shape->n_vocab; token++) logits[token] = -INFINITY;
        sd_draft_tokens_scatter(r->tokens, shape->n_draft_vocab, y, logits);
    }
}
