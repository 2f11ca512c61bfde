"""The engines that `bench_peers.py` compares: one module each, run in a process of its own by `worker.py`."""

from __future__ import annotations

from importlib import import_module

from peers.engine import Engine

#: Engine names, as on the command line and in the tables, and where each is.
ENGINES = {
    "specdec": "peers.with_specdec.Specdec",
    "llama.cpp": "peers.with_llama_cpp.LlamaCpp",
    "openvino": "peers.with_openvino.OpenVino",
    "onnxruntime": "peers.with_onnxruntime.OnnxRuntime",
    "transformers": "peers.with_transformers.Transformers",
    "ctranslate2": "peers.with_ctranslate2.CTranslate2",
}


def engine_class(name: str) -> type[Engine]:
    """Import an engine; ImportError if it is not installed."""
    module, _, attribute = ENGINES[name].rpartition(".")
    return getattr(import_module(module), attribute)
