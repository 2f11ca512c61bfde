"""The engines, by what they are asked to do: one module each, imported in the process that runs it."""

from __future__ import annotations

from importlib import import_module

#: Engine names, as on the command line and in the tables, and where each is.
ENGINES = {
    "specdec": "with_specdec.Specdec",
    "specdec, OpenBLAS": "with_specdec.SpecdecBlas",
    "specdec, tiles": "with_specdec.SpecdecTiles",
    "llama.cpp": "with_llama_cpp.LlamaCpp",
    "llama.cpp, mapped": "with_llama_cpp.LlamaCppMapped",
    "openvino": "with_openvino.OpenVino",
    "openvino, f32": "with_openvino.OpenVinoF32",
    "onnxruntime": "with_onnxruntime.OnnxRuntime",
    "transformers": "with_transformers.Transformers",
    "transformers, oneDNN": "with_transformers.TransformersOneDnn",
    "ctranslate2": "with_ctranslate2.CTranslate2",
}
#: Those with speculative decoding of one prompt.
PAIRS = {
    "specdec": "with_specdec.SpecdecPair",
    "llama.cpp": "with_llama_cpp.LlamaServer",
    "openvino": "with_openvino.OpenVinoGenAI",
    "openvino, f32": "with_openvino.OpenVinoGenAIF32",
    "onnxruntime": "with_onnxruntime.OnnxRuntimePair",
}
#: Those that decode many prompts.
BATCHES = {
    "specdec": "with_specdec.SpecdecBatch",
    "specdec, auto": "with_specdec.SpecdecAutoBatch",
    "specdec, plain": "with_specdec.SpecdecPlainBatch",
    "llama.cpp": "with_llama_cpp.LlamaServerBatch",
    "openvino": "with_openvino.OpenVinoBatch",
    "openvino, f32": "with_openvino.OpenVinoF32Batch",
    "transformers": "with_transformers.TransformersBatch",
    "transformers, oneDNN": "with_transformers.TransformersOneDnnBatch",
    "ctranslate2": "with_ctranslate2.CTranslate2Batch",
}
#: Those asked whether speculation changes their output.
WRITERS = {
    "specdec": "with_specdec.SpecdecWriter",
    "transformers": "with_transformers.TransformersWriter",
    "openvino": "with_openvino.OpenVinoWriter",
    "onnxruntime": "with_onnxruntime.OnnxRuntimeWriter",
    "llama-cpp-python": "with_llama_cpp.LlamaCppPythonWriter",
    "llama.cpp server": "with_llama_cpp.LlamaServerWriter",
    "ctranslate2": "with_ctranslate2.CTranslate2Writer",
}
#: Those with encoder-decoders.
TRANSLATORS = {
    "specdec": "with_specdec.SpecdecTranslator",
    "specdec, OpenBLAS": "with_specdec.SpecdecBlasTranslator",
    "specdec, tiles": "with_specdec.SpecdecTilesTranslator",
    "transformers": "with_transformers.TransformersTranslator",
    "transformers, oneDNN": "with_transformers.TransformersOneDnnTranslator",
    "ctranslate2": "with_ctranslate2.CTranslate2Translator",
}
#: Those that are asked to read GGUF files.
READ_GGUF = (
    "specdec",
    "specdec, auto",
    "specdec, plain",
    "llama.cpp",
    "llama.cpp, mapped",
    "llama.cpp server",
    "llama-cpp-python",
)


def engine_class(kinds: dict[str, str], name: str) -> type:
    """Import an engine; ImportError if it is not installed."""
    module, _, attribute = kinds[name].partition(".")
    return getattr(import_module(f"benchmarks.peers.{module}"), attribute)
