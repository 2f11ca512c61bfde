"""Interleaved runs of specdec and other engines with the same random weights.

Install the engines with ``pip install '.[bench]'``; --work is the folder of their models (30 GB for all).
Build llama-cpp-python for this processor: ``--no-binary llama-cpp-python`` and
``CMAKE_ARGS=-DGGML_NATIVE=ON``; with GCC on a processor with AMX add
``-DCMAKE_CXX_FLAGS=-include$PWD/benchmarks/peers/amx_memory.h``, as AMX kernels compiled by GCC 12 crash
without it. llama.cpp's server is built from the same sources in --work, or named by the environment variable
LLAMA_SERVER.

Each engine runs in a process (`worker.py`) that holds one model at a time and is stopped (SIGSTOP) while
another works. If the models do not fit in memory together (--memory), peers run in groups, each with specdec.
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
