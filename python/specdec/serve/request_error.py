"""What a client is told when a request is not carried out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec.errors import SpecdecError, printable

__all__ = ["RequestError"]

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
_LONGEST: Final = 1000


class RequestError(SpecdecError):
    """An answer other than what was asked for, in the form that clients of the OpenAI API read.

    Parameters
    ----------
    message : str
        Names the field, what was found and what was expected.
    status : int
        HTTP status.
    param : str, optional
        The field of the request that is refused.
    code : str, optional
        A word for programs, such as "unsupported_parameter".
    headers : mapping of str to str, optional
        Further headers of the answer.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The body of the answer."""
        message = printable(str(self))
        if len(message) > _LONGEST:
            message = f"{message[: _LONGEST - 1]}…"
        return {
            "error": {
                "message": message,
                "type": _TYPES.get(self.status, "invalid_request_error"),
                "param": None if self.param is None else printable(self.param)[:_LONGEST],
                "code": self.code,
            }
        }
