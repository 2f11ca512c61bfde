"""The body of a request, read within bounds."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from specdec.serve.request_error import RequestError
from specdec.serve.server_limits import ServerLimits

__all__ = ["read_body"]


async def read_body(request: Request, limits: ServerLimits) -> bytes:
    """The bytes of a body.

    Raises
    ------
    RequestError
        It is announced as something else than JSON (415), too large (413), or does not come in time (408).
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(
            "the Content-Type is not application/json; expected a body in JSON, announced as such", status=415
        )
    most = limits.n_body_bytes
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdecimal() and (len(announced) > 18 or int(announced) > most):
        raise _too_large(most)
    try:
        return await asyncio.wait_for(_collected(request, most), limits.body_s)
    except asyncio.TimeoutError:
        raise RequestError(
            f"the body did not come within {limits.body_s:g} seconds",
            status=408,
            headers={"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise RequestError("the client has gone", status=499) from None


def _too_large(most: int) -> RequestError:
    return RequestError(
        f"the body has more than {most} bytes; expected at most so many",
        status=413,
        code="body_too_large",
        headers={"Connection": "close"},
    )


async def _collected(request: Request, most: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise _too_large(most)
    return bytes(body)
