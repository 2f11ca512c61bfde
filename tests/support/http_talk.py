"""HTTP requests to a server over a socket, with the standard library only."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

JSON = {"Content-Type": "application/json"}


def ask(
    url: str, path: str, body: Any = None, *, method: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:  # fmt: skip
    """Send a request, bytes or JSON; return (status, body parsed as JSON, events or text by its type)."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        method = method or ("GET" if data is None else "POST")
        connection.request(method, path, data, dict(JSON if headers is None else headers))
        answer = connection.getresponse()
        text = answer.read().decode()
        kind = answer.headers.get("content-type", "")
        if kind == "application/json":
            return answer.status, json.loads(text)
        return answer.status, events_of(text) if kind.startswith("text/event-stream") else text
    finally:
        connection.close()


def send(connection: socket.socket, path: str, body: Any) -> None:
    """Send a request on a connection without waiting."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)


def connected(url: str) -> socket.socket:
    """Open a connection to a server."""
    host, port = urlsplit(url).netloc.split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def events_of(text: str) -> list[Any]:
    """Parse the events of a stream: JSON values, or text."""
    found = []
    for block in text.split("\n\n"):
        lines = [line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: ")]
        if lines:
            assert len(lines) == 1
            found.append(lines[0] if lines[0] == "[DONE]" else json.loads(lines[0]))
    return found
