#include "adapted_rows.h"

#include "kernels.h"

/* Multiplications in a `down` below which the caller alone is faster than a team. */
#define SHARED_WORK (1L << 18)

sd_adapted_rows sd_adapted_rows_take(sd_arena* arena, int max_rows, int n_inputs, int n_low) {
    size_t rows = (size_t)max_rows, inputs = sd_blocks((size_t)n_inputs) * SD_BLOCK;
    sd_adapted_rows r = {.n_inputs = (ptrdiff_t)inputs, .n_low = n_low};
    r.groups = sd_arena_take(arena, rows, sizeof *r.groups);
    r.rows = sd_arena_take(arena, rows, sizeof *r.rows);
    r.inputs = sd_arena_take(arena, rows, inputs * sizeof *r.inputs);
    for (int i = 0; i < 2; i++) r.low[i] = sd_arena_take(arena, rows, (size_t)n_low * sizeof *r.low[i]);
    return r;
}

static int is_grouped(const sd_adapted_rows* r, const sd_adapter* adapter) {
    for (int g = 0; g < r->n_groups; g++)
        if (r->groups[g].adapter == adapter) return 1;
    return 0;
}

void sd_adapted_rows_group(sd_adapted_rows* r, const sd_adapter* const* of_row, int n) {
    r->n_groups = 0;
    for (int i = 0, at = 0; i < n; i++) {
        if (of_row[i] == NULL || is_grouped(r, of_row[i])) continue;
        sd_adapted_group* group = &r->groups[r->n_groups++];
        *group = (sd_adapted_group){.adapter = of_row[i], .first = at};
        for (int j = i; j < n; j++)
            if (of_row[j] == of_row[i]) r->rows[at++] = j;
        group->n = at - group->first;
    }
}

/* A block of a group's rows, from `first` on. */
typedef struct block {
    int first, n;
    float *inputs, *low;
} block;

static block block_at(const sd_adapted_rows* r, const sd_adapted_group* group, int mlp_input, int first) {
    int n = group->n - first < SD_ADAPTED_BLOCK ? group->n - first : SD_ADAPTED_BLOCK;
    return (block){first, n, r->inputs + (group->first + first) * r->n_inputs,
                   r->low[mlp_input] + (group->first + first) * r->n_low};
}

