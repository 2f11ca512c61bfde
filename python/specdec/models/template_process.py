"""Helper processes that render chat templates within limits of time and memory.

A template comes from a checkpoint and may loop forever, so it runs in a reusable helper process
(`specdec.models.template_worker`). It ends after `TIME_LIMIT_S` seconds per request, even if this process has
ended. It limits its address space to `MEMORY_LIMIT` bytes (not on macOS or Windows). It exits when its
standard input closes. It receives pickles and replies in bytes that are only read as text.
"""

from __future__ import annotations

import atexit
import os
import pickle
import queue
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from specdec import system
from specdec.errors import InputError, MissingPackageError, SpecdecError, TokenizerError

TIME_LIMIT_S = 10.0
"""Seconds to compile and render a template."""
MEMORY_LIMIT = 1 << 30
"""Bytes of address space of a helper."""

_WORKER: Final = Path(__file__).with_name("template_worker.py")
_MAX_IDLE: Final = 2
"""Idle helpers that are kept."""
_PATIENCE_S: Final = 0.1
"""Seconds that a request waits for an idle helper before it starts another."""


class _Helper:
    """A process that renders templates."""

    def __init__(self) -> None:
        # A separate session keeps Ctrl-C in a terminal to this process. A library in LD_PRELOAD may need more
        # address space than a helper has.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        try:
            self._process = subprocess.Popen(
                [sys.executable or "", "-I", "-S", str(_WORKER)],  # None in some embedded interpreters
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            what = "the process that renders chat templates cannot be started"
            raise SpecdecError(f"{what}: {error}") from error
        _helpers.add(self)
        # "" is the current folder, whose files are not trusted.
        self._send(([entry for entry in sys.path if entry and isinstance(entry, str)], MEMORY_LIMIT))

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: tuple[Any, ...]) -> tuple[bytes, str]:
        """Return status and text of the reply; status b"E" with a reason if the process has ended."""
        begun = time.monotonic()
        self._send(request)
        head = self._receive(9)
        size = int.from_bytes(head[1:], "big")
        text = self._receive(size) if len(head) == 9 else b""
        if len(head) == 9 and len(text) == size:
            return head[:1], text.decode("utf-8", "surrogatepass")
        if time.monotonic() - begun >= request[1]:
            return b"E", f"takes more than {request[1]:g} seconds"
        return b"E", f"ends the process that renders it, with status {self._process.wait()}"

    def _send(self, value: Any) -> None:
        pipe, data = self._process.stdin, memoryview(pickle.dumps(value))
        assert pipe is not None
        with suppress(OSError):  # a broken pipe: the reply, or its absence, shows the reason
            while data:
                data = data[pipe.write(data) :]

    def _receive(self, n_bytes: int) -> bytes:
        """Read `n_bytes`, or fewer if the process has ended. Exceptions of signal handlers propagate."""
        pipe, parts = self._process.stdout, []
        assert pipe is not None
        while n_bytes and (part := pipe.read(min(n_bytes, 1 << 20))):
            parts.append(part)
            n_bytes -= len(part)
        return b"".join(parts)

    def close(self, *, kill: bool = True) -> None:
        """End the helper, or in a fork leave it to the process that started it."""
        if kill:
            self._process.kill()
        else:
            self._process.returncode = 0  # not our child: do not wait for it
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        _helpers.discard(self)
        self._process.wait()


_helpers: set[_Helper] = set()
_idle: queue.SimpleQueue[_Helper] = queue.SimpleQueue()


def close_helpers() -> None:
    """End all helpers; a later request starts a new one."""
    for helper in list(_helpers):
        helper.close()


def _forget_helpers() -> None:
    global _idle
    _idle = queue.SimpleQueue()
    for helper in list(_helpers):
        helper.close(kill=False)


atexit.register(close_helpers)
system.after_fork(_forget_helpers)


def _ask(source: str, action: str, *arguments: Any) -> str:
    """Send a request about a template from `source` to a helper; return the reply or raise its error."""
    try:
        helper = _idle.get(timeout=_PATIENCE_S if _helpers else 0.0)
        while not helper.is_alive:
            helper.close()
            helper = _idle.get_nowait()
    except queue.Empty:
        helper = _Helper()
    try:
        status, text = helper.ask((action, TIME_LIMIT_S, *arguments))
    except BaseException:
        helper.close()
        raise
    if status in (b"E", b"M") or _idle.qsize() >= _MAX_IDLE:
        helper.close()
    else:
        _idle.put(helper)
    if status == b"T":
        return text
    template = f"{source}: the chat template"
    if status == b"N":
        raise MissingPackageError(f"{template} needs {text}: pip install 'specdec-cpu[chat]'")
    if status == b"I":
        raise TokenizerError(f"{template} is not valid Jinja: {text}")
    if status == b"U":
        expected = f"no {text}, or another chat template"
        argument = text if text in ("tools", "documents") else "chat_template_kwargs"
        found = f"{text} is given, but the chat template of {source} ignores it; expected {expected}"
        raise InputError.about(argument, found)
    messages = {
        b"R": f"refuses these messages: {text}",
        b"F": f"cannot render these messages: {text}",
        b"L": f"renders {text}",
        b"M": f"needs more than {MEMORY_LIMIT >> 20} MiB of memory",
        b"E": text,
    }
    raise InputError(f"{template} {messages[status]}")


def render_template(text: str, values: dict[str, Any], needed: tuple[str, ...], source: str) -> str:
    """Render a chat template with plain data; it must use the `needed` variables."""
    return _ask(source, "render", text, values, needed)


def names_in_template(text: str, source: str) -> frozenset[str]:
    """Return all names of variables and fields in a template's code."""
    return frozenset(_ask(source, "names", text).split("\n"))
