"""What a server takes at most."""

from __future__ import annotations

from dataclasses import dataclass, fields

from specdec.checks import check_integer, check_number

__all__ = ["ServerLimits"]


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Bounds on what clients may ask for, so that no request takes memory or time without end.

    Attributes
    ----------
    n_waiting : int
        Texts that wait for a slot, and requests that wait for scores of prompts alone; one that would make
        them more is answered with status 429.
    n_body_bytes : int
        Bytes of a request's body (413).
    n_new_tokens : int or None
        New tokens of a text: `max_tokens` above it is refused, and it is the bound where a request names
        none. None: as many as the model's context holds.
    n_texts : int
        Texts of a request, its prompts times `n`.
    n_stops : int
        Stop strings and stop ids of a request.
    n_biases : int
        Tokens in `logit_bias`.
    n_top : int
        Most probable tokens in each place, for `logprobs` and `top_logprobs`.
    n_form_bytes : int
        Bytes of a schema (as JSON), a regular expression or a grammar.
    n_tools : int
        Tools of a request.
    n_tokenize_bytes : int
        Bytes of text that `/tokenize` encodes; a text as long as a prompt may be is encoded in any case.
    body_s, write_s : float
        Seconds until the body of a request must have come, and that a client may take for what has been
        sent to it before its connection is closed.
    n_connections : int
        Connections at once. A new one takes the place of the one that has been idle longest; where none is
        idle it is answered with status 503.
    idle_s : float
        Seconds that a connection may be idle, or take for the headers of a request, before it is closed.
    event_s : float
        Seconds between two events of a stream at least, 0 for none; what comes meanwhile is one event.
    """

    n_waiting: int = 256
    n_body_bytes: int = 8 << 20
    n_new_tokens: int | None = None
    n_texts: int = 128
    n_stops: int = 64
    n_biases: int = 1024
    n_top: int = 20
    n_form_bytes: int = 64 << 10
    n_tools: int = 128
    n_tokenize_bytes: int = 1 << 20
    body_s: float = 30.0
    write_s: float = 60.0
    n_connections: int = 1024
    idle_s: float = 60.0
    event_s: float = 0.01

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name.endswith("_s"):
                object.__setattr__(
                    self, name, check_number(name, value, "a number, at least 0", lambda x: 0.0 <= x < 1e9)
                )
            elif value is not None or name != "n_new_tokens":
                object.__setattr__(self, name, check_integer(name, value, 1))
