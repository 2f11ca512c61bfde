"""A target and a draft as they are sent to actors: described in the run's file, opened by each actor."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

from specdec.drafts.draft import Draft
from specdec.drafts.model_draft import DraftLike, open_draft
from specdec.models.loading import as_model
from specdec.models.model import Model, ModelLike

TargetGiven: TypeAlias = ModelLike | Callable[[], Model]
"""A model, its path or name, or a function that loads it."""
DraftGiven: TypeAlias = DraftLike | Callable[[Model], DraftLike] | None
"""A draft, or a function that makes it for a target."""


def described(value: Any) -> Any:
    """What tells a model, a draft or another argument from others, as JSON: the same in every process."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, Model):
        reference = None if value.origin is None else value.origin.reference()
        merged = None if reference is None else reference.adapter_files
        said = [
            f", files {reference.files.digest}" if reference is not None else "",
            f", merged adapter {merged.digest}" if merged is not None else "",
            f", adapter {value.adapter_digest}" if value.adapter_digest is not None else "",
        ]
        return f"{value.path} ({value.dtype}, cache {value.cache_dtype}{''.join(said)})"
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    if isinstance(value, dict):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, type) or is_function(value):
        return f"{value.__module__}.{value.__qualname__}"
    kind = type(value)
    own = any("__repr__" in vars(parent) for parent in kind.__mro__[:-1])  # object's has the address
    return repr(value) if own else f"{kind.__module__}.{kind.__qualname__}"


def is_function(value: Any) -> bool:
    """Whether an argument is a function, and no object with methods of its own."""
    return callable(value) and hasattr(value, "__qualname__") and not isinstance(value, type)


def opened_target(given: TargetGiven) -> Model:
    """The target, in an actor.

    Raises
    ------
    InputError, CheckpointError, TokenizerError
    """
    return as_model("target", given() if is_function(given) else given)  # type: ignore[operator]


def opened_draft(given: DraftGiven, target: Model) -> Draft | None:
    """The draft, in an actor.

    Raises
    ------
    InputError, CheckpointError, TokenizerError
    """
    make: Any = given
    made = make(target) if is_function(given) else given
    return None if made is None else open_draft("draft", made, optional=True, target=target)
