"""The engines that `bench_peers.py` compares: one module each, run in a process of its own by `worker.py`."""

from __future__ import annotations

from importlib import import_module

from peers.engine import Engine, Pair

#: Engine names, as on the command line and in the tables, and where each is.
ENGINES = {
    "specdec": "with_specdec.Specdec",
    "llama.cpp": "with_llama_cpp.LlamaCpp",
    "openvino": "with_openvino.OpenVino",
    "onnxruntime": "with_onnxruntime.OnnxRuntime",
    "transformers": "with_transformers.Transformers",
    "ctranslate2": "with_ctranslate2.CTranslate2",
}
#: Those with speculative decoding that is compared end to end.
PAIRS = {
    "specdec": "with_specdec.SpecdecPair",
    "llama.cpp": "with_llama_cpp.LlamaServer",
    "openvino": "with_openvino.OpenVinoGenAI",
    "onnxruntime": "with_onnxruntime.OnnxRuntimePair",
}


def engine_class(name: str) -> type[Engine]:
    """Import an engine; ImportError if it is not installed."""
    return _import(ENGINES[name])


def pair_class(name: str) -> type[Pair]:
    """Import an engine for speculative decoding; ImportError if it is not installed."""
    return _import(PAIRS[name])


def _import(place: str) -> type:
    module, _, attribute = place.partition(".")
    return getattr(import_module(f"peers.{module}"), attribute)
