"""Damaged requests to a server: `python -m fuzz.http_requests --help`.

A server with the pair in the package gets sound requests that were damaged: in their bytes, in the values and
names of their JSON, in their headers, or by a client that leaves. Each is answered with a text, or refused by
name; no answer has a status of 500, and at the end the server writes what it wrote at the beginning, holds no
text, and is not much larger. Some bodies come in chunks, with extensions and trailers, and some requests are
sent ahead of the answers to others: each gets one answer, or those after some do not.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import secrets
import socket
import sys
import time
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import specdec
from specdec.decoding.engine import Engine
from specdec.serve.http_server import Server
from specdec.serve.server_limits import ServerLimits
from specdec.serve.service import Service

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}"
    "{% endif %}\n{% endfor %}{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TOOL = {
    "name": "weather",
    "description": "of a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
}
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "ages": {"items": {"type": "integer"}}},
    "required": ["name"],
}
MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "rain"},
    {"role": "assistant", "content": "It rains.", "reasoning_content": "The tool says so."},
]
SETTINGS = {
    "model": "mine", "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.01, "seed": 3,
    "stop": ["xyz", "</s>a"],
    "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1, "logit_bias": {"5": 1.5},
    "user": "someone", "speculative": {"draft": True, "gamma": 2, "verify": "coupled"},
}  # fmt: skip
SOUND: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {**SETTINGS, "prompt": "Once upon a time", "max_tokens": 4, "logprobs": 2, "n": 2}),
    ("/v1/completions", {"model": "mine", "prompt": [[5, 6], [7]], "max_tokens": 3, "echo": True}),
    ("/v1/completions", {"model": "mine", "prompt": "a b", "max_tokens": 0, "echo": True, "logprobs": 1}),
    (
        "/v1/chat/completions",
        {**SETTINGS, "messages": MESSAGES, "max_completion_tokens": 4, "logprobs": True, "top_logprobs": 2},
    ),
    (
        "/v1/chat/completions",
        {
            "model": "mine", "messages": MESSAGES[1:2], "max_tokens": 4, "stream": True,
            "stream_options": {"include_usage": True}, "tools": [{"type": "function", "function": TOOL}],
            "prediction": {"type": "content", "content": "Once upon a time"},
        },
    ),
    (
        "/v1/responses",
        {
            "model": "mine",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
                {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Hi"},
            ],
            "instructions": "Be brief.", "max_output_tokens": 4, "stream": True,
            "tools": [{"type": "function", **TOOL}], "text": {"format": {"type": "text"}},
        },
    ),
    (
        "/v1/completions",
        {
            "model": "mine", "prompt": "Once", "max_tokens": 6,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": FORM}},
        },
    ),
    ("/v1/completions", {"prompt": "O", "max_tokens": 4, "structured_outputs": {"regex": "[a-c]{2}(x|y)+"}}),
    ("/tokenize", {"prompt": "Once", "add_special_tokens": True}),
    ("/tokenize", {"messages": MESSAGES}),
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
LONGEST = 200_000
"""Bytes of a body that is sent in chunks."""
LARGEST = 64 << 20
"""Bytes by which the process may grow between the first tenth of the requests and the last."""


@dataclass
class Report:
    """What a run came to."""

    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def main(arguments: list[str] | None = None) -> int:
    """Send damaged requests and print what came of them; 1 if there were failures."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.http_requests", description=__doc__)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None, help="by default a fresh one, which is printed")
    parser.add_argument("--minutes", type=float, default=30.0, help="send nothing after so many")
    options = parser.parse_args(arguments)
    seed = secrets.randbits(31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    report = run(seed, options.mutations, options.minutes)
    for failure in report.failures[:20]:
        print(failure)
    counts = ", ".join(f"{status}: {n}" for status, n in sorted(report.statuses.items()))
    n, n_failures = sum(report.statuses.values()), len(report.failures)
    print(f"{n} requests ({counts}; 0 is a client that left), {n_failures} failures")
    return 1 if report.failures else 0


def run(seed: int, n: int, minutes: float = 1.0) -> Report:
    """Send n damaged requests."""
    target, draft = specdec.embedded_pair()
    report, until, early = Report(), time.monotonic() + 60 * minutes, 0
    with (
        Engine(target.with_chat_template(TEMPLATE), draft, n_slots=4, n_threads=1, max_waiting=64) as engine,
        Server(Service(engine, ["mine"], limits=LIMITS, draft_name="small"), port=0) as server,
    ):
        place = urlsplit(server.url).netloc
        wanted = _send(place, "/v1/completions", json.dumps(REFERENCE).encode(), {})[1]["choices"]
        for index in range(n):
            if time.monotonic() > until:
                break
            _one(place, seed, index, report)
            if index == n // 10:
                early = _memory()
        found = _send(place, "/v1/completions", json.dumps(REFERENCE).encode(), {})[1]["choices"]
        if found != wanted:
            report.failures.append(f"at the end the server wrote {found}; expected {wanted}")
        left = time.monotonic() + 10
        while (metrics := engine.metrics()).n_running + metrics.n_waiting and time.monotonic() < left:
            time.sleep(0.01)
        if metrics.n_running + metrics.n_waiting:
            report.failures.append(f"at the end {metrics.n_running + metrics.n_waiting} texts are left")
        if early and _memory() - early > LARGEST:
            report.failures.append(f"the process grew from {early} to {_memory()} bytes")
    return report


def _one(place: str, seed: int, index: int, report: Report) -> None:
    random = Random(f"{seed} {index}")
    path, sound = random.choice(SOUND)
    name = f"request {index} of seed {seed}"
    if random.random() < 0.08:
        _leave(place, path, json.dumps(sound).encode(), random)
        report.statuses[0] += 1
        return
    headers: dict[str, str] = {}
    damaged = damaged_request(random, sound, headers)
    try:
        if random.random() < 0.15:
            _send_ahead(place, path, damaged, random, report)
            return
        status, answer = _send(place, path, damaged, headers)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, ConnectionError) and len(damaged) > LIMITS.n_body_bytes:
            report.statuses[413] += 1  # the connection is closed before all of the body is sent
            return
        report.failures.append(f"{name}: {type(error).__name__}: {error}; sent {damaged[:300]!r} to {path}")
        return
    report.statuses[status] += 1
    fault = _fault(status, answer)
    if fault:
        report.failures.append(f"{name}: {fault}; sent {damaged[:300]!r} to {path}")


