/* Included before llama.cpp's C++ sources (-include). GCC 12's _tile_loadconfig says that it reads eight bytes,
 * its _tile_loadd that it reads none. So the compiler drops or moves the stores before them, and ldtilecfg faults
 * on the configuration it finds. Here they clobber memory. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__AMX_TILE__)
#include <immintrin.h>
#undef _tile_loadconfig
#undef _tile_loadd
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg\t(%0)" : : "r"((const void*)(config)) : "memory")
#define _tile_loadd(tile, base, stride) amx_memory_loadd(tile, base, stride)
#define amx_memory_loadd(tile, base, stride)                         \
    __asm__ volatile("tileloadd\t(%0,%1,1), %%tmm" #tile             \
                     :                                               \
                     : "r"((const void*)(base)), "r"((long)(stride)) \
                     : "memory")
#endif
