"""Program: soak, a server that answers requests of all kinds for as long as an hour of them takes."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from benchmarks.report import Report
from benchmarks.turns import Options, progress

_JSON = {"Content-Type": "application/json"}
_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
_REFERENCE = {"prompt": "It was a dark and stormy night", "max_tokens": 24, "temperature": 0}
_TOOL = {"name": "look", "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}}}
_KINDS = {
    "whole": 25, "stream": 25, "chat": 15, "prediction": 10, "form": 8, "tool": 2, "leaves": 10,
    "malformed": 5,
}  # fmt: skip
"""Kinds of requests and their shares, of 100."""
_MALFORMED = (
    b"", b"{", b"[1]", b'{"prompt": 3}', b'{"prompt": "a", "temprature": 1}', b'{"prompt": "a", "n": 1e9}',
    b"\xff\xfe" * 500, b'{"prompt": "a", "structured_outputs": {"regex": "(a"}}', b"[" * 5000,
)  # fmt: skip
_WAIT_S = 120.0


def soak_options(options: Options) -> None:
    options.add("--requests", type=int, default=4000)
    options.add("--clients", type=int, default=8, help="at once")
    options.add("--samples", type=int, default=10, help="looks at the server's memory, spread evenly")


def soak(args: argparse.Namespace, report: Report) -> None:
    """A server under thousands of requests of all kinds: its memory, threads and files, and its text.

    `specdec serve` with the embedded pair, in a process of its own, gets texts, streams, conversations,
    predictions, forms, calls, malformed bodies and clients that leave, from several clients at once. After
    each part of them the clients rest: nothing may then be running, a request of the beginning must get the
    text it had, and the server's resident memory is read. The prompts are drawn at random, so that its caches
    fill up; they are bounded by --cache-bytes, 32 MiB here.
    """
    table = report.table(
        {"requests": "d", "200": "d", "refused": "d", "left": "d", "MB resident": ".1f", "threads": "d",
         "open files": "d", "seconds": ".0f"}
    )  # fmt: skip
    with _served(args.threads) as (process, place):
        text = _text(place)
        seen, begun, statuses = Seen(), time.perf_counter(), Counter[int]()
        table.row(0, 0, 0, 0, *_held(process), 0.0)
        parts = _parts(args.requests, args.samples)
        for first, end in progress(parts, "soak"):
            _run(place, first, end, args.clients, seen)
            if seen.wrong:
                raise RuntimeError(f"request {seen.wrong[0]}")
            _rest(place)
            if _text(place) != text:
                raise RuntimeError(f"after {end} requests the server writes another text")
            statuses = seen.statuses
            refused = sum(n for status, n in statuses.items() if status >= 400)
            seconds = time.perf_counter() - begun
            table.row(end, statuses[200], refused, statuses[0], *_held(process), seconds)
        if process.poll() is not None:
            raise RuntimeError(f"the server has ended with {process.returncode}")
    report.say("")
    report.say(f"Statuses: {', '.join(f'{status}: {n}' for status, n in sorted(statuses.items()))}; 0: left.")


def _parts(n: int, n_parts: int) -> list[tuple[int, int]]:
    ends = [n * (i + 1) // n_parts for i in range(n_parts)]
    return [pair for pair in zip([0, *ends], ends, strict=False) if pair[0] < pair[1]]


@dataclass
class Seen:
    """What the clients saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@contextmanager