def _fault(status: int, answer: Any) -> str:
    """What is wrong with an answer."""
    if status == 200:
        return ""
    if status not in (400, 404, 408, 413, 415, 429):
        return f"status {status}: {str(answer)[:300]}"
    error = answer.get("error") if isinstance(answer, dict) else None
    if (
        not isinstance(error, dict)
        or not error.get("message")
        or set(error) != {"message", "type", "param", "code"}
    ):
        return f"the error is {str(answer)[:300]}"
    return ""


def damaged_request(random: Random, sound: dict[str, Any], headers: dict[str, str]) -> bytes:
    """The bytes of a body with one to three faults."""
    value = json.loads(json.dumps(sound))

    def in_value() -> None:
        holder, key = random.choice(_places(value))
        action = random.random()
        if action < 0.6:
            holder[key] = deepcopy(random.choice(ODD))
        elif action < 0.75:
            del holder[key]
        elif isinstance(holder, dict):
            holder[random.choice(["", "Model", key + "s", "lenience", "x" * 200])] = deepcopy(
                random.choice(ODD)
            )
        else:
            holder += [deepcopy(holder[key])] * random.choice([1, 3, 200])

    if random.random() < 0.7:
        for _ in range(random.randint(1, 3)):
            if _places(value):
                in_value()
        return json.dumps(value).encode()
    body = bytearray(json.dumps(value).encode())
    for _ in range(random.randint(1, 3)):
        _damage_bytes(random, body)
    if random.random() < 0.2:
        headers["Content-Type"] = random.choice(["text/plain", "", "application/json; x=y"])
    return bytes(body)


def _damage_bytes(random: Random, body: bytearray) -> None:
    begin = random.randrange(len(body) + 1)
    end = min(len(body), begin + random.choice([1, 1, 2, 10, 100]))
    kind = random.randrange(4)
    if kind == 0:
        del body[begin:end]
    elif kind == 1:
        body[begin:end] = random.randbytes(end - begin)
    elif kind == 2:
        body[begin:begin] = body[begin:end] * random.choice([1, 50])
    else:
        body[begin:begin] = random.choice([b"[" * 300, b'{"a":' * 300, b"NaN", b'"'])


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value, as (what holds it, its key)."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += [(value, key), *_places(inner)]
    return found


def _send(place: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(place, timeout=20)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        text = answer.read().decode("utf-8")
        if answer.headers["content-type"] == "application/json":
            return answer.status, json.loads(text)
        if '\n\ndata: {"error"' in text or not text.endswith("\n\n"):
            raise ValueError(f"a stream that ends with {text[-200:]!r}")
        return answer.status, text
    finally:
        connection.close()


def _send_ahead(place: str, path: str, body: bytes, random: Random, report: Report) -> None:
    """Send requests one after the other without waiting, in chunks, and read all answers.

    Raises
    ------
    ValueError
        The server answers otherwise than it may.
    """
    n, size, n_extension, n_trailers = (
        random.choice(sizes)
        for sizes in (
            (1, 2, 5, 17, 18, 60),
            (1, 3, 1000, 100_000),
            (0, 0, 5, 3000, 70_000),
            (0, 0, 3, 2000, 20_000),
        )
    )
    excess = int(random.random() < 0.2)  # bytes by which the size of a chunk is wrong
    extension = b";" + b"e" * n_extension if n_extension else b""
    body = body[: LONGEST // (size + len(extension) + 5) * size]
    pieces = (body[at : at + size] for at in range(0, len(body), size))
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(piece) + excess, extension, piece) for piece in pieces)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n"
    request += b"Host: elsewhere\r\n" * n_trailers + b"\r\n"
    received, host, port = bytearray(), *place.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        try:
            connection.sendall(request * (n - 1))
            connection.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            while piece := connection.recv(1 << 16):
                received += piece
        except ConnectionError:
            pass  # it is closed with a request unread
    statuses = [int(status) for status in STATUS.findall(received)]
    report.statuses.update(statuses or [0])
    if wrong := {*statuses} - {200, 400, 404, 408, 413, 415, 429, 431}:
        raise ValueError(f"answers with status {wrong}")
    if len(statuses) > n:
        raise ValueError(f"{len(statuses)} answers to {n} requests")


def _leave(place: str, path: str, body: bytes, random: Random) -> None:
    """Send a part of a request, or all of it, and close the connection; some say what HTTP does not know."""
    host, port = place.split(":")
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sent = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    kind = random.randrange(4)
    if kind == 0:
        sent = sent[: random.randrange(len(sent))]
    elif kind == 1:
        sent = random.randbytes(200)
    elif kind == 2:
        sent = (
            head.encode()
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + random.choice([b"zz\r\n", b"-1\r\n", b"5\r\nab"])
        )
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(sent)
        if random.random() < 0.5:
            connection.settimeout(0.005)
            try:
                connection.recv(random.choice([1, 100]))
            except OSError:
                pass


def _memory() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 if status.exists() else 0


if __name__ == "__main__":
    sys.exit(main())
