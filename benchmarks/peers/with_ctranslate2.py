"""CTranslate2. Its interface has generation but no KV cache: what it can be asked is timed, and marked."""

from __future__ import annotations

import time
from collections.abc import Callable

import ctranslate2
import numpy as np
from ctranslate2.converters import TransformersConverter
from numpy.typing import NDArray

from benchmarks import encoder_decoders
from benchmarks.peers import translator
from benchmarks.peers.engine import CACHE, CELLS, Batch, Engine, Job, Unsupported, Writer
from benchmarks.peers.translator import SourceJob
from benchmarks.shapes import vocabulary

_COMPUTE = {"f32": "float32", "int8": "int8_float32"}


class CTranslate2(Engine):
    """Plain decoding and prefill by `generate_batch`; M positions by `forward_batch`, without the cache."""

    settings = "int8: one scale per row; t(5) and t(9) are of 5 and 9 tokens without a cache before them"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.generator = ctranslate2.Generator(
            str(_folder(job)),
            compute_type=_COMPUTE[job.format],
            inter_threads=1,
            intra_threads=job.n_threads,
        )
        self.tokens = vocabulary(job.config["n_vocab"])
        self.cache: list[int] = []

    @classmethod
    def prepare(cls, job: Job) -> None:
        """Convert, once, as f32: other types are made at load."""
        if job.format not in _COMPUTE:
            has = ", ".join(sorted(ctranslate2.get_supported_compute_types("cpu")))
            raise Unsupported(f"has only {has} on this CPU")
        _folder(job)

    def prefill(self, ids: list[int]) -> NDArray[np.float32]:
        """All logits, unlike what is timed."""
        self.cache = ids
        return self._logits(ids)[-1]

    def forward(self, ids: list[int]) -> NDArray[np.float32]:
        """Recompute everything, for the check."""
        return self._logits(self.cache + ids)[-len(ids) :]

    def _logits(self, ids: list[int]) -> NDArray[np.float32]:
        return np.array(self.generator.forward_batch([[self.tokens[i] for i in ids]]))[0]

    def trim(self, n: int) -> None:
        """There is no cache to drop."""

    def timer(self, cell: str) -> Callable[[], list[float]]:
        """Through what its interface has."""
        prompt = [self.tokens[i] for i in self.job.ids(max(CACHE, CELLS[cell]))]

        def generate(tokens: list[str], n: int) -> list[float]:
            """The times at which each of n tokens was there."""
            times: list[float] = []
            self.generator.generate_batch(
                [tokens],
                max_length=n,
                min_length=n,
                include_prompt_in_result=False,
                callback=lambda step: times.append(time.perf_counter()) is not None,
            )
            return times

        def prefill() -> list[float]:
            begun = time.perf_counter()
            return [generate(prompt, 1)[0] - begun]

        def plain() -> list[float]:
            return np.diff(generate(prompt[: CACHE - 8], 17)).tolist()

        def several() -> list[float]:
            begun = time.perf_counter()
            self.generator.forward_batch([prompt[: CELLS[cell]]])
            return [time.perf_counter() - begun]

        return plain if cell == "plain" else prefill if cell.startswith("prefill") else several


class CTranslate2Batch(Batch):
    """`generate_batch`, which makes batches of prompts of like lengths."""

    settings = "int8: one scale per row; a batch ends with its longest text"

    def __init__(self, target: Job, draft: Job | None, gamma: int, n_at_once: int) -> None:
        super().__init__(target, draft, gamma, n_at_once)
        self.engine = CTranslate2(target)
        self.ids = {token: i for i, token in enumerate(self.engine.tokens)}

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Convert."""
        if draft:
            raise Unsupported("has no speculative decoding")
        CTranslate2.prepare(target)

    def generate(self, prompts: list[list[int]], n: int) -> list[list[int]]:
        """One call."""
        results = self.engine.generator.generate_batch(
            [[self.engine.tokens[i] for i in ids] for ids in prompts], max_batch_size=self.n_at_once,
            max_length=n, min_length=n, include_prompt_in_result=False,
        )  # fmt: skip
        return [[self.ids[token] for token in result.sequences[0]] for result in results]


def _folder(job: Job):
    def convert(folder) -> None:
        _Converter(str(job.checkpoint), load_as_float16=False).convert(str(folder))

    return job.made(f"{job.name}-ctranslate2", convert)


class _Converter(TransformersConverter):
    """Tells T5 1.1 by `scale_decoder_outputs`, as transformers 5 says it, not by `tie_word_embeddings`."""

    def load_model(self, *args, **more):
        model = super().load_model(*args, **more)
        if model.config.model_type == "t5":
            model.config.tie_word_embeddings = model.config.scale_decoder_outputs
        return model


class CTranslate2Writer(Writer):
    """There is nothing to write with."""

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Say so."""
        raise Unsupported("has no speculative decoding")

    def write(self, ids: list[int], n: int, seed: int | None = None) -> list[int]:
        """Never called."""
        raise Unsupported("has no speculative decoding")


class CTranslate2Translator(translator.Translator):
    """`translate_batch` of one source with one beam, and `score_batch`."""

    settings = "int8: one scale per row; from a source to the first token: a whole call for one token"
    cells = tuple(cell for cell in translator.CELLS if cell.startswith(("plain", "first")))

    def __init__(self, target: SourceJob, draft: SourceJob | None, gamma: int) -> None:
        super().__init__(target, draft, gamma)
        self.translator = ctranslate2.Translator(
            str(_folder(target)), compute_type=_COMPUTE[target.format], inter_threads=1,
            intra_threads=target.n_threads,
        )  # fmt: skip
        self.tokens = encoder_decoders.vocabulary(target.shape)
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    @classmethod
    def prepare(cls, target: SourceJob, draft: SourceJob | None) -> None:
        """Convert, once, as f32: other types are made at load."""
        if draft:
            raise Unsupported("has no speculative decoding")
        CTranslate2.prepare(target)

    def _translate(self, source: list[int], n: int) -> tuple[list[int], list[float]]:
        """The tokens, and the times at which each of them was there."""
        times: list[float] = []
        (result,) = self.translator.translate_batch(
            [[self.tokens[i] for i in source]], beam_size=1, max_decoding_length=n, min_decoding_length=n,
            callback=lambda step: times.append(time.perf_counter()) is not None,
        )  # fmt: skip
        return [self.ids[token] for token in result.hypotheses[0]], times

    def write(self, source: list[int], n: int) -> tuple[list[int], float]:
        """From the first token to the last."""
        tokens, times = self._translate(source, n)
        return tokens, (n - 1) / (times[n - 1] - times[0])

    def first(self, source: list[int]) -> None:
        """A text of one token."""
        self._translate(source, 1)

    def log_probabilities(self, source: list[int], text: list[int]) -> NDArray[np.float64]:
        """The end of the text is scored too."""
        words = ([self.tokens[i] for i in ids] for ids in (source, text))
        (result,) = self.translator.score_batch(*([some] for some in words))
        return np.array(result.log_probs[: len(text)])