def _served(n_threads: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "template.jinja"
        template.write_text(_TEMPLATE, encoding="utf-8")
        words = ["--port", 0, "--name", "mine", "--chat-template", template, "--threads", n_threads]
        words += ["--slots", 8, "--max-waiting", 64, "--cache-bytes", 32 << 20]
        command = [sys.executable, "-m", "specdec", "serve", *map(str, words)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                line = process.stderr.readline()
                found = re.search(r"at (http://[\d.:]+)/v1$", line)
                if found is None:
                    raise RuntimeError(f"{line}{process.stderr.read()}")
                yield process, urlsplit(found[1]).netloc
            finally:
                process.kill()


def _held(process: subprocess.Popen[str]) -> tuple[float | None, int | None, int | None]:
    """(resident memory in MB, threads, open files) of a process, where the system says."""
    place = Path(f"/proc/{process.pid}")
    if not (place / "status").exists():
        return None, None, None
    lines = (place / "status").read_text().splitlines()
    said = {name: value for name, _, value in (line.partition(":") for line in lines)}
    n_files = len(os.listdir(place / "fd"))
    return int(said["VmRSS"].split()[0]) * 1024 / 1e6, int(said["Threads"]), n_files


def _ask(place: str, path: str, body: bytes | None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(place, timeout=_WAIT_S)
    try:
        connection.request("GET" if body is None else "POST", path, body, _JSON)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _text(place: str) -> str:
    status, answer = _ask(place, "/v1/completions", json.dumps(_REFERENCE).encode())
    if status != 200:
        raise RuntimeError(f"the server answers {status}: {answer[:300]!r}")
    text: str = json.loads(answer)["choices"][0]["text"]
    return text


def _rest(place: str) -> None:
    """Wait until nothing is running: texts whose clients have left end by themselves."""
    until = time.monotonic() + 10.0
    while True:
        text = _ask(place, "/metrics", None)[1].decode()
        running = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", text, re.MULTILINE)
        if not any(map(float, running)):
            return
        if time.monotonic() > until:
            raise RuntimeError("texts go on though all clients have left")
        time.sleep(0.02)


def _run(place: str, first: int, end: int, n_clients: int, seen: Seen) -> None:
    """Requests first … end - 1, of several clients."""
    lock, numbers = threading.Lock(), iter(range(first, end))

    def client() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None or seen.wrong:
                return
            try:
                status, fault = _request(place, number)
            except (OSError, http.client.HTTPException, ValueError) as error:
                status, fault = -1, f"{type(error).__name__}: {error}"
            with lock:
                seen.statuses[status] += 1
                if fault:
                    seen.wrong.append(f"{number}: {fault}")

    clients = [threading.Thread(target=client) for _ in range(n_clients)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()


def _request(place: str, number: int) -> tuple[int, str]:
    """(status, what is wrong with the answer); status 0 is a client that has left."""
    random = Random(number)
    kind = random.choices(list(_KINDS), list(_KINDS.values()))[0]
    if kind == "malformed":
        status, answer = _ask(place, "/v1/completions", random.choice(_MALFORMED))
        return status, "" if status in (400, 413) else f"a malformed body gets {status}: {answer[:200]!r}"
    path, body = _body(random, kind)
    data = json.dumps(body).encode()
    if kind == "leaves":
        _leave(place, path, data, random)
        return 0, ""
    status, answer = _ask(place, path, data)
    if status == 429:
        return status, ""
    if status != 200:
        return status, f"{kind}: {status}: {answer[:300]!r}"
    if body.get("stream"):
        return status, "" if answer.endswith(b"data: [DONE]\n\n") else f"a stream ends with {answer[-200:]!r}"
    choice = json.loads(answer)["choices"][0]
    if kind == "form" and choice["finish_reason"] == "stop" and not re.fullmatch("[ab]{3,9}", choice["text"]):
        return status, f"a text has not its form: {choice['text']!r}"
    return status, ""


def _words(random: Random, n: int) -> str:
    return " ".join("".join(random.choices("etaoinshrdlu", k=random.randint(2, 8))) for _ in range(n))


def _body(random: Random, kind: str) -> tuple[str, dict[str, Any]]:
    prompt = _words(random, random.randint(1, 60))
    body: dict[str, Any] = {"max_tokens": random.randint(1, 32), "temperature": random.choice([0, 0.7])}
    if kind in ("chat", "tool"):
        body["messages"] = [{"role": "user", "content": prompt}]
        body["stream"] = random.random() < 0.5
        if kind == "tool":
            body["tools"] = [{"type": "function", "function": _TOOL}]
            body["tool_choice"] = "required"
        return "/v1/chat/completions", body
    body["prompt"] = prompt
    if kind == "stream" or (kind == "leaves" and random.random() < 0.7):
        body["stream"] = True
    if kind == "leaves":
        body |= {"max_tokens": 200, "ignore_eos": True}
    if kind == "prediction":
        body["prediction"] = {"type": "content", "content": prompt + _words(random, 30)}
    if kind == "form":
        body["structured_outputs"] = {"regex": "[ab]{3,9}"}
    if kind == "whole" and random.random() < 0.5:
        body |= {"n": 2, "logprobs": 3, "stop": [".", "the"]}
    return "/v1/completions", body


def _leave(place: str, path: str, data: bytes, random: Random) -> None:
    """Send a request, or a part of it, and go."""
    host, port = place.split(":")
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sent = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
    with socket.create_connection((host, int(port)), timeout=_WAIT_S) as connection:
        connection.sendall(sent if random.random() < 0.7 else sent[: random.randrange(len(sent))])
        if random.random() < 0.5:
            connection.settimeout(0.05)
            try:
                connection.recv(random.choice([1, 500]))
            except OSError:
                pass
