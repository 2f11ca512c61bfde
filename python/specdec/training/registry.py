"""The kinds of drafts that are trained, by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from specdec.checks import check_choice

if TYPE_CHECKING:  # the kinds are shown where there is no torch
    from specdec.training.kind import Kind

__all__ = ["KINDS", "kind_of_name"]

_HOMES = {
    "small": "small_kind.SmallKind",
    "recurrent": "recurrent_kind.RecurrentKind",
    "exit": "exit_kind.ExitKind",
    "heads": "heads_kind.HeadsKind",
    "eagle": "eagle_kind.EagleKind",
    "pass": "look_ahead_kind.LookAheadKind",
}
"""Where each kind lies in this folder; it is imported when it is asked for."""

KINDS: Mapping[str, str] = {
    "small": "a small decoder, or the model that --begin names",
    "recurrent": "gated recurrent units, whose step takes microseconds",
    "exit": "the target itself, so that its first layers draft for it: another model",
    "heads": "heads on the target's last hidden state: Medusa's, Hydra's",
    "eagle": "a layer on the target's hidden states: EAGLE-3, EAGLE-1",
    "pass": "look-ahead embeddings, which ride on verification (PaSS)",
}
"""What is trained, by the name of the kind."""


def kind_of_name(name: str) -> type[Kind]:
    """The class of a kind.

    Raises
    ------
    InputError
        There is no such kind.
    """
    module, _, attribute = _HOMES[check_choice("kind", name, tuple(KINDS))].rpartition(".")
    found: type[Kind] = getattr(import_module(f"specdec.training.{module}"), attribute)
    return found
