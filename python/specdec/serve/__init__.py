"""OpenAI-compatible HTTP server on top of `specdec.Engine`; `specdec serve` starts it (docs/SERVER.md)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec.serve.server import Server
    from specdec.serve.service import ServerLimits, Service

__all__ = ["Server", "ServerLimits", "Service"]

if not TYPE_CHECKING:  # `Service` needs none of the server's optional packages

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = "server" if name == "Server" else "service"
        return getattr(import_module(f"{__name__}.{home}"), name)
