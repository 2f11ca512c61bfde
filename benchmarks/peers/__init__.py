"""The engines that `bench_peers.py` compares: one module each, run in a process of its own by `worker.py`."""

from __future__ import annotations

from importlib import import_module

from peers.engine import Batch, Engine, Pair, Writer

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
#: Those that decode many prompts, compared by `bench_batch.py`.
BATCHES = {
    "specdec": "with_specdec.SpecdecBatch",
    "llama.cpp": "with_llama_cpp.LlamaServerBatch",
    "openvino": "with_openvino.OpenVinoBatch",
    "transformers": "with_transformers.TransformersBatch",
}
#: Those asked whether speculation changes their output, and how they are run.
WRITERS = {
    "specdec": "with_specdec.SpecdecWriter",
    "transformers": "with_transformers.TransformersWriter",
    "openvino": "with_openvino.OpenVinoWriter",
    "onnxruntime": "with_onnxruntime.OnnxRuntimeWriter",
    "llama-cpp-python": "with_llama_cpp.LlamaCppPythonWriter",
    "llama.cpp server": "with_llama_cpp.LlamaServerWriter",
    "ctranslate2": "with_ctranslate2.CTranslate2Writer",
}


def engine_class(name: str) -> type[Engine]:
    """Import an engine; ImportError if it is not installed."""
    return _import(ENGINES[name])


def pair_class(name: str) -> type[Pair]:
    """Import an engine for speculative decoding; ImportError if it is not installed."""
    return _import(PAIRS[name])


def batch_class(name: str) -> type[Batch]:
    """Import an engine that decodes many prompts; ImportError if it is not installed."""
    return _import(BATCHES[name])


def writer_class(name: str) -> type[Writer]:
    """Import an engine that continues prompts; ImportError if it is not installed."""
    return _import(WRITERS[name])


def _import(place: str) -> type:
    module, _, attribute = place.partition(".")
    return getattr(import_module(f"peers.{module}"), attribute)
