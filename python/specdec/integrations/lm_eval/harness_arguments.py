"""What lm-evaluation-harness hands on, as specdec takes it: formats, batch sizes, settings of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec.checks import check_integer
from specdec.decoding.prompt_cache import PromptCache
from specdec.errors import InputError, shown
from specdec.settings_table import table_of
from specdec.verification.sampling import Sampling

_SAMPLING: Final = tuple(table_of(Sampling))
_WITHOUT_EFFECT: Final[Mapping[str, tuple[Any, ...]]] = {
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "use_cache": (True, False),
}
"""Arguments of transformers' ``generate`` that tasks give, and the values with which nothing is asked for."""

_FORMATS: Final = {"auto": None, "float32": "f32", "bfloat16": "bf16"}
"""What the harness's other models call number formats."""


def format_of(dtype: Any) -> Any:
    """Return a number format by its name in `specdec.load`; any other value as it is."""
    return _FORMATS.get(dtype, dtype) if isinstance(dtype, str) else dtype


def batch_size_of(given: int | str) -> int | str:
    """Return a number, or "auto", which may come with a schedule as "auto:4"."""
    if not isinstance(given, str):
        return check_integer("batch_size", given, 1)
    word, _, schedule = given.partition(":")
    if word == "auto" and (not schedule or schedule.isdigit()):
        return "auto"
    if not given.isdigit() or int(given) < 1:
        raise InputError.of("batch_size", given, "an integer, at least 1, or 'auto'")
    return int(given)


def prompt_cache_of(given: bool | int) -> PromptCache | None:
    """Make a cache of so many bytes, or of the default size; None for False."""
    if given is True:
        return PromptCache()
    return PromptCache(max_bytes=check_integer("prompt_cache", given, 1)) if given else None


def sampling_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `specdec.generate` from a task's, as the harness has normalised them."""
    settings = dict(settings)
    samples = bool(settings.pop("do_sample", False))
    found = {name: settings.pop(name) for name in _SAMPLING if settings.get(name) is not None}
    for name, value in settings.items():
        if value is not None and value not in _WITHOUT_EFFECT.get(name, ()):
            known = ", ".join(("until", "max_gen_toks", "do_sample", *_SAMPLING))
            raise InputError(f"generation_kwargs has {name} = {shown(value)}; expected {known}")
    found["temperature"] = float(found.get("temperature", 1.0)) if samples else 0.0
    if found.get("top_k") in (0, -1):  # no limit, in other engines
        del found["top_k"]
    return found
