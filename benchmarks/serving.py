"""Servers under load."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import specdec
from benchmarks.interleaved import DTYPES, Options, ratios
from benchmarks.peers.engine import GGUF_TYPES, Job
from benchmarks.report import Report, Spread
from benchmarks.shapes import SHAPES, successors

PROMPT = 64
"""Tokens per prompt."""
_SPECDEC = "specdec"
_PEER = "llama-server"
_OTHER = "other build"


# ── Servers
# ────────────────────────────────────────────────────────────────────────────────────────────────


class Served(ABC):
    """A server process with one slot per client."""

    url: str
    more: dict[str, Any] = {}  # noqa: RUF012  # additional request fields
    model = "any"

    @abstractmethod
    def close(self) -> None:
        """End the process."""


def _model_words(prefix: str, option: str, job: Job) -> list[Any]:
    """Return the options of a model: a GGUF file, or a folder and a number format."""
    if job.gguf is not None:
        return [option, job.gguf]
    return [option, job.checkpoint, f"--{prefix}dtype", job.format]


class ServedSpecdec(Served):
    """`specdec serve`."""

    model = "target"

    def __init__(
        self,
        target: Job,
        draft: Job | None,
        gamma: int | str,
        n_clients: int,
        n_text: int,
        python: str = sys.executable,
    ) -> None:
        words: list[Any] = ["--name", self.model, "--port", 0, *_model_words("", "--target", target)]
        if draft is not None:
            words += ["--gamma", gamma, *_model_words("draft-", "--draft", draft)]
        words += ["--slots", n_clients, "--text-tokens", n_text, "--cache-bytes", 0]
        words += ["--max-waiting", 4 * n_clients, "--threads", target.n_threads]
        command = [python, "-m", "specdec", "serve", *map(str, words)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        found = re.search(r"at (http://[\d.:]+)/v1$", line)
        if found is None:
            raise RuntimeError(f"{line}{self._process.stderr.read()}")
        self.url = found[1]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class ServedLlama(Served):
    """llama.cpp's server, from the sources of llama-cpp-python, or LLAMA_SERVER."""

    more = {"samplers": ["top_k"], "top_k": 1, "cache_prompt": False}  # noqa: RUF012

    def __init__(self, target: Job, draft: Job | None, gamma: int, n_clients: int) -> None:
        from benchmarks.peers.with_llama_cpp import LlamaServer

        LlamaServer.prepare(target, draft)
        self._server: Any = LlamaServer(target, draft, gamma, n_at_once=n_clients)
        self.url = self._server.url

    def close(self) -> None:
        """End the process."""
        self._server.process.kill()
        self._server.process.wait()


# ── Clients
# ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Load:
    """Measurements of the clients.

    Attributes
    ----------
    seconds : float
        Time from the first request to the last answer.
    first_s : list of float
        Seconds until the first event of each request.
    texts : list of str
    n_tokens : int
        New tokens, by the usage in the answers.
    """

    seconds: float = 0.0
    first_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    n_tokens: int = 0


async def _request(address: tuple[str, int], body: bytes, load: Load, index: int) -> None:
    """Send one request on a new connection; parse the answer after it is complete."""
    reader, writer = await asyncio.open_connection(*address)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    begun = time.perf_counter()
    writer.write(head.encode() + body)
    received = bytearray()
    while piece := await reader.read(1 << 16):
        if b"data: " in piece and load.first_s[index] < 0.0:
            load.first_s[index] = time.perf_counter() - begun
        received += piece
    writer.close()
    events = [json.loads(found) for found in re.findall(rb"data: (\{.*?\})\r?\n", received)]
    if not received.startswith(b"HTTP/1.1 200") or not events:
        raise RuntimeError(f"the answer is {bytes(received[:500])!r}")
    load.texts[index] = "".join(choice["text"] for one in events for choice in one["choices"])
    load.n_tokens += next(one["usage"]["completion_tokens"] for one in reversed(events) if one.get("usage"))


def under_load(server: Served, prompts: Sequence[Sequence[int]], n_clients: int, n_new: int) -> Load:
    """Send all prompts to a server from `n_clients` clients, one request at a time each."""
    host, port = urlsplit(server.url).netloc.split(":")
    load = Load(0.0, [-1.0] * len(prompts), [""] * len(prompts))
    waiting = list(range(len(prompts)))

    async def client() -> None:
        while waiting:
            index = waiting.pop(0)
            body = {
                "model": server.model, "prompt": list(prompts[index]), "max_tokens": n_new, "temperature": 0,
                "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, **server.more,
            }  # fmt: skip
            await _request((host, int(port)), json.dumps(body).encode(), load, index)

    async def clients() -> None:
        await asyncio.gather(*(client() for _ in range(n_clients)))

    begun = time.perf_counter()
    asyncio.run(clients())
    load.seconds = time.perf_counter() - begun
    return load


# ── Program: serving
# ────────────────────────────────────────────────────────────────────────────────────────────────


