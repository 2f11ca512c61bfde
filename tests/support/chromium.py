"""Headless Chromium, driven by its DevTools protocol over two pipes; needs no package."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_TIMEOUT_S = 60.0


class Browser:
    """A page of a browser, with the URLs it has requested and the errors it has reported."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._text, self._id, self._session = b"", 0, ""
        self.requested: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._id += 1
        message: dict[str, Any] = {"id": self._id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _TIMEOUT_S
        while (found := self._next(until)).get("id") != self._id:
            self._note(found)
        assert "error" not in found, found
        result: dict[str, Any] = found["result"]
        return result

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._text:
            ready, _, _ = select.select([self._receive], [], [], max(until - time.monotonic(), 0.0))
            assert ready, "the browser does not answer"
            part = os.read(self._receive, 1 << 20)
            assert part, "the browser has ended"
            self._text += part
        message, _, self._text = self._text.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page; wait for a promise; return its value as JSON."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + _TIMEOUT_S
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < until, f"not within {_TIMEOUT_S:g} seconds: {condition}"
            time.sleep(0.02)

    def open(self, url: str) -> None:
        """Open a page and wait until it has loaded."""
        self.call("Page.navigate", url=url)
        self.wait_for(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Run a browser whose profile is in a folder."""
    assert CHROMIUM is not None
    to_read, to_send = os.pipe()
    to_receive, to_write = os.pipe()
    # The browser reads descriptor 3 and writes 4: neither may be an end of its pipes before.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_read, to_write)]
    os.close(to_read)
    os.close(to_write)
    null = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
    actions = [null, *((os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(ends, start=3))]
    options = (
        "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--disable-background-networking", "--no-proxy-server", f"--user-data-dir={folder}",
    )  # fmt: skip
    process = os.posix_spawn(CHROMIUM, [CHROMIUM, *options], os.environ, file_actions=actions)
    for end in ends:
        os.close(end)
    try:
        yield Browser(to_send, to_receive)
    finally:
        os.close(to_send)
        os.close(to_receive)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