/* Number of the group's rows before row `row` of the pass. */
static int n_before(const sd_adapted_rows* r, const sd_adapted_group* group, int row) {
    int low = 0, high = group->n;
    while (low < high) {
        int middle = (low + high) / 2;
        if (r->rows[group->first + middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void sd_adapted_rows_read(const sd_adapted_rows* r, const sd_matrix* matrix, int row, int n_rows, int input,
                          int n, const float* x, ptrdiff_t ldx) {
    const sd_kernels* k = sd_kernels_get();
    for (int g = 0; r != NULL && g < r->n_groups; g++) {
        const sd_adapted_group* group = &r->groups[g];
        if (sd_adapter_find(group->adapter, matrix) == NULL) continue;
        int end = n_before(r, group, row + n_rows);
        for (int i = n_before(r, group, row); i < end; i++) {
            block b = block_at(r, group, 0, i / SD_ADAPTED_BLOCK * SD_ADAPTED_BLOCK);
            const sd_part part = {b.n, i - b.first, 1, input, n};
            k->prepare[SD_ROWS_F32](part, x + (r->rows[group->first + i] - row) * ldx, ldx, matrix->n_in,
                                    b.inputs);
        }
    }
}

typedef struct reduction {
    const sd_adapted_rows* rows;
    const sd_adapted_group* group;
    const sd_adapted_matrix* of;
} reduction;

static int n_blocks(const sd_adapted_group* group) {
    return (group->n + SD_ADAPTED_BLOCK - 1) / SD_ADAPTED_BLOCK;
}

/* (Panel of `down`, block) pairs. */
static void reduce_pairs(void* argument, int thread, int pair, int end) {
    (void)thread;
    const reduction* d = argument;
    const sd_matrix* down = &d->of->down;
    sd_panel_kernel multiply = sd_kernels_get()->panel[SD_FORMAT_F32];
    for (int n = n_blocks(d->group); pair < end; pair++) {
        block b = block_at(d->rows, d->group, d->of->mlp_input, pair % n * SD_ADAPTED_BLOCK);
        int panel = pair / n;
        multiply(b.n, b.inputs, down->panels[panel].at, down->n_in, down->near,
                 b.low + (ptrdiff_t)panel * b.n * SD_PANEL, SD_PANEL);
    }
}

void sd_adapted_rows_reduce(const sd_adapted_rows* r, const sd_matrix* matrix, const sd_team* team) {
    for (int g = 0; r != NULL && g < r->n_groups; g++) {
        reduction d = {r, &r->groups[g], sd_adapter_find(r->groups[g].adapter, matrix)};
        if (d.of == NULL) continue;
        int n_panels = sd_matrix_panels(d.of->down.n_out), n_pairs = n_panels * n_blocks(d.group);
        if (n_pairs == 1 || (long)d.group->n * n_panels * SD_PANEL * d.of->down.n_in < SHARED_WORK)
            reduce_pairs(&d, 0, 0, n_pairs);
        else
            sd_team_run(team, n_pairs, 1, reduce_pairs, &d);
    }
}

/* Add one panel of an `up` to one panel of y, for the group's rows [from, end). */
static void add_panel(const sd_adapted_rows* r, const reduction* of, const sd_low_rank* part, int panel,
                      int from, int end, int row, float* y, ptrdiff_t ldy) {
    const sd_kernels* k = sd_kernels_get();
    float sums[SD_ADAPTED_BLOCK * SD_PANEL];
    for (int i = from / SD_ADAPTED_BLOCK * SD_ADAPTED_BLOCK; i < end; i += SD_ADAPTED_BLOCK) {
        block b = block_at(r, of->group, of->of->mlp_input, i);
        k->panel[SD_FORMAT_F32](b.n, b.low + (ptrdiff_t)part->first * b.n, part->up.panels[panel].at,
                                part->rank, part->up.near, sums, SD_PANEL);
        for (int j = from > i ? from : i; j < end && j < i + b.n; j++)
            k->add(1, SD_PANEL, y + (r->rows[of->group->first + j] - row) * ldy, ldy,
                   sums + (ptrdiff_t)(j - i) * SD_PANEL, SD_PANEL);
    }
}

/* Panel of a tensor at a panel of its matrix; -1: none. */
static int panel_of(const sd_low_rank* part, int panel) {
    int from_first = panel - part->rows.first / SD_PANEL;
    if (from_first < 0 || from_first % part->rows.step != 0) return -1;
    return from_first / part->rows.step < sd_matrix_panels(part->up.n_out) ? from_first / part->rows.step
                                                                           : -1;
}

void sd_adapted_rows_add(const sd_adapted_rows* r, const sd_matrix* matrix, int panel, int n_panels, int row,
                         int n_rows, float* y, ptrdiff_t ldy) {
    for (int g = 0; r != NULL && g < r->n_groups; g++) {
        reduction of = {r, &r->groups[g], sd_adapter_find(r->groups[g].adapter, matrix)};
        int from = of.of ? n_before(r, of.group, row) : 0,
            end = of.of ? n_before(r, of.group, row + n_rows) : 0;
        if (from == end) continue;
        for (int part = 0; part < of.of->n_parts; part++) {
            const sd_low_rank* p = &of.of->parts[part];
            for (int i = 0; i < n_panels; i++) {
                int own = panel_of(p, panel + i);
                if (own >= 0) add_panel(r, &of, p, own, from, end, row, y + (ptrdiff_t)i * SD_PANEL, ldy);
            }
        }
    }
}
