"""specdec beside other engines: the same random weights, in one run, taking turns.

The engines come with ``pip install '.[bench]'``; --work takes their models (30 GB for all; kept).
llama-cpp-python is to be built for this processor, with ``--no-binary llama-cpp-python`` and
``CMAKE_ARGS=-DGGML_NATIVE=ON``; by GCC on a processor with AMX add
``-DCMAKE_CXX_FLAGS=-include$PWD/benchmarks/peers/amx_memory.h``, without which what GCC 12 makes of its AMX
kernels crashes. llama.cpp's server is built of the same sources into --work, or named by the environment
variable LLAMA_SERVER.

Each engine is a process of its own (`worker.py`), which holds one model at a time and is stopped (SIGSTOP)
while another works. When the models do not fit in memory together (--memory), the peers come in groups,
specdec among each.
"""

from benchmarks.peers.comparing import (
    batches,
    batches_options,
    forwards,
    forwards_options,
    pairs,
    pairs_options,
)
from benchmarks.peers.exact import exactness, exactness_options

__all__ = [
    "batches",
    "batches_options",
    "exactness",
    "exactness_options",
    "forwards",
    "forwards_options",
    "pairs",
    "pairs_options",
]
