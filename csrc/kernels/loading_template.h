/* Kernels for loading: quantization of weights, packing and unpacking of GGUF blocks, checksums.
 *
 * Included after the vector's operations. With READ_BLOCKS 0, read_block stays that of the part before: it
 * reads one row, which is too short for wider registers. */
#ifndef READ_BLOCKS
#define READ_BLOCKS 1
#endif

#include "base_template.h"
#include "unpack_template.h"

#include "quantize_template.h"

#include "code_scales_template.h"

#include "blocks_template.h"
#include "checksum_template.h"

#define SET(name) table->name = NAME(name)
#define SET_UNPACK(name, format) table->unpack[format] = NAME(sdk_unpack)[format];
#define SET_PUT(number, format, n_blocks) table->put_blocks[number] = NAME(put_##number);
#define SET_READ(number, format, n_blocks) table->read_block[number] = NAME(read_##number);
void NAME(sdk_loading)(sd_kernels* table) {
    SD_CODED_FORMATS(SET_UNPACK)
    SD_BLOCK_NUMBERS(SET_PUT)
#if READ_BLOCKS
    SD_BLOCK_NUMBERS(SET_READ)
#endif
    SET(quantize_int8);
    SET(quantize_int4);
    SET(affine_code);
    SET(centered_code);
    SET(checksum_lines);
}
#undef SET
#undef SET_UNPACK
#undef SET_PUT
#undef SET_READ
