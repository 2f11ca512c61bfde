"""Helper process that renders chat templates; see `specdec.models.template_process`.

The process runs this file alone: it imports nothing of specdec, and Jinja from the search path it receives.
Templates are untrusted: they run in Jinja's sandbox on plain data, with the same filters and functions as in
``transformers``.

A request is a pickle of ``(action, seconds, *arguments)``. A reply is a status byte, the length of its text
in eight bytes, and the text in UTF-8.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import pickle
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

_MAX_BYTES: Final = 64 << 20
"""Maximum bytes of a rendered text."""
_MAX_MESSAGE: Final = 2000
"""Maximum characters of an error message."""
_MIN_VERSION: Final = (3, 1, 6)
"""First release of Jinja without a known sandbox escape."""


class _Reply(Exception):  # noqa: N818
    """Ends a request with a status byte, see `specdec.models.template_process`, and a text."""


def main() -> None:
    """Answer requests from standard input on standard output until the input ends."""
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    search_path, max_memory = pickle.load(requests)
    sys.path += search_path  # last, so that the standard library takes precedence
    _limit_memory(max_memory)
    with suppress(_Reply):  # raised again for each request
        _jinja()
    status = b""
    while status != b"M":
        try:
            action, seconds, *arguments = pickle.load(requests)
            # Ends the process, even within one operation.
            faulthandler.dump_traceback_later(seconds, exit=True)
            status, text = _answer(action, arguments)
        except EOFError:
            return
        except MemoryError:  # while reading a request, its rest would be taken for the next one
            status, text = b"M", b""
        faulthandler.cancel_dump_traceback_later()
        replies.write(status + len(text).to_bytes(8, "big") + text)
        replies.flush()


def _limit_memory(n_bytes: int) -> None:
    """Limit this process's address space, where the system can: not macOS, nor Windows."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = n_bytes if hard == resource.RLIM_INFINITY else min(n_bytes, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _answer(action: str, arguments: list[Any]) -> tuple[bytes, bytes]:
    try:
        if action == "render":
            status, text = b"T", _render(*arguments)
        else:  # the names of variables and fields in a template's code, one per line
            _compiled(*arguments)
            status, text = b"T", "\n".join(sorted(_names_in(*arguments)))
    except _Reply as reply:
        status, text = reply.args[0], reply.args[1][:_MAX_MESSAGE]
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > _MAX_BYTES:
        return b"L", f"{len(data)} bytes; expected at most {_MAX_BYTES}".encode()
    return status, data


def _render(text: str, values: dict[str, Any], needed: tuple[str, ...]) -> str:
    """Render a template, which must use every name in `needed`."""
    template = _compiled(text)
    for name in needed:
        if name not in _names_in(text):
            raise _Reply(b"U", name)
    try:
        rendered: str = template.render(values)
    except MemoryError:
        raise
    except _jinja().TemplateError as error:
        raise _Reply(b"R", str(error)) from None
    except Exception as error:
        raise _Reply(b"F", f"{type(error).__name__}: {error}") from None
    return rendered


@functools.lru_cache(maxsize=64)
def _compiled(text: str) -> Any:
    jinja2 = _jinja()
    try:
        return _environment().from_string(text)
    except (jinja2.TemplateError, RecursionError, ValueError, OverflowError, SyntaxError) as error:
        line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise _Reply(b"I", f"{line}{error}") from None


@functools.lru_cache(maxsize=64)
def _names_in(text: str) -> frozenset[str]:
    return frozenset(value for _, token_type, value in _environment().lex(text) if token_type == "name")


@functools.cache
def _jinja() -> Any:
    """Import Jinja in a version with a safe sandbox."""
    try:
        import jinja2.ext
        import jinja2.sandbox
    except ImportError:
        raise _Reply(b"N", "Jinja, which is not installed") from None
    if tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit()) < _MIN_VERSION:
        raise _Reply(b"N", f"Jinja 3.1.6 or newer, which fixes its sandbox; found {jinja2.__version__}")
    return jinja2


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON; Jinja's own filter would escape HTML."""
    how: Any = {"ensure_ascii": ensure_ascii, "indent": indent, "separators": separators}
    return json.dumps(value, sort_keys=sort_keys, **how)


@functools.cache
def _environment() -> Any:
    """Make a sandbox with the extensions, filters and functions of ``transformers``."""
    jinja2: Any = _jinja()

    class Generation(jinja2.ext.Extension):  # type: ignore[misc]
        """{% generation %}…{% endgeneration %}, which marks the assistant's replies, as its contents."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_contents"), [], [], body).set_lineno(line)

        def _contents(self, caller: Any) -> Any:
            return caller()

    class Namespace(jinja2.utils.Namespace):  # type: ignore[misc]
        """A template's namespace, without names that start with an underscore."""

        def __init__(*args: Any, **values: Any) -> None:
            self, args = args[0], args[1:]
            found = dict(*args, **values)
            for name in found:
                _check_name(name)
            jinja2.utils.Namespace.__init__(self, found)

        def __setitem__(self, name: Any, value: Any) -> None:
            _check_name(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

    def _check_name(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace has no attribute {name!r}")

    def raise_exception(message: Any) -> None:
        raise jinja2.TemplateError(str(message))

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, "jinja2.ext.loopcontrols"],
        optimized=False,  # do not expand constants such as [1] * 10**8 in the compiled template
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    environment.globals["dict"] = lambda *args, **values: dict(*args, **values)
    environment.globals["namespace"] = Namespace
    del environment.globals["lipsum"]  # random text
    return environment


if __name__ == "__main__":
    main()
    os._exit(0)
