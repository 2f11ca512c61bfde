"""Which model each text of a call is of: the target, or one with an adapter beside the same weights."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from specdec.checks import check_items, check_path
from specdec.errors import InputError, kind_of, number_of
from specdec.models.model import Model

AdapterLike: TypeAlias = Model | str | os.PathLike[str]
"""A model of `specdec.Model.with_adapter`, or the folder of an adapter."""


def check_adapter(name: str, adapter: Any) -> Any:
    """Return one adapter as it is, several as a list of their own; refuse what is neither."""
    expected = "a model of Model.with_adapter, the folder of an adapter, or None"
    several = isinstance(adapter, list | tuple)
    given = check_items(name, adapter, f"{expected}, or a list of these") if several else [adapter]
    for i, one in enumerate(given):
        if one is not None and not isinstance(one, Model | str | os.PathLike):
            raise InputError.of(f"{name}[{i}]" if several else name, one, expected, kind_of(one))
    return given if several else adapter


def adapted_models(
    target: Model,
    adapter: AdapterLike | Sequence[AdapterLike | None] | None,
    n_prompts: int,
    *,
    is_batch: bool,
    n_threads: int,
) -> list[Model] | None:
    """The model of each prompt's text; None: all are of the target. A folder is read once.

    Raises InputError for another number of adapters than of prompts, or a model over other weights, and as
    `specdec.Model.with_adapter`.
    """
    if adapter is None:
        return None
    given: Sequence[Any] = adapter if isinstance(adapter, list) else [adapter] * n_prompts
    if given is adapter and (not is_batch or len(given) != n_prompts):
        raise InputError(
            f"adapter is a list of {len(given)} for {number_of(n_prompts, 'prompt')}; expected one "
            "adapter, or one for each prompt of a list"
        )
    weights = target.core.base or target.core
    read: dict[Path, Model] = {}
    models: list[Model] = []
    for one in given:
        if one is None:
            models.append(target)
        elif isinstance(one, Model):
            if (one.core.base or one.core) is not weights:
                raise InputError(
                    f"adapter is {one!r}, whose weights are not those of {target!r}; expected a model of its "
                    "with_adapter"
                )
            models.append(one)
        else:
            place = check_path("adapter", one)
            if place not in read:
                read[place] = (target.base or target).with_adapter(place, n_threads=n_threads)
            models.append(read[place])
    return models
