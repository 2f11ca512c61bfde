"""Exact speculative decoding of transformer language models on CPUs.

>>> import specdec
>>> target, draft = specdec.embedded_pair()
>>> out = specdec.generate(target, draft, "It was a dark and stormy night", gamma=4)
>>> print(out.figure())  # the text round by round, as in Figure 1 of the paper
>>> out.trace.acceptance_rate  # alpha, and more statistics

`import specdec` needs only NumPy and the C core; everything else is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specdec._core import __version__, available_kernels, kernels

if TYPE_CHECKING:  # all public names, for type checkers
    from specdec import checkpoints as checkpoints
    from specdec import drafts as drafts
    from specdec import errors as errors
    from specdec import plot as plot
    from specdec import ray as ray
    from specdec import reference as reference
    from specdec import theory as theory
    from specdec import tokenizer as tokenizer
    from specdec import training as training
    from specdec.analysis.bench import Bench, BenchRow, bench
    from specdec.analysis.compare import Comparison, Tuning, compare, tune
    from specdec.analysis.experiment import ExperimentRow, Speedup
    from specdec.analysis.measure import Measurement, Timing, measure
    from specdec.analysis.oracle import Oracle, OracleRow, oracle
    from specdec.analysis.questions import Question, read_questions
    from specdec.analysis.recommend import DraftFit, DraftRecommendation, KnownModel, recommend_draft
    from specdec.analysis.skip_search import SkipSearch, SkipTrial, search_skips
    from specdec.decoding.adaptive_gamma import AdaptiveGamma
    from specdec.decoding.asynchronous import agenerate, astream
    from specdec.decoding.beam_search import Beam, BeamResult, BeamTrace, beam_search
    from specdec.decoding.constraint import Constraint, ConstraintState, StatefulTransform, TransformState
    from specdec.decoding.engine import Engine
    from specdec.decoding.generate import Stream, generate, stream
    from specdec.decoding.generation import Generation, Piece, Speculative
    from specdec.decoding.options import DecodingOptions
    from specdec.decoding.prompt_cache import PromptCache
    from specdec.decoding.request_queue import EngineMetrics
    from specdec.decoding.result import Result
    from specdec.errors import (
        BusyError,
        CheckpointError,
        CheckpointNotFoundError,
        ConstraintError,
        ContextLengthError,
        EngineClosedError,
        InputError,
        LearningError,
        MissingLibraryError,
        MissingPackageError,
        NotFiniteError,
        SpecdecError,
        TokenizerError,
        UnsupportedModelError,
        UnusedFieldWarning,
        VocabularyMismatchError,
        WorkerError,
    )
    from specdec.models.chat_template import ChatTemplate
    from specdec.models.convert import convert
    from specdec.models.loading import embedded_pair, load
    from specdec.models.model import Model
    from specdec.models.quantization import QuantizationReport
    from specdec.models.score import Score
    from specdec.plot.explore import Explorer, ExplorerSettings, explore
    from specdec.trace import Round, Trace
    from specdec.verification.sampling import Sampling
    from specdec.verification.speculative_execution import Speculation, speculate
    from specdec.verification.verify import distribution, verify

_MODULES = ("checkpoints", "drafts", "errors", "plot", "ray", "reference", "theory", "tokenizer", "training")
# The public names of each module.
_NAMES = {
    "analysis.bench": "Bench BenchRow bench",
    "analysis.compare": "Comparison Tuning compare tune",
    "analysis.experiment": "ExperimentRow Speedup",
    "analysis.measure": "Measurement Timing measure",
    "analysis.oracle": "Oracle OracleRow oracle",
    "analysis.questions": "Question read_questions",
    "analysis.recommend": "DraftFit DraftRecommendation KnownModel recommend_draft",
    "analysis.skip_search": "SkipSearch SkipTrial search_skips",
    "decoding.adaptive_gamma": "AdaptiveGamma",
    "decoding.asynchronous": "agenerate astream",
    "decoding.beam_search": "Beam BeamResult BeamTrace beam_search",
    "decoding.constraint": "Constraint ConstraintState StatefulTransform TransformState",
    "decoding.engine": "Engine",
    "decoding.generate": "Stream generate stream",
    "decoding.generation": "Generation Piece Speculative",
    "decoding.options": "DecodingOptions",
    "decoding.prompt_cache": "PromptCache",
    "decoding.request_queue": "EngineMetrics",
    "decoding.result": "Result",
    "errors": (
        "BusyError CheckpointError CheckpointNotFoundError ConstraintError ContextLengthError "
        "EngineClosedError InputError LearningError MissingLibraryError MissingPackageError NotFiniteError "
        "SpecdecError TokenizerError UnsupportedModelError UnusedFieldWarning VocabularyMismatchError "
        "WorkerError"
    ),
    "models.chat_template": "ChatTemplate",
    "models.convert": "convert",
    "models.loading": "embedded_pair load",
    "models.model": "Model",
    "models.quantization": "QuantizationReport",
    "models.score": "Score",
    "plot.explore": "Explorer ExplorerSettings explore",
    "trace": "Round Trace",
    "verification.sampling": "Sampling",
    "verification.speculative_execution": "Speculation speculate",
    "verification.verify": "distribution verify",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AdaptiveGamma", "Beam", "BeamResult", "BeamTrace", "Bench", "BenchRow", "BusyError", "ChatTemplate",
    "CheckpointError", "CheckpointNotFoundError", "Comparison", "Constraint", "ConstraintError",
    "ConstraintState", "ContextLengthError", "DecodingOptions", "DraftFit", "DraftRecommendation", "Engine",
    "EngineClosedError", "EngineMetrics", "ExperimentRow", "Explorer", "ExplorerSettings", "Generation",
    "InputError", "KnownModel", "LearningError", "Measurement", "MissingLibraryError", "MissingPackageError",
    "Model", "NotFiniteError", "Oracle", "OracleRow", "Piece", "PromptCache", "QuantizationReport",
    "Question", "Result", "Round", "Sampling", "Score", "SkipSearch", "SkipTrial", "SpecdecError",
    "Speculation", "Speculative", "Speedup", "StatefulTransform", "Stream", "Timing", "TokenizerError",
    "Trace", "TransformState", "Tuning", "UnsupportedModelError", "UnusedFieldWarning",
    "VocabularyMismatchError", "WorkerError", "__version__", "agenerate", "astream", "available_kernels",
    "beam_search", "bench", "compare", "convert", "distribution", "embedded_pair", "explore", "generate",
    "kernels", "load", "measure", "oracle", "read_questions", "recommend_draft", "search_skips", "speculate",
    "stream", "tune", "verify",
]  # fmt: skip


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{home}"), name)
        globals()[name] = value  # cache for the next access
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
