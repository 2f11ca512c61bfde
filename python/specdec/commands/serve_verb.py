"""`specdec serve`: a server for programs that speak the OpenAI API."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from specdec.commands.decoding_options import threads_option
from specdec.commands.given_models import EMBEDDED, open_draft, open_target
from specdec.commands.model_options import model_options
from specdec.commands.verb import gamma_value, verb
from specdec.decoding.engine import Engine
from specdec.decoding.prompt_cache import PromptCache
from specdec.drafts.draft import Draft
from specdec.errors import InputError, MissingPackageError, SpecdecError, printable
from specdec.models.model import Model
from specdec.serve.tool_calls import CALL_FORMATS

if TYPE_CHECKING:
    from specdec.serve.service import Service

__all__ = ["command"]

_KEY: Final = "SPECDEC_API_KEY"


@verb(
    "serve",
    "specdec serve                                                the pair in the package",
    "specdec serve --target big --draft small --gamma auto        two models of yours",
    "specdec serve --target model.gguf --draft copy --port 9000   a GGUF file; a draft by name",
    "SPECDEC_API_KEY=... specdec serve --host 0.0.0.0             for other machines, with a key",
)
@model_options
@click.option("--host", default="127.0.0.1", metavar="NAME", help="Where to listen.", show_default=True)
@click.option("--port", type=int, default=8000, metavar="N", help="0: any free one.", show_default=True)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="What clients call the model; may be given more than once (default: of the target's path).",
)
@click.option(
    "--gamma",
    type=gamma_value,
    metavar="N",
    help="Drafted tokens a round at most, or 'auto': as many as pay (default: as the draft asks).",
)
@click.option("--slots", type=int, default=16, metavar="N", help="Texts decoded at once.", show_default=True)
@click.option(
    "--text-tokens",
    type=int,
    metavar="N",
    help="Tokens of a text, prompt and all (default: the model's context, 4096 at most).",
)
@click.option(
    "--cache-bytes",
    type=int,
    default=2**30,
    metavar="N",
    help="Memory for what was read, 0: none.",
    show_default=True,
)
@click.option(
    "--recommended",
    is_flag=True,
    help="Sample as the model's authors recommend where a request does not say.",
)
@click.option(
    "--chat-template",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Jinja file, for a model without a template, or in place of its own.",
)
@click.option(
    "--tool-format",
    type=click.Choice(list(CALL_FORMATS)),
    metavar="FORMAT",
    help=f"How the model writes calls: {', '.join(CALL_FORMATS)} (default: as its template says).",
)
@click.option("--plain-without-draft", is_flag=True, help="Serve plainly if the draft cannot be loaded.")
@click.option(
    "--api-key-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help=f"Clients must send the key in it (default: that in the environment variable {_KEY}).",
)
@click.option(
    "--max-waiting",
    type=int,
    default=256,
    metavar="N",
    help="Texts that wait, then status 429.",
    show_default=True,
)
@click.option(
    "--max-body-bytes", type=int, default=8 << 20, metavar="N", help="Of a request.", show_default=True
)
@click.option("--max-tokens", type=int, metavar="N", help="New tokens of a text (default: what its room is).")
@click.option("--max-n", type=int, default=128, metavar="N", help="Texts of a request.", show_default=True)
@click.option(
    "--max-form-bytes",
    type=int,
    default=64 << 10,
    metavar="N",
    help="Of a schema or a regular expression.",
    show_default=True,
)
@click.option(
    "--stream-interval",
    type=float,
    default=0.01,
    metavar="S",
    help="Seconds between two events of a stream at least.",
    show_default=True,
)
@click.option(
    "--drain-seconds",
    type=float,
    metavar="S",
    help="Time for texts to end when the server is stopped (default: as much as they need).",
)
@click.option("--log-requests", is_flag=True, help="A line for each request; nothing of its text.")
@threads_option
def command(names: tuple[str, ...], host: str, port: int, **given: Any) -> None:
    """Serve a model over HTTP to programs that speak the OpenAI API.

    /v1/chat/completions, /v1/completions, /v1/responses, /v1/models, /tokenize, /detokenize, /tokenizer_info,
    /health and /metrics. docs/SERVER.md says which fields are taken. Ctrl-C or SIGTERM stops the server when
    the texts that are being written have ended; once more, at once.
    """
    server_of = _server()
    key = _api_key(given["api_key_file"])
    target = open_target(given)
    if given["chat_template"] is not None:
        target = target.with_chat_template(_read(given["chat_template"]))
    draft = _draft(target, given)
    cache = PromptCache(given["cache_bytes"]) if given["cache_bytes"] else None
    engine = Engine(
        target,
        draft,
        gamma=given["gamma"],
        n_slots=given["slots"],
        n_text=given["text_tokens"],
        max_waiting=given["max_waiting"],
        prompt_cache=cache,
        n_threads=given["threads"],
    )
    with engine:
        service = _service(engine, list(names) or [_name(given["target"], target)], draft, given)
        server = server_of(
            service,
            host=host,
            port=port,
            api_key=key,
            drain_s=given["drain_seconds"],
            log=_print if given["log_requests"] else None,
        )
        drafting = f"with {service.draft_name}" if service.draft_name else "plainly, without a draft"
        server.run(lambda url: _print(f"{service.name!r} {drafting} at {url}/v1"))


def _print(line: str) -> None:
    print(f"specdec serve: {printable(line)}", file=sys.stderr, flush=True)


def _server() -> Any:
    """The class of servers; its packages are an extra."""
    try:
        from specdec.serve.http_server import Server
    except ImportError as error:
        if isinstance(error, SpecdecError) or (error.name or "").startswith("specdec"):
            raise
        raise MissingPackageError(
            f"specdec serve needs the package {error.name}, which is not installed: "
            "pip install starlette uvicorn jinja2 prometheus_client"
        ) from error
    return Server


def _service(engine: Engine, names: list[str], draft: Model | Draft | None, given: dict[str, Any]) -> Service:
    from specdec.serve.server_limits import ServerLimits
    from specdec.serve.service import Service

    limits = ServerLimits(
        n_waiting=given["max_waiting"],
        n_body_bytes=given["max_body_bytes"],
        n_new_tokens=given["max_tokens"],
        n_texts=given["max_n"],
        n_form_bytes=given["max_form_bytes"],
        event_s=given["stream_interval"],
    )
    return Service(
        engine,
        names,
        limits=limits,
        sampling=engine.target.default_sampling if given["recommended"] else None,
        draft_name=None if draft is None else given["draft"] or EMBEDDED,
        tool_format=given["tool_format"],
    )


def _draft(target: Model, given: dict[str, Any]) -> Model | Draft | None:
    """What guesses ahead; where nothing is named, the draft in the package for the target in it.

    Raises
    ------
    SpecdecError
        It cannot be loaded, and nobody has asked for a server without it.
    """
    name = given["draft"]
    if name is None and given["target"] is not None:
        return None
    try:
        return open_draft(name or EMBEDDED, target, given["draft_dtype"], given)
    except (SpecdecError, OSError) as error:
        if not given["plain_without_draft"]:
            raise
        _print(f"warning: no draft, so texts are decoded plainly: {error}")
        return None


def _name(given: str | None, target: Model) -> str:
    """What the model is called where nobody says: a hub name as it is, of a path the last part."""
    if given is None or given == EMBEDDED:
        return EMBEDDED
    return Path(given).name if Path(given).exists() else given


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8: {error}") from error


def _api_key(path: str | None) -> str | None:
    key = os.environ.get(_KEY) if path is None else _read(path).strip()
    if key is not None and not key.strip():
        raise InputError(f"the API key in {_KEY if path is None else path} is empty; expected a text")
    return key
