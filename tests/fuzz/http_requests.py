"""Damaged HTTP requests: faults in bytes, values, names, headers and chunks, and clients that disconnect.

Each is answered with a text or a named error, never with status 500. Each pipelined request gets one answer,
unless an earlier one closes the connection.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fuzz.running import Failure
from http_talk import JSON, ask, connected
from processes import wait_for
from specdec import Engine
from specdec.serve import Server, ServerLimits, Service
from trained import small_pair
from worlds.draws import Draws

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}"
    "{% endif %}\n{% endfor %}{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}}
TOOL = {"name": "weather", "description": "of a place", "parameters": PLACE}
CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
PROPERTIES = {"name": {"type": "string", "maxLength": 5}, "ages": {"items": {"type": "integer"}}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["name"]}
MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "rain"},
    {"role": "assistant", "content": "It rains.", "reasoning_content": "The tool says so."},
]
SETTINGS = {
    "model": "mine", "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.01, "seed": 3,
    "stop": ["xyz", "</s>a"],
    "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1, "logit_bias": {"5": 1.5},
    "user": "someone", "speculative": {"draft": True, "gamma": 2, "verify": "coupled"},
    "dry_multiplier": 0.5, "dry_sequence_breakers": ["\n", [5]], "include_stop_str_in_output": True,
    "use_beam_search": False,
}  # fmt: skip
COMPLETIONS, CHATS, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
INPUT: list[Any] = [
    {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Hi"},
]  # fmt: skip
ANTHROPIC = "/v1/messages"
BLOCKS: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "tool_use", "id": "t", "name": "weather", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "rain"}]},
]  # fmt: skip
SOUND: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {**SETTINGS, "prompt": "Once upon a time", "max_tokens": 4, "logprobs": 2, "n": 2,
        "return_rounds": True}),
    (COMPLETIONS, {"model": "mine", "prompt": [[5, 6], [7]], "max_tokens": 3, "echo": True, "logprobs": 1,
        "stream": True, "skip_special_tokens": False, "speculative": {"num_speculative_tokens": 1}}),
    (COMPLETIONS, {"model": "mine", "prompt": "a b", "max_tokens": 0, "echo": True, "logprobs": 1}),
    (COMPLETIONS, {"model": "mine", "prompt": "Once", "max_tokens": 6, "response_format":
        {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}),
    (COMPLETIONS, {"prompt": "O", "max_tokens": 4, "structured_outputs": {"regex": "[a-c]{2}(x|y)+"}}),
    (CHATS, {**SETTINGS, "messages": MESSAGES, "max_completion_tokens": 4, "logprobs": True,
        "top_logprobs": 2}),
    (CHATS, {"model": "mine", "messages": MESSAGES[1:2], "max_tokens": 4, "stream": True,
        "stream_options": {"include_usage": True}, "tools": [{"type": "function", "function": TOOL}],
        "prediction": {"type": "content", "content": "Once upon a time"}}),
    (RESPONSES, {"model": "mine", "input": INPUT, "instructions": "Be brief.", "max_output_tokens": 4,
        "stream": True, "tools": [{"type": "function", **TOOL}], "text": {"format": {"type": "text"}}}),
    (ANTHROPIC, {"model": "mine", "system": "Be brief.", "messages": BLOCKS, "max_tokens": 4, "stream": True,
        "stop_sequences": ["xyz"], "tools": [{"name": "weather", "input_schema": PLACE}],
        "tool_choice": {"type": "auto"}, "thinking": {"type": "adaptive"}, "top_k": 5}),
    (f"{ANTHROPIC}/count_tokens", {"messages": BLOCKS}),
    ("/tokenize", {"prompt": "Once", "add_special_tokens": True}), ("/tokenize", {"messages": MESSAGES}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
]  # fmt: skip
REFERENCE = {"model": "mine", "prompt": "It was a dark", "max_tokens": 8, "temperature": 0}
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 17, 4095, 4096, 2**31, 2**63, 2**64, -(2**64), 10**400, 0.0, -0.5,
    1e-300, 1e300, "", "a", "\0", "\ud800", "🙂" * 50, "auto", "none", "x" * 3000, [], {}, [None], [[]],
    [1, "a"], {"a": 1}, {"type": "text"}, {"type": "json_object"}, {"type": "function"}, [{}], [[[[[]]]]],
    "{{ 1 }}", "1e999",
]  # fmt: skip
LIMITS = ServerLimits(n_new_tokens=8, n_texts=8, n_body_bytes=200_000, body_s=0.2, write_s=2.0, n_waiting=64)
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
REFUSED = {400, 404, 408, 413, 415, 429}
LONGEST = 200_000  # bytes of a body that is sent in chunks
LARGEST = 64 << 20  # bytes by which the process may grow after its first requests


@st.composite
def requests(draw: Callable[..., Any]) -> dict[str, Any]:
    """Damaged requests: a path, the bytes of a body, headers, and the manner of sending."""
    draws = Draws(draw)
    path, sound = draws.choice(SOUND)
    found: dict[str, Any] = {"path": path, "how": "whole"}
    if draws.chance(0.08):
        cut = draws.one(None, "cut", "noise", b"zz\r\n", b"-1\r\n", b"5\r\nab")
        return found | {
            "how": "leave", "body": json.dumps(sound).encode(), "cut": cut,
            "noise": draws.random().randbytes(200), "reads": draws.one(0, 1, 100),
        }  # fmt: skip
    found |= {"body": _damaged_body(draws, sound), "headers": {}}
    if draws.chance(0.06):
        found["headers"] = {"Content-Type": draws.one("text/plain", "", "application/json; x=y")}
    if draws.chance(0.15):
        found |= {
            "how": "ahead", "n": draws.one(1, 2, 5, 17, 18, 60), "size": draws.one(1, 3, 1000, 100_000),
            "n_extension": draws.one(0, 0, 5, 3000, 70_000), "n_trailers": draws.one(0, 0, 3, 2000, 20_000),
            "excess": int(draws.chance(0.2)),  # bytes by which the size of a chunk is wrong
        }  # fmt: skip
    return found


def _damaged_body(draws: Draws, sound: dict[str, Any]) -> bytes:
    """Draw a body with one to three faults in its value or its bytes."""
    value, in_value, n_faults = deepcopy(sound), draws.chance(0.7), draws.randint(1, 3)
    for _ in range(n_faults * in_value):
        if places := _places(value):
            _damage_value(draws, *draws.choice(places))
    body = bytearray(json.dumps(value).encode())
    for _ in range(n_faults * (not in_value)):
        begin = draws.randint(0, len(body))
        end = min(len(body), begin + draws.one(1, 1, 2, 10, 100))
        kind = draws.randrange(4)
        if kind == 0:
            del body[begin:end]
        elif kind == 1:
            body[begin:end] = draws.random().randbytes(end - begin)
        elif kind == 2:
            body[begin:begin] = body[begin:end] * draws.one(1, 50)
        else:
            body[begin:begin] = draws.one(b'"', b"NaN", b"[" * 300, b'{"a":' * 300)
    return bytes(body)


def _damage_value(draws: Draws, holder: Any, key: Any) -> None:
    action, odd = draws.randint(1, 100), deepcopy(draws.choice(ODD))
    if action <= 60:
        holder[key] = odd
    elif action <= 75:
        del holder[key]
    elif isinstance(holder, dict):
        holder[draws.one("", "Model", key + "s", "lenience", "x" * 200)] = odd
    else:
        holder += [deepcopy(holder[key])] * draws.one(1, 3, 200)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every position in a JSON value, as (container, key)."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += [(value, key), *_places(inner)]
    return found


@contextmanager
def served() -> Iterator[Served]:
    """A server that in the end still gives its first answer, holds no text, and has not grown."""
    target, draft = small_pair()
    with (
        Engine(target.with_chat_template(TEMPLATE), draft, n_slots=4, n_threads=1, max_waiting=64) as engine,
        Server(Service(engine, ["mine"], limits=LIMITS, draft_name="small"), port=0) as server,
    ):
        one = Served(server.url)
        wanted = one.send("/v1/completions", json.dumps(REFERENCE).encode(), {})[1]["choices"]
        yield one
        assert one.send("/v1/completions", json.dumps(REFERENCE).encode(), {})[1]["choices"] == wanted
        wait_for(lambda: not (metrics := engine.metrics()).n_running + metrics.n_waiting)
        assert not one.early or _memory() - one.early < LARGEST


class Served:
    """A running server, and the number of answers by status; 0 is a client that disconnected."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.statuses: Counter[int] = Counter()
        self.early = 0

    def ask(self, request: dict[str, Any]) -> None:
        """Send a damaged request, and check the answer."""
        if request["how"] == "leave":
            self._leave(request)
            self.statuses[0] += 1
        elif request["how"] == "ahead":
            self._send_ahead(request)
        else:
            try:
                status, answer = self.send(request["path"], request["body"], request["headers"])
            except ConnectionError:
                if len(request["body"]) <= LIMITS.n_body_bytes:
                    raise
                status = 413  # the connection is closed before all of the body is sent
            else:
                _check(status, answer)
            self.statuses[status] += 1
        if self.statuses.total() == 100:
            self.early = _memory()

    def send(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
        """Send a request; return status and answer."""
        status, answer = ask(self.url, path, body, headers=JSON | headers)
        last = answer[-1] if isinstance(answer, list) and answer else {}
        ends = ("response.completed", "response.incomplete", "message_stop")
        if isinstance(answer, list) and last != "[DONE]" and last.get("type") not in ends:
            raise Failure(f"a stream that ends with {str(answer[-1:])[:200]}")
        return status, answer

    def _send_ahead(self, request: dict[str, Any]) -> None:
        """Send pipelined requests, in chunks, and read all answers."""
        n, size = request["n"], request["size"]
        extension = b";" + b"e" * request["n_extension"] if request["n_extension"] else b""
        body = request["body"][: LONGEST // (size + len(extension) + 5) * size]
        pieces = (body[at : at + size] for at in range(0, len(body), size))
        chunks = b"".join(
            b"%x%b\r\n%b\r\n" % (len(piece) + request["excess"], extension, piece) for piece in pieces
        )
        sent = _head(request["path"]) + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n"
        sent += b"Host: elsewhere\r\n" * request["n_trailers"] + b"\r\n"
        received = bytearray()
        with connected(self.url) as connection:
            try:
                connection.sendall(sent * (n - 1))
                connection.sendall(sent.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                while piece := connection.recv(1 << 16):
                    received += piece
            except ConnectionError:
                pass  # it is closed with a request unread
        statuses = [int(status) for status in STATUS.findall(received)]
        self.statuses.update(statuses or [0])
        if wrong := {*statuses} - REFUSED - {200, 431}:
            raise Failure(f"answers with status {wrong}")
        if len(statuses) > n:
            raise Failure(f"{len(statuses)} answers to {n} requests")

    def _leave(self, request: dict[str, Any]) -> None:
        """Send all or part of a request, or invalid HTTP, and close the connection."""
        body, cut = request["body"], request["cut"]
        sent = _head(request["path"]) + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        if cut == "cut":
            sent = sent[: int.from_bytes(request["noise"][:4], "little") % len(sent)]
        elif cut == "noise":
            sent = request["noise"]
        elif cut is not None:
            sent = _head(request["path"]) + b"Transfer-Encoding: chunked\r\n\r\n" + cut
        with connected(self.url) as connection:
            connection.sendall(sent)
            if request["reads"]:
                connection.settimeout(0.005)
                try:
                    connection.recv(request["reads"])
                except OSError:
                    pass


def _head(path: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()


def _check(status: int, answer: Any) -> None:
    """Raise unless an answer is a text or a named error."""
    if status == 200:
        return
    if status not in REFUSED:
        raise Failure(f"status {status}: {str(answer)[:300]}")
    error = answer.get("error") if isinstance(answer, dict) else None
    named = isinstance(error, dict) and error.get("message")
    fields = {"message", "type"} if answer.get("type") == "error" else {"message", "type", "param", "code"}
    if not named or set(error) != fields:
        raise Failure(f"the error is {str(answer)[:300]}")


def _memory() -> int:
    """Return the resident bytes of this process; 0 if the system does not report them."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 if status.exists() else 0
