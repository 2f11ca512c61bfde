#include "source.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "blocks.h"
#include "half.h"

/* Numbers that lie side by side. */
static void read_along(const void* from, sd_number number, int n, float* out) {
    const uint16_t* halves = from;
    switch (number) {
    case SD_F32: memcpy(out, from, (size_t)n * sizeof *out); break;
    case SD_F16:
        for (int i = 0; i < n; i++) out[i] = sd_float_from_f16(halves[i]);
        break;
    case SD_BF16:
        for (int i = 0; i < n; i++) out[i] = sd_float_from_bf16(halves[i]);
        break;
    default: break;
    }
}

void sd_source_read(const sd_source* source, int row, int col, int n, float* out) {
    const char* at = (const char*)source->data + row * source->row_stride + col * source->col_stride;
    if (sd_has_blocks(source->number)) {
        sd_blocks_read(source->number, (const uint8_t*)source->data + row * source->row_stride, col, n, out);
        return;
    }
    ptrdiff_t size = source->number == SD_F32 ? 4 : 2;
    if (source->col_stride == size && (uintptr_t)at % (uintptr_t)size == 0) {
        read_along(at, source->number, n, out);
        return;
    }
    for (int i = 0; i < n; i++, at += source->col_stride) {
        uint32_t number = 0; /* aligned for each kind */
        memcpy(&number, at, (size_t)size);
        read_along(&number, source->number, 1, &out[i]);
    }
}

/* What is returned where a file ends: no errno. */
#define ENDS (-1)

static int read_bytes(int descriptor, int64_t at, size_t n, char* out) {
    while (n > 0) {
        ssize_t got = pread(descriptor, out, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        if (got == 0) return ENDS;
        out += got;
        at += got;
        n -= (size_t)got;
    }
    return 0;
}

int sd_source_rows(const sd_source* source, int first, int n, void* scratch, sd_source* rows) {
    *rows = *source;
    if (source->data != NULL) {
        rows->data = (const char*)source->data + first * source->row_stride;
        return 0;
    }
    rows->data = scratch;
    const int64_t* order = source->file.order;
    for (int r = 0, together; r < n; r += together) { /* rows that follow each other in the file */
        int64_t row = order ? order[first + r] : first + r;
        together = order ? 1 : n;
        while (order && r + together < n && order[first + r + together] == row + together) together++;
        int error =
            read_bytes(source->file.descriptor, source->file.start + row * source->row_stride,
                       (size_t)(together * source->row_stride), (char*)scratch + r * source->row_stride);
        if (error != 0) return error;
    }
    return 0;
}

size_t sd_source_scratch(const sd_source* source, int n) {
    return source->data != NULL ? 0 : (size_t)n * (size_t)source->row_stride;
}

sd_status sd_source_fail(const char* name, int error) {
    if (error == ENDS)
        return sd_fail(SD_ERR_VALUE,
                       "tensor %s: its file ends before it, expected as many bytes as when it was opened "
                       "(does another program write it?)",
                       name);
    return sd_fail(SD_ERR_VALUE, "tensor %s: its file cannot be read: %s", name, strerror(error));
}

sd_status sd_source_changed(const char* name) {
    return sd_fail(SD_ERR_VALUE,
                   "tensor %s: its numbers have changed while they were read, expected the same each time "
                   "(does another program write its file?)",
                   name);
}
