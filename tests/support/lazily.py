"""Lazy imports of libraries that only oracle tests use, because importing them takes seconds."""

from __future__ import annotations

import importlib
from typing import Any


class _Lazily:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for marks of its own while it collects
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


peft, torch, transformers = (_Lazily(name) for name in ("peft", "torch", "transformers"))
