"""The page at `/`: streams a reply with its rounds, by the server's own API (`page.html`)."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Final

from starlette.responses import Response

_FILE: Final = Path(__file__).with_name("page.html")


@cache
def page() -> Response:
    """Return the page, whose headers permit its own script and style, and requests to this server alone."""
    html = _FILE.read_text(encoding="utf-8")
    policy = {
        "default-src": "'none'", "connect-src": "'self'", "img-src": "data:",
        "script-src": _hash(html, "script"), "style-src": _hash(html, "style"),
        "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'",
    }  # fmt: skip
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Cache-Control": "no-cache", "Referrer-Policy": "same-origin", "X-Content-Type-Options": "nosniff",
    }  # fmt: skip
    return Response(html, headers=headers, media_type="text/html")


def _hash(html: str, tag: str) -> str:
    """Return the source expression that permits the content of the page's only element `tag`."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return f"'sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
