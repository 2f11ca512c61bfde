/* Kernels on codes: quantization of rows, and products of quantized rows with panels of int8, int4 and the
 * coded formats.
 *
 * Included after the vector's operations. */
#include "base_template.h"
#include "products_template.h"

#include "dot_products_template.h"

#include "coded_template.h"
#include "prepare_codes_template.h"

#define SET_PANEL(name, format) table->panel[format] = NAME(panel_##name);
void NAME(sdk_dots)(sd_kernels* table) {
    table->prepare[SD_ROWS_CODES] = NAME(prepare_codes);
    table->prepare[SD_ROWS_HALVES] = NAME(prepare_halves);
    table->to_int8 = NAME(to_int8);
    table->panel[SD_FORMAT_INT8] = NAME(panel_int8);
    table->panel[SD_FORMAT_INT4] = NAME(panel_int4);
    SD_CODED_FORMATS(SET_PANEL)
    for (int f = SD_FORMAT_INT8; f < SD_N_FORMATS; f++) table->thresholds.block_rows[f] = MAX_ROWS_DOT;
}
#undef SET_PANEL
