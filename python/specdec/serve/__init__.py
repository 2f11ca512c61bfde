"""An HTTP server for programs that speak the OpenAI API; `specdec serve` starts it (docs/SERVER.md).

The server uses the public interface of the engine (`specdec.Engine`), and the engine knows nothing of HTTP.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec.serve.server import Server
    from specdec.serve.service import ServerLimits, Service

__all__ = ["Server", "ServerLimits", "Service"]

if not TYPE_CHECKING:  # a server's packages are an extra, which `Service` does not need

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = "server" if name == "Server" else "service"
        return getattr(import_module(f"{__name__}.{home}"), name)
