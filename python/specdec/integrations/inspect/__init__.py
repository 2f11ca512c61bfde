"""Inspect AI with specdec as its model: ``--model specdec/PATH``."""

from __future__ import annotations

from specdec.errors import MissingPackageError

try:
    from inspect_ai.model import ModelAPI, modelapi
except ImportError:
    raise MissingPackageError(
        "specdec.integrations.inspect needs inspect_ai, which is not installed: "
        "pip install 'specdec-cpu[inspect]'"
    ) from None

__all__ = ["specdec"]


@modelapi(name="specdec")
def specdec() -> type[ModelAPI]:
    """Import and return the class of models ``specdec/PATH``."""
    from specdec.integrations.inspect.api import SpecdecAPI

    return SpecdecAPI
