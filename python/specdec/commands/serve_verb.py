"""`specdec serve`: an OpenAI-compatible server."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import click

from specdec.commands.decoding_options import setting_option, threads_option
from specdec.commands.given_models import (
    EMBEDDED,
    drafts_options,
    open_draft,
    open_target,
    template_option,
    with_given_template,
)
from specdec.commands.verb import OPTION_OF, number, several, verb
from specdec.decoding.engine import Engine
from specdec.decoding.prompt_cache import PromptCache
from specdec.drafts.draft import Draft
from specdec.errors import InputError, MissingPackageError, SpecdecError, printable
from specdec.models.model import Model
from specdec.serve.reply_readers import TOOL_FORMATS
from specdec.serve.service import NO_DRAFT, ServerLimits, Service
from specdec.text_files import read_text_file

_KEY: Final = "SPECDEC_API_KEY"
_LIMITS: Final = {
    "n_waiting": "Most sequences that wait for a slot; more get status 429.",
    "n_body_bytes": "Largest request body.",
    "n_new_tokens": "Most new tokens of a sequence (default: what fits its context).",
    "n_texts": "Most sequences of a request.",
    "n_constraint_bytes": "Largest schema, regular expression or grammar.",
    "n_connections": "Most open connections; a new one then replaces the longest idle one.",
    "idle_s": "Longest time a connection may be idle.",
    "event_s": "Shortest time between two events of a stream.",
}
"""Fields of `ServerLimits` that have an option, with their help."""


def _limit(name: str, text: str) -> Any:
    default = getattr(ServerLimits, name)
    is_time = isinstance(default, float)
    return number(
        OPTION_OF[name], name, type=float if is_time else int, metavar="S" if is_time else "N",
        default=default, show_default=default is not None, help=text,
    )  # fmt: skip


@verb(
    "serve",
    "specdec serve                                                the bundled pair",
    "specdec serve --target big --draft small --gamma auto        your own pair",
    "specdec serve --target model.gguf --draft prompt-lookup --port 9000   a GGUF file, a draft by name",
    "SPECDEC_API_KEY=... specdec serve --host 0.0.0.0             reachable from other machines",
)
@drafts_options
@click.option("--host", default="127.0.0.1", metavar="NAME", help="Address to listen on.", show_default=True)
@number("--port", default=8000, help="Port to listen on; 0 picks a free one.", show_default=True)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Model name for clients; repeatable (default: from the target's path).",
)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME=FOLDER",
    help="LoRA adapter (PEFT) that clients select as model NAME; repeatable.",
)
@setting_option("gamma", "the draft's own", "Most draft tokens per round; 'auto' adapts to measured speed")
@number("--slots", default=16, help="Sequences decoded at once.", show_default=True)
@number("--text-tokens", help="Most tokens of a sequence with its prompt (default: the context, up to 4096).")
@number("--cache-bytes", default=2**30, help="Memory for the prefix cache; 0 disables it.", show_default=True)
@click.option(
    "--prompt-cache",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Folder that keeps the prefix cache on disk, for later and other servers.",
)
@number("--prompt-cache-bytes", default=2**33, help="Size of that folder.", show_default=True)
@click.option(
    "--recommended",
    is_flag=True,
    help="Use the model authors' sampling settings where a request sets none.",
)
@template_option
@click.option(
    "--tool-format",
    type=click.Choice(list(TOOL_FORMATS)),
    metavar="FORMAT",
    help=f"Format of tool calls: {', '.join(TOOL_FORMATS)} (default: from the chat template).",
)
@click.option("--plain-without-draft", is_flag=True, help="Serve without a draft if it cannot be loaded.")
@click.option(
    "--api-key-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help=f"File with the API key that clients must send (default: environment variable {_KEY}).",
)
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Origin of web pages that may use the server, such as https://example.com; '*' is any. Repeatable.",
)
@several(*(_limit(name, text) for name, text in _LIMITS.items()))
@click.option(
    "--drain-seconds",
    type=float,
    metavar="S",
    help="Time for running requests to finish on shutdown (default: no limit).",
)
@click.option("--log-requests", is_flag=True, help="Log one line per request, without its text.")
@threads_option
def serve_verb(names: tuple[str, ...], host: str, port: int, **given: Any) -> None:
    """Serve a model over HTTP with the OpenAI and Anthropic APIs.

    Endpoints: /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /v1/models, /tokenize,
    /detokenize, /tokenizer_info, /health, /metrics, and a page for browsers at /. docs/SERVER.md lists the
    supported fields. Ctrl-C or SIGTERM stops the server after running requests finish; a second one stops it
    immediately.
    """
    server_of = _server()
    key = _api_key(given["api_key_file"])
    target = with_given_template(open_target(given), given["chat_template"])
    adapters = _adapters(target, given["adapters"], given["n_threads"])
    drafts = _drafts(target, given)
    cache = _cache(given["cache_bytes"], given["prompt_cache"], given["prompt_cache_bytes"])
    engine = Engine(
        target,
        drafts or None,
        gamma=given["gamma"],
        n_slots=given["slots"],
        n_text=given["text_tokens"],
        max_waiting=given["n_waiting"],
        prompt_cache=cache,
        n_threads=given["n_threads"],
    )
    with engine:
        service = Service(
            engine,
            list(names) or [_name(given["target"], target)],
            adapters=adapters,
            limits=ServerLimits(**{name: given[name] for name in _LIMITS}),
            sampling=target.default_sampling if given["recommended"] else None,
            draft_name=next(iter(drafts), None),
            tool_format=given["tool_format"],
        )
        log = _print if given["log_requests"] else None
        server = server_of(
            service, host=host, port=port, api_key=key, cors_origins=given["cors_origins"],
            drain_s=given["drain_seconds"], log=log,
        )  # fmt: skip
        named = " or ".join(service.draft_names)
        drafting = f"with {named}" if named else "without a draft"
        server.run(lambda url: _print(f"{service.name!r} {drafting} at {url}/v1"))


def _print(line: str) -> None:
    print(f"specdec serve: {printable(line)}", file=sys.stderr, flush=True)


def _server() -> Any:
    """Import the server class, whose packages are optional."""
    try:
        from specdec.serve.server import Server
    except ImportError as error:
        if isinstance(error, SpecdecError) or (error.name or "").startswith("specdec"):
            raise
        raise MissingPackageError(
            f"specdec serve needs the package {error.name}, which is not installed: "
            "pip install 'specdec-cpu[serve]'"
        ) from error
    return Server


def _cache(n_bytes: int, folder: str | None, disk_bytes: int) -> PromptCache | None:
    if n_bytes == 0 and folder is not None:
        raise InputError("--prompt-cache needs memory; expected --cache-bytes above 0")
    return PromptCache(n_bytes, folder, max_disk_bytes=disk_bytes) if n_bytes else None


def _adapters(target: Model, given: tuple[str, ...], n_threads: int | None) -> dict[str, Model]:
    """Return the target with each adapter, by model name."""
    found: dict[str, Model] = {}
    for one in given:
        name, _, folder = one.partition("=")
        if not name or not folder or name in found:
            raise InputError(f"--adapter is {one!r}; expected NAME=FOLDER, each name once")
        found[name] = target.with_adapter(folder, n_threads=n_threads)
    return found


def _drafts(target: Model, given: dict[str, Any]) -> dict[str, Model | Draft]:
    """Return the drafts by name; without --draft and --target, the bundled draft."""
    texts: tuple[str, ...] = given["drafts"]
    if not texts and given["target"] is None:
        texts = (EMBEDDED,)
    asked = [_asked(text) for text in texts]
    for i, (name, text) in enumerate(asked):
        if len(asked) > 1 and name == texts[i]:
            raise InputError(f"--draft {text}: has no name; expected NAME={text} with several drafts")
        if name == NO_DRAFT:
            raise InputError(f"--draft {name}={text}: this name means no draft; expected another name")
        if any(name == other for other, _ in asked[:i]):
            raise InputError(f"--draft {name}={text}: the name is already used; expected unique names")
    found: dict[str, Model | Draft] = {}
    for name, text in asked:
        try:
            found[name] = open_draft(text, target, given["draft_dtype"], given)
        except (SpecdecError, OSError) as error:
            if not given["plain_without_draft"]:
                raise
            one = f"draft {name} left out" if len(asked) > 1 else "serving without a draft"
            _print(f"warning: {one}: {error}")
    return found


_NAMED: Final = re.compile(r"([A-Za-z0-9_.-]+)=(.+)", re.DOTALL)


def _asked(text: str) -> tuple[str, str]:
    """Split NAME=DRAFT into name and draft; without NAME both are the text."""
    found = None if Path(text).exists() else _NAMED.fullmatch(text)
    return (text, text) if found is None else (found[1], found[2])


def _name(given: str | None, target: Model) -> str:
    """Return the default model name: a hub name unchanged, or the last part of a path."""
    if given is None or given == EMBEDDED:
        return EMBEDDED
    return Path(given).absolute().name if Path(given).exists() else given


def _api_key(path: str | None) -> str | None:
    key = os.environ.get(_KEY) if path is None else read_text_file(Path(path), "a key").strip()
    if key is not None and not key.strip():
        raise InputError(f"the API key in {_KEY if path is None else path} is empty; expected a key")
    return key
