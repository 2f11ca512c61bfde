"""``generation_config.json``: how a model's authors want its texts to begin, to end and to be sampled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specdec.errors import warn
from specdec.models.json_fields import MAX_INT, Fields, as_json, read_json_object

__all__ = ["GenerationDefaults", "read_generation_defaults"]

FILE: Final = "generation_config.json"

# name: (whether it is an integer, what is expected, whether a value fits, the value that changes nothing)
_SAMPLING: Final[Mapping[str, tuple[bool, str, Callable[[float], bool], float | None]]] = {
    "temperature": (False, "a number above 0", lambda x: 0.0 < x <= 1e30, None),
    "top_k": (True, "a whole number, 0 for all tokens", lambda x: 0 <= x <= MAX_INT, 0),
    "top_p": (False, "a number in (0, 1]", lambda x: 0.0 < x <= 1.0, 1.0),
    "min_p": (False, "a number in [0, 1]", lambda x: 0.0 <= x <= 1.0, 0.0),
    "repetition_penalty": (False, "a number from 1e-30 to 1e30", lambda x: 1e-30 <= x <= 1e30, 1.0),
}
_ALWAYS: Final = ("repetition_penalty",)  # also where nothing is sampled


@dataclass(frozen=True)
class GenerationDefaults:
    """What a folder says about texts.

    Attributes
    ----------
    bos_id : int or None
    eos_ids : tuple of int, or None
        None: the files do not say.
    sampling : dict
        Keyword arguments of ``specdec.generate``; see `specdec.Model.default_sampling`.
    decoder_start : tuple of int
        What a decoder with an encoder begins with: ``decoder_start_token_id``, or else ``bos_token_id``, then
        ``forced_bos_token_id`` if the files name it. Empty where they name no first token.
    """

    bos_id: int | None
    eos_ids: tuple[int, ...] | None
    sampling: Mapping[str, Any]
    decoder_start: tuple[int, ...] = ()


def read_generation_defaults(folder: Path, config: Fields, n_vocab: int) -> GenerationDefaults:
    """What generation_config.json says, and config.json where the first is silent, as in ``transformers``.

    Raises
    ------
    CheckpointError
        The file is no JSON object, or names as token what is no id. Ids outside the vocabulary and sampling
        settings out of range are warned of and left out: nothing here changes what the model computes.
    """
    file = folder / FILE
    values = read_json_object(file) if file.is_file() else {}
    sources = [Fields(values, file), config]
    outside: list[str] = []

    def first(name: str) -> tuple[int, ...]:
        return next((ids for source in sources if (ids := source.token_ids(name, n_vocab, outside))), ())

    bos, eos = first("bos_token_id"), first("eos_token_id") or None
    start, forced = (first("decoder_start_token_id") or bos)[:1], first("forced_bos_token_id")[:1]
    if outside:
        fields = ", ".join(dict.fromkeys(outside))  # both files often say the same
        message = f"{folder}: {fields}; expected ids from 0 to {n_vocab - 1}, and others are left out"
        warn(message)
    sampling = _sampling(values, file) | _forbidden(sources, n_vocab)
    return GenerationDefaults(bos[0] if bos else None, eos, sampling, (*start, *forced) if start else ())


def _forbidden(sources: list[Fields], n_vocab: int) -> dict[str, Any]:
    """``bad_words_ids`` of one token each, such as Marian's padding, as a bias of logits.

    Longer ones are left out, as other settings are that depend on the text so far.
    """
    found = next((words for source in sources if (words := source.raw("bad_words_ids")) is not None), None)
    tokens = [word[0] for word in found if _is_id(word, n_vocab)] if isinstance(found, list) else []
    return {"logit_bias": dict.fromkeys(tokens, -math.inf)} if tokens else {}


def _is_id(word: Any, n_vocab: int) -> bool:
    """Whether an entry of ``bad_words_ids`` is a list of one id."""
    if not isinstance(word, list) or len(word) != 1 or isinstance(word[0], bool):
        return False
    return isinstance(word[0], int) and 0 <= word[0] < n_vocab


def _sampling(values: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The settings that the file names; with ``do_sample`` false, the default, those of greedy decoding."""
    samples = values.get("do_sample") is True
    found: dict[str, Any] = {"temperature": 1.0} if samples else {}
    for name, (integer, expected, fits, neutral) in _SAMPLING.items():
        value = values.get(name)
        if value is None or not (samples or name in _ALWAYS):
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, int if integer else int | float)
            or not fits(value)
        ):
            message = f"{file}: field '{name}' is {as_json(value)}; expected {expected}; it is left out"
            warn(message)
        elif value != neutral:
            found[name] = value if integer else float(value)
    return found
