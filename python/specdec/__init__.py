"""Exact speculative decoding of transformer language models on CPUs.

>>> import specdec
>>> target, draft = specdec.embedded_pair()
>>> out = specdec.generate(target, draft, "It was a dark and stormy night", gamma=4)
>>> print(out)  # the text, a line a round, as in Figure 1 of the paper
>>> out.trace.acceptance_rate  # and every figure of the run

`import specdec` needs NumPy and the C core only; everything else is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specdec._core import __version__, available_kernels, kernels

if TYPE_CHECKING:
    from specdec.auto import Auto
    from specdec.beam import Beam, BeamResult, BeamTrace, beam_search
    from specdec.errors import (
        CheckpointError,
        InputError,
        SpecdecError,
        TokenizerError,
        UnsupportedModelError,
        VocabularyMismatchError,
    )
    from specdec.generation import Stream, generate, stream
    from specdec.hindsight import Oracle, OracleRow, oracle
    from specdec.measurement import Measurement, MeasurementRow
    from specdec.measuring import measure
    from specdec.model import Model, embedded_pair, load
    from specdec.quantization import QuantizationReport
    from specdec.result import Result
    from specdec.sampling import Sampling
    from specdec.skipping import SkipSearch, SkipTrial, search_skips
    from specdec.speculation import Speculation, speculate
    from specdec.trace import Round, Trace
    from specdec.tuning import Tuning, tune
    from specdec.verification import distribution, verify

_MODULES = ("drafts", "errors", "plot", "reference", "theory")  # public as modules
_HOMES = {
    "Auto": "auto",
    "Beam": "beam",
    "BeamResult": "beam",
    "BeamTrace": "beam",
    "CheckpointError": "errors",
    "InputError": "errors",
    "Measurement": "measurement",
    "NotFiniteError": "errors",
    "Oracle": "hindsight",
    "OracleRow": "hindsight",
    "oracle": "hindsight",
    "MeasurementRow": "measurement",
    "Model": "model",
    "QuantizationReport": "quantization",
    "Result": "result",
    "Round": "trace",
    "Sampling": "sampling",
    "SkipSearch": "skipping",
    "SkipTrial": "skipping",
    "SpecdecError": "errors",
    "Speculation": "speculation",
    "Stream": "generation",
    "TokenizerError": "errors",
    "Trace": "trace",
    "Tuning": "tuning",
    "UnsupportedModelError": "errors",
    "VocabularyMismatchError": "errors",
    "beam_search": "beam",
    "distribution": "verification",
    "embedded_pair": "model",
    "generate": "generation",
    "load": "model",
    "search_skips": "skipping",
    "speculate": "speculation",
    "measure": "measuring",
    "stream": "generation",
    "tune": "tuning",
    "verify": "verification",
}

__all__ = [
    "Auto",
    "Beam",
    "BeamResult",
    "BeamTrace",
    "CheckpointError",
    "InputError",
    "Measurement",
    "MeasurementRow",
    "Model",
    "NotFiniteError",
    "Oracle",
    "OracleRow",
    "QuantizationReport",
    "Result",
    "Round",
    "Sampling",
    "SkipSearch",
    "SkipTrial",
    "SpecdecError",
    "Speculation",
    "Stream",
    "TokenizerError",
    "Trace",
    "Tuning",
    "UnsupportedModelError",
    "VocabularyMismatchError",
    "__version__",
    "available_kernels",
    "beam_search",
    "distribution",
    "embedded_pair",
    "generate",
    "kernels",
    "load",
    "measure",
    "oracle",
    "search_skips",
    "speculate",
    "stream",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value  # found at once from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
