"""What stands before all paths: the host's name, pages of other sites, the key."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from specdec.serve.json_body import json_bytes
from specdec.serve.request_error import RequestError

__all__ = ["Gate", "refused"]

_OPEN: Final = ("/health",)
"""Paths that need no key."""


class Gate:
    """Lets a request in that has the key, calls this host by its name, and is of no page of another site.

    Browsers send what pages ask them to send, and say which site a page is of. A page whose name was made to
    lead here still calls this host by the page's name.

    Parameters
    ----------
    app : ASGI application
    api_key : str or None
        None: no key is wanted.
    hosts : tuple of str or None
        The names that requests may call this host by; None: any.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, hosts: tuple[str, ...] | None) -> None:
        self._app, self._hosts = app, hosts
        self._digest = None if api_key is None else _digest(api_key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            await refused(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> RequestError | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        site = headers.get(b"origin")
        if site is not None and site.decode("latin-1").lower().partition("://")[2] != host:
            return RequestError(
                "the request is of a page of another site, which this server refuses", status=403
            )
        if self._hosts is not None:
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
            if name not in self._hosts:
                return RequestError(f"the host is {name!r}; expected {' or '.join(self._hosts)}", status=403)
        if self._digest is None or scope["path"] in _OPEN:
            return None
        kind, _, key = headers.get(b"authorization", b"").partition(b" ")
        # Digests have one length, and are compared in a time that does not tell where they differ.
        if not hmac.compare_digest(_digest(key.strip()), self._digest) or kind.lower() != b"bearer":
            return RequestError(
                "the API key is missing or wrong; expected Authorization: Bearer with the server's key",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def refused(refusal: RequestError) -> Response:
    """The answer to a request that is not carried out."""
    return Response(json_bytes(refusal.body()), refusal.status, refusal.headers, "application/json")
