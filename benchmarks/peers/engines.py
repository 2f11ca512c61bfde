"""Engines by task, with one module per engine, imported in the process that runs it."""

from __future__ import annotations

from importlib import import_module

#: Engine classes by name.
ENGINES = {
    "specdec": "with_specdec.Specdec",
    "specdec, rows": "with_specdec.SpecdecRows",
    "specdec, int8 cache": "with_specdec.SpecdecInt8Cache",
    "llama.cpp": "with_llama_cpp.LlamaCpp",
    "llama.cpp, q8_0 cache": "with_llama_cpp.LlamaCppInt8Cache",
    "openvino": "with_openvino.OpenVino",
    "transformers": "with_transformers.Transformers",
}
#: Engines with speculative decoding of one prompt.
PAIRS = {
    "specdec": "with_specdec.SpecdecPair",
    "llama.cpp": "with_llama_cpp.LlamaServer",
    "openvino": "with_openvino.OpenVinoGenAI",
}
#: Engines that decode many prompts.
BATCHES = {
    "specdec": "with_specdec.SpecdecBatch",
    "specdec, auto": "with_specdec.SpecdecAutoBatch",
    "specdec, plain": "with_specdec.SpecdecPlainBatch",
    "llama.cpp": "with_llama_cpp.LlamaServerBatch",
    "openvino": "with_openvino.OpenVinoBatch",
}
#: Engines whose speculative output is compared with plain output.
WRITERS = {
    "specdec": "with_specdec.SpecdecWriter",
    "transformers": "with_transformers.TransformersWriter",
    "openvino": "with_openvino.OpenVinoWriter",
    "llama-cpp-python": "with_llama_cpp.LlamaCppPythonWriter",
    "llama.cpp server": "with_llama_cpp.LlamaServerWriter",
}
#: Engines that read GGUF files.
READ_GGUF = (
    "specdec", "specdec, auto", "specdec, plain", "llama.cpp", "llama.cpp server", "llama-cpp-python",
)  # fmt: skip


def engine_class(classes: dict[str, str], name: str) -> type:
    """Import an engine; ImportError if it is not installed."""
    module, _, attribute = classes[name].partition(".")
    return getattr(import_module(f"benchmarks.peers.{module}"), attribute)
