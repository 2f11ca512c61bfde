#include "heads.h"

#include "draft_tokens.h"

#define MAX_D_MODEL (1 << 20) /* so that the inputs of every head can be counted */

/* The arrays of head k = 1, 2, …; while the arena is counting they have no memory. */
static sd_head take_head(sd_arena* arena, const sd_heads_config* c, int k) {
    int d = c->d_model;
    sd_head head = {.blocks = sd_arena_take(arena, (size_t)c->n_blocks, sizeof *head.blocks),
                    .biases = sd_arena_take(arena, (size_t)c->n_blocks, sizeof *head.biases)};
    if (c->see_guesses) head.input = sd_matrix_take(arena, c->format, SD_LAYOUT_PANELS, d, (1 + k) * d, 1);
    for (int b = 0; b < c->n_blocks; b++) {
        sd_matrix block = sd_matrix_take(arena, c->format, SD_LAYOUT_PANELS, d, d, 1);
        float* bias = sd_arena_take(arena, (size_t)d, sizeof *bias);
        if (arena->base != NULL) head.blocks[b] = block, head.biases[b] = bias;
    }
    if (!c->shared_output)
        head.output = sd_matrix_take(arena, c->format, SD_LAYOUT_PANELS, c->n_draft_vocab, d, 1);
    return head;
}

/* The tensors of head k = 1, 2, … as the folder of a draft names them. */
static void list_head(sd_tensor_list* list, const sd_heads_config* c, sd_head* head, int k) {
    if (c->see_guesses) sd_tensor_list_add_matrix(list, &head->input, "heads.%d.input.weight", k - 1);
    for (int b = 0; b < c->n_blocks; b++) {
        sd_tensor_list_add_matrix(list, &head->blocks[b], "heads.%d.blocks.%d.weight", k - 1, b);
        sd_tensor_list_add_vector(list, head->biases[b], c->d_model, "heads.%d.blocks.%d.bias", k - 1, b);
    }
    if (!c->shared_output) sd_tensor_list_add_matrix(list, &head->output, "heads.%d.output.weight", k - 1);
}

static void lay_out(sd_heads* heads, int has_tokens) {
    sd_arena* arena = &heads->arena;
    const sd_heads_config* c = &heads->config;
    heads->tensors = sd_tensor_list_take(arena, c->n_heads * (2 + 2 * c->n_blocks));
    heads->heads = sd_arena_take(arena, (size_t)c->n_heads, sizeof *heads->heads);
    size_t n_tokens = has_tokens ? (size_t)c->n_draft_vocab : 0;
    int32_t* tokens = sd_arena_take(arena, n_tokens, sizeof *tokens);
    heads->tokens = has_tokens ? tokens : NULL;
    for (int k = 1; k <= c->n_heads; k++) {
        sd_head head = take_head(arena, c, k);
        if (arena->base == NULL) continue;
        heads->heads[k - 1] = head;
        list_head(&heads->tensors, c, &heads->heads[k - 1], k);
    }
}

static sd_status check(const sd_heads_config* c, const int32_t* tokens) {
    if (c->n_heads < 1 || c->n_heads > SD_MAX_HEADS)
        return sd_fail(SD_ERR_VALUE, "n_heads is %d, expected 1 to %d", c->n_heads, SD_MAX_HEADS);
    if (c->n_blocks < 0 || c->n_blocks > SD_MAX_HEAD_BLOCKS)
        return sd_fail(SD_ERR_VALUE, "n_blocks is %d, expected 0 to %d", c->n_blocks, SD_MAX_HEAD_BLOCKS);
    if (c->d_model < 1 || c->d_model > MAX_D_MODEL)
        return sd_fail(SD_ERR_VALUE, "d_model is %d, expected 1 to %d", c->d_model, MAX_D_MODEL);
    if (c->n_vocab < 1 || c->n_draft_vocab < 1 || c->n_draft_vocab > c->n_vocab)
        return sd_fail(SD_ERR_VALUE, "n_draft_vocab is %d, expected 1 to %d, the target's n_vocab",
                       c->n_draft_vocab, c->n_vocab);
    return sd_draft_tokens_check(tokens, c->n_draft_vocab, c->n_vocab);
}

sd_status sd_heads_create(const sd_heads_config* config, const int32_t* tokens, sd_heads** out) {
    sd_status status = check(config, tokens);
    if (status != SD_OK) return status;
    sd_heads* heads = sd_alloc(sizeof *heads);
    if (heads == NULL) return SD_ERR_MEMORY;
    heads->config = *config;
    status = SD_ARENA_BUILD(&heads->arena, lay_out(heads, tokens != NULL));
    if (status != SD_OK) {
        sd_heads_free(heads);
        return status;
    }
    for (int i = 0; tokens != NULL && i < config->n_draft_vocab; i++) heads->tokens[i] = tokens[i];
    *out = heads;
    return SD_OK;
}

sd_status sd_heads_set(sd_heads* heads, const char* name, const sd_source* source, int n_rows, int n_cols,
                       int n_threads) {
    return sd_tensor_list_set(&heads->tensors, name, source, n_rows, n_cols, n_threads);
}

sd_status sd_heads_finish(const sd_heads* heads) { return sd_tensor_list_check(&heads->tensors); }

void sd_heads_free(sd_heads* heads) {
    if (heads == NULL) return;
    sd_arena_free(&heads->arena);
    sd_free(heads);
}
