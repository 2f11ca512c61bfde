"""Prompts, generated training texts, and the plan of how many fit the time limit."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_path
from specdec.decoding.generate import generate
from specdec.drafts.memories import IntegerFile
from specdec.errors import CheckpointError, InputError, shown
from specdec.fields import Fields, read_json_object
from specdec.models.checkpoints.safetensors_file import write_safetensors
from specdec.models.model import Model, Prompt
from specdec.text_files import read_text_file
from specdec.time_limit import TimeLimit
from specdec.training.settings import TrainingSettings

_HELD_OUT = 10  # hold out every tenth prompt


@dataclass(frozen=True)
class Prompts:
    """Token ids of prompts, at least one token each, with a held-out part."""

    train: tuple[tuple[int, ...], ...]
    held_out: tuple[tuple[int, ...], ...]
    text: tuple[int, ...] = ()  # the whole file as one text
    digest: str = ""
    name: str = "prompts"  # for messages

    @classmethod
    def read(
        cls, target: Model, given: str | os.PathLike[str] | Sequence[Prompt] | None, longest: int
    ) -> Prompts:
        """Read prompts as token ids, truncated to `longest` tokens.

        `given` is a text file with one prompt per line; a ``.jsonl`` file with a text, ``{"prompt": text}``
        or ``{"messages": [...]}`` per line; prompts; or None for the BOS token.
        """
        whole: list[int] = []
        name = "prompts"
        if given is None:
            found = [[] if target.tokenizer is None else target.tokenizer.encode("")]
            if not found[0]:
                none = f"a file of prompts, as {target.path} has no BOS token"
                raise InputError.of("prompts", None, none)
        elif isinstance(given, str | os.PathLike):
            path = check_path("prompts", given)
            name = f"prompts {path}"
            lines = enumerate(read_text_file(path, "prompts", name="prompts").splitlines(), start=1)
            found = [_ids_of_line(target, line, path, number) for number, line in lines if line.strip()]
            whole = [token for prompt in found for token in prompt]
        else:
            found = [target.check_ids(prompt, maximum=2**31 - 1).tolist() for prompt in given]
        if not found:
            raise InputError(f"{name}: no prompt found; expected at least one")
        cut = tuple(tuple(int(token) for token in prompt[:longest]) for prompt in found)
        digest = hashlib.blake2b(repr((list(cut), whole)).encode(), digest_size=16).hexdigest()
        train, held_out = cut, cut  # few prompts serve both, with different continuations
        if len(cut) >= 2 * _HELD_OUT:
            train = tuple(prompt for i, prompt in enumerate(cut) if i % _HELD_OUT)
            held_out = cut[::_HELD_OUT]
        return cls(train, held_out, tuple(whole), digest, name)


def _ids_of_line(target: Model, line: str, path: Path, number: int) -> list[int]:
    if path.suffix != ".jsonl":
        ids: list[int] = target.check_ids(line, maximum=2**31 - 1).tolist()
        return ids
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}, line {number}: not valid JSON ({error})") from error
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        return target.chat_ids(value["messages"])
    text = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(text, str) or not text:
        expected = 'a text, {"prompt": text} or {"messages": [...]}'
        raise InputError(f"{path}, line {number}: is {shown(value)}; expected {expected}")
    ids = target.check_ids(text, maximum=2**31 - 1).tolist()
    return ids


STEPS_OF_GROUP = 16  # steps whose texts are generated at once
TEMPERATURES = (1.0, 0.6, 1.0, 0.0)  # of a group's texts, cyclically; greedy texts teach least
HELD_OUT_KEY = 1 << 31  # first seed of held-out texts
OPENING = 16  # initial tokens drawn at temperature 1, which make low-temperature texts differ
_FORMAT = {"format": "specdec training texts"}


@dataclass(frozen=True, eq=False)
class Texts:
    """Token ids of texts."""

    ids: NDArray[np.int32]  # [n, length], padded with 0
    begins: NDArray[np.int32]  # [n] prompt tokens, which are not learned
    ends: NDArray[np.int32]  # [n] length of each text

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, rows: Any) -> Texts:
        """Select texts."""
        return Texts(self.ids[rows], self.begins[rows], self.ends[rows])

    @classmethod
    def of_lists(cls, texts: Sequence[Sequence[int]], begins: Sequence[int], length: int) -> Texts:
        """Make texts from lists of up to `length` ids."""
        ids = np.zeros((len(texts), length), np.int32)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text)] = text
        ends = np.array([len(text) for text in texts], np.int32)
        return cls(ids, np.array(begins, np.int32), ends)


TextWriter: TypeAlias = Callable[..., list[list[int]]]
"""Continues prompts to a total of `length` tokens: (prompts, length=, temperature=, seed=), one key each."""


def continued(
    model: Model, n_threads: int, prompts: Sequence[Sequence[int]], *, length: int, temperature: float,
    seed: Sequence[tuple[int, int]],
) -> list[list[int]]:  # fmt: skip
    """Continue prompts with a model, as a `TextWriter`, to `length` tokens or an end-of-text token."""
    texts = [list(prompt) for prompt in prompts]
    ended = [False] * len(texts)
    if temperature < 1.0:
        results = _generate(model, texts, OPENING, 1.0, seed, n_threads)
        for i, (text, result) in enumerate(zip(texts, results, strict=True)):
            text += result.tokens[: max(0, length - len(text))]
            ended[i] = result.finish_reason != "length"
    left: dict[int, list[int]] = {}  # texts by remaining length, generated together
    for i, text in enumerate(texts):
        if not ended[i] and len(text) < length:
            left.setdefault(length - len(text), []).append(i)
    for n_new, members in left.items():
        begun, own = [texts[i] for i in members], [seed[i] for i in members]
        results = _generate(model, begun, n_new, temperature, own, n_threads)
        for i, result in zip(members, results, strict=True):
            texts[i] += result.tokens
    return texts


def _generate(
    model: Model, prompts: list[list[int]], n_new: int, temperature: float, seed: Any, n_threads: int
) -> list[Any]:
    found = generate(
        model, None, prompts, max_new_tokens=n_new, temperature=temperature, seed=list(seed),
        batch_size=min(len(prompts), 32), n_threads=n_threads,
    )  # fmt: skip
    return found if isinstance(found, list) else [found]


class TextGroups:
    """Texts of each group of steps, generated on first use and stored in `folder`.

    A group depends on its number, the seed and the writers only, so a resumed training sees the same texts.
    It has `n_texts`; if these are fewer than its steps need, all steps reuse them. `writers` returns the text
    writers, used cyclically, when a group is generated.
    """

    def __init__(
        self, folder: Path, prompts: Prompts, settings: TrainingSettings, n_steps: int, n_texts: int,
        n_vocab: int, writers: Callable[[], Sequence[TextWriter]],
    ) -> None:  # fmt: skip
        self._n_vocab = n_vocab
        self._folder, self._prompts, self._settings, self._writers = folder, prompts, settings, writers
        self._n_texts = n_texts
        whole = n_texts == STEPS_OF_GROUP * settings.batch
        self.n_groups = max(1, -(-n_steps // (STEPS_OF_GROUP * settings.passes))) if whole else 1
        self._read: tuple[int, Texts] | None = None

    def batch(self, step: int) -> Texts:
        """Return the texts of a step."""
        of_pass = self.n_groups * STEPS_OF_GROUP
        group, part = divmod(step % of_pass, STEPS_OF_GROUP)
        texts = self.group(group)
        order = np.random.default_rng((self._settings.seed, step // of_pass, group)).permutation(len(texts))
        first, batch = part * self._settings.batch, self._settings.batch
        return texts.of(order.take(range(first, first + batch), mode="wrap"))

    def is_written(self, step: int) -> bool:
        """Return whether the texts of a step exist."""
        return self._path(step % (self.n_groups * STEPS_OF_GROUP) // STEPS_OF_GROUP).exists()

    def _path(self, group: int) -> Path:
        return self._folder / f"{group:05}.safetensors"

    def group(self, group: int) -> Texts:
        """Return all texts of a group."""
        if self._read is None or self._read[0] != group:
            path = self._path(group)
            if not path.exists():
                write_safetensors(path, vars(self._write(group)), _FORMAT)
            self._read = group, _read_texts(path, self._n_texts, self._settings.length, self._n_vocab)
        return self._read[1]

    def _write(self, group: int) -> Texts:
        settings = self._settings
        n, seed, length = self._n_texts, settings.seed, settings.length
        rng = np.random.default_rng((seed, group))
        if settings.data == "text":
            return self._cut(rng, n)
        chosen = rng.integers(0, len(self._prompts.train), n)
        prompts = [list(self._prompts.train[i]) for i in chosen]
        texts: list[list[int]] = [[] for _ in range(n)]
        writers = self._writers()
        combinations = [(temperature, writer) for temperature in TEMPERATURES for writer in writers]
        for first, (temperature, writer) in enumerate(combinations):
            members = range(first, n, len(combinations))
            if not members:
                continue
            written = writer(
                [prompts[i] for i in members], length=length, temperature=temperature,
                seed=[(seed, group * n + i) for i in members],
            )  # fmt: skip
            for i, text in zip(members, written, strict=True):
                texts[i] = text
        return Texts.of_lists(texts, [len(prompt) for prompt in prompts], length)

    def _cut(self, rng: np.random.Generator, n: int) -> Texts:
        """Cut random pieces of the prompt file."""
        whole, length = np.array(self._prompts.text, np.int32), self._settings.length
        if len(whole) < 2 * length:
            few = f"'text', and the prompts have {len(whole)} tokens"
            raise InputError.of("data", "text", f"at least {2 * length}", few)
        starts = rng.integers(0, len(whole) - length, n)
        ids = np.stack([whole[start : start + length] for start in starts])
        return Texts(ids, np.ones(n, np.int32), np.full(n, length, np.int32))


def _read_texts(path: Path, n: int, length: int, n_vocab: int) -> Texts:
    """Read and validate the texts of a group."""
    file = IntegerFile(path, _FORMAT)
    texts = Texts(*(file.take(name) for name in ("ids", "begins", "ends")))
    file.check_end("the texts of a training")
    ids, begins, ends = texts.ids, texts.begins, texts.ends
    for name, array, shape in (("ids", ids, (n, length)), ("begins", begins, (n,)), ("ends", ends, (n,))):
        if array.shape != shape or array.dtype != np.int32:
            found = f"shape {array.shape} and dtype {array.dtype}"
            raise CheckpointError(f"{path}: {name} has {found}; expected {shape} and int32; remove the file")
    for name, array, sound, expected in (
        ("ids", ids, (ids >= 0) & (ids < n_vocab), f"0 to {n_vocab - 1}"),
        ("ends", ends, (ends >= 1) & (ends <= length), f"1 to {length}"),
        ("begins", begins, (begins >= 0) & (begins <= ends), "0 to the text's end"),
    ):
        if not sound.all():
            at = tuple(int(i) for i in np.argwhere(~sound)[0])
            found = f"{name}{list(at)} is {array[at]}"
            raise CheckpointError(f"{path}: {found}; expected {expected}; remove the file")
    return texts


MOST_HELD_OUT: Final = 16  # largest number of held-out texts at each temperature
LENGTHS: Final = (256, 128, 64, 32)  # text lengths in tokens; the longest that fits the time is used
_FEWEST_HELD_OUT: Final = 2
_PROBED: Final = 8  # tokens per text that measure the speed
_STEPS: Final = 20  # steps that must fit the time when choosing the text length
_MEASURING, _WRITING = 0.3, 0.3  # shares of the time: held-out texts and measurement; training texts
_CAUTION: Final = 1.5  # safety factor, as the speed is measured on short texts
_OF_HELD_OUT: Final = 6  # times each held-out token is computed: generated, and for two drafts' betas


@dataclass(frozen=True)
class WritingSpeed:
    """Seconds per token of the target, in a batch and for a single text."""

    batch_s: float
    single_s: float

    @classmethod
    def measured(
        cls, target: Model, prompts: Prompts, *, batch: int, n_threads: int, limit: TimeLimit
    ) -> WritingSpeed:
        """Measure the speed on a few tokens of `batch` texts and of one text, by the clock of `limit`."""
        seconds = []
        for n_texts in (batch, 1):
            begun = limit.spent_s
            given = [list(prompts.train[i % len(prompts.train)]) for i in range(n_texts)]
            length = min(max(map(len, given)) + _PROBED, target.config.n_ctx)
            seeds = [(0, i) for i in range(n_texts)]
            texts = continued(target, n_threads, given, length=length, temperature=1.0, seed=seeds)
            n_new = sum(len(text) for text in texts) - sum(map(len, given))
            seconds.append((limit.spent_s - begun) / max(1, n_new))
        return cls(*seconds)

    def held_out_s(self, n_texts: int, length: int) -> float:
        """Estimate the seconds to generate held-out texts at two temperatures and measure two drafts."""
        return n_texts * length * (_OF_HELD_OUT * self.batch_s + 2 * self.single_s)

    def reading_s(self, n_texts: int, length: int) -> float:
        """Estimate the seconds to evaluate texts of two temperatures once."""
        return 2 * n_texts * length * self.batch_s

    def measuring_s(self, n_texts: int, length: int) -> float:
        """Estimate the part of `held_out_s` after the training."""
        return self.held_out_s(n_texts, length) - self.reading_s(n_texts, length)


def affordable_length(speed: WritingSpeed, batch: int, seconds: float, n_ctx: int) -> int:
    """Return the longest of `LENGTHS` for which some steps fit the time; else the shortest."""
    lengths = sorted({min(length, n_ctx) for length in LENGTHS}, reverse=True)
    for length in lengths:
        steps_s = length * batch * (1 + _STEPS) * speed.batch_s
        if _CAUTION * (steps_s + speed.held_out_s(_FEWEST_HELD_OUT, length)) <= seconds:
            return length
    return lengths[-1]


@dataclass(frozen=True)
class TrainingPlan:
    """Numbers of texts in a training."""

    n_held_out: int  # at each temperature
    n_texts: int  # per group of STEPS_OF_GROUP steps; if fewer than these need, for the whole training

    @classmethod
    def whole(cls, batch: int) -> TrainingPlan:
        """Return the plan without a time limit."""
        return cls(MOST_HELD_OUT, STEPS_OF_GROUP * batch)

    @classmethod
    def within(cls, seconds: float, speed: WritingSpeed, *, length: int, batch: int) -> TrainingPlan:
        """Return a plan that fits the seconds, with at least two held-out texts and the texts of a step."""
        most = cls.whole(batch)
        seconds /= _CAUTION
        n_held_out = max(int(_MEASURING * seconds / speed.held_out_s(1, length)), _FEWEST_HELD_OUT)
        n_texts = max(int(_WRITING * seconds / (length * speed.batch_s)), batch)
        return cls(min(n_held_out, most.n_held_out), min(n_texts, most.n_texts))

    @classmethod
    def load(cls, path: Path, batch: int) -> TrainingPlan:
        """Read a plan from a file."""
        fields, most = Fields(read_json_object(path), path), vars(cls.whole(batch))
        return cls(**{name: fields.integer(name, maximum=largest) for name, largest in most.items()})