def serving_options(options: Options) -> None:
    options.work()
    options.against()
    options.many("--engines", str, [_SPECDEC, _PEER], choices=(_SPECDEC, _PEER), metavar="NAME")
    options.many("--pairs", str, ["paper97+paper6"], metavar="TARGET+DRAFT")
    options.many("--formats", str, ["int8"], choices=(*DTYPES, *GGUF_TYPES))
    options.many("--clients", int, [1, 4, 16, 64], metavar="N")
    options.many("--gamma", int, [0, 3], help="0: plain decoding")
    options.add("--alpha", type=float, default=0.8, help="acceptance rate of the draft")
    options.add("--tokens", type=int, default=64, help="new tokens per request")
    options.add("--requests", type=int, default=2, help="requests per client; at least four in total")
    options.repeats(5)


def serving(args: argparse.Namespace, report: Report) -> None:
    """Servers under load: total tokens per second, and the time to the first token.

    Clients stream completions of distinct random prompts of 64 tokens over a socket, one at a time. Runs of
    the servers are interleaved; each has one slot per client. Their texts must equal the target's. The
    weights are random, with a known acceptance rate of the draft. Rows with a draft also include specdec with
    gamma auto. ``--against`` adds another build's server, which the last column compares with if llama.cpp's
    is left out.
    """
    columns = {"pair": "", "format": "", "clients": "d", "gamma": "d", "server": "", "tokens/s": ".1f"}
    table = report.table({**columns, "first token, ms": ".1f", "over the other": ".2f"})
    for pair in args.pairs:
        names = pair.split("+")
        for number in args.formats:
            target = Job(names[0], number, args.work, args.threads)
            draft = Job(names[1], number, args.work, args.threads, args.alpha)
            for n_clients in args.clients:
                for gamma in args.gamma:
                    _cell(args, table, pair, target, draft, n_clients, gamma)


def _cell(
    args: argparse.Namespace, table: Any, pair: str, target: Job, draft: Job, n_clients: int, gamma: int
) -> None:
    drafting = draft if gamma else None
    servers: dict[str, Served] = {}
    reasons: dict[str, str] = {}
    try:
        for name in args.engines:
            try:
                if name == _SPECDEC:
                    n_text = PROMPT + args.tokens + 8
                    servers[name] = ServedSpecdec(target, drafting, gamma, n_clients, n_text)
                    if args.against:
                        servers[_OTHER] = ServedSpecdec(
                            target, drafting, gamma, n_clients, n_text, args.against
                        )
                    if gamma:
                        auto = ServedSpecdec(target, drafting, "auto", n_clients, n_text)
                        servers[f"{name}, gamma auto"] = auto
                else:
                    servers[name] = ServedLlama(target, drafting, gamma, n_clients)
            except ImportError as error:
                reasons[name] = f"not installed ({error.name})"
        rates: dict[str, list[float]] = {name: [] for name in servers}
        first: dict[str, list[float]] = {name: [] for name in servers}
        for repeat in range(-1, args.repeats):
            for name, server in servers.items():
                load = _checked_load(args, target, server, n_clients, repeat)
                if repeat >= 0:
                    rates[name].append(load.n_tokens / load.seconds)
                    first[name].append(1e3 * statistics.median(load.first_s))
    finally:
        for server in servers.values():
            server.close()
    for name in servers:
        base = _PEER if _PEER in rates else _OTHER
        other = rates.get(base)
        over = None if other is None or name == base else ratios(rates[name], other)
        row = (pair, target.format, n_clients, gamma, name, Spread.of(rates[name]), Spread.of(first[name]))
        table.row(*row, over)
    for name, reason in reasons.items():
        table.row(pair, target.format, n_clients, gamma, name, reason, None, None)


def _checked_load(args: argparse.Namespace, target: Job, server: Served, n_clients: int, repeat: int) -> Load:
    n_vocab = SHAPES[target.shape]["n_vocab"]
    rng = np.random.default_rng((repeat + 1, n_clients))
    n = max(4, args.requests * n_clients)
    # skip the first 256 tokens, which are bytes and may not be valid UTF-8
    prompts = rng.integers(256, n_vocab - 1, (n, PROMPT)).tolist()
    load = under_load(server, prompts, n_clients, args.tokens)
    if load.n_tokens != n * args.tokens:
        raise RuntimeError(f"{server.url} counts {load.n_tokens} tokens; expected {n * args.tokens}")
    after = successors(n_vocab)
    tokenizer = specdec.tokenizer.load_tokenizer(target.checkpoint)
    for prompt, text in zip(prompts, load.texts, strict=True):
        token = prompt[-1]
        wanted = tokenizer.decode([token := int(after[token]) for _ in range(args.tokens)])
        if "\ufffd" not in wanted and text != wanted:
            raise RuntimeError(f"{server.url} wrote {text[:60]!r}; expected {wanted[:60]!r}")
    return load
