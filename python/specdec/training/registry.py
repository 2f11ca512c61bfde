"""The kinds of drafts that are trained, by name."""

from __future__ import annotations

from importlib import import_module

from specdec.checks import check_choice
from specdec.training.kind import Kind

__all__ = ["KINDS", "kind_of_name"]

_HOMES = {
    "small": "small_kind.SmallKind",
    "recurrent": "recurrent_kind.RecurrentKind",
    "exit": "exit_kind.ExitKind",
    "heads": "heads_kind.HeadsKind",
    "eagle": "eagle_kind.EagleKind",
    "pass": "pass_kind.PassKind",
}
"""Where each kind lies in this folder; it is imported when it is asked for."""

KINDS: tuple[str, ...] = tuple(_HOMES)


def kind_of_name(name: str) -> type[Kind]:
    """The class of a kind.

    Raises
    ------
    InputError
        There is no such kind.
    """
    module, _, attribute = _HOMES[check_choice("kind", name, KINDS)].rpartition(".")
    found: type[Kind] = getattr(import_module(f"specdec.training.{module}"), attribute)
    return found
