"""`specdec chat`: an interactive conversation."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import click

from specdec.commands.decoding_options import decoding_arguments, decoding_options, setting_options
from specdec.commands.given_models import model_options, open_models, template_option, with_given_template
from specdec.commands.verb import verb
from specdec.decoding.generate import stream
from specdec.decoding.prompt_cache import PromptCache
from specdec.decoding.result import Result
from specdec.drafts.draft import Draft
from specdec.errors import InputError, SpecdecError
from specdec.models.model import Model

_HELP = "/new starts over, /figures shows statistics of the last reply, /quit exits; Ctrl-C stops a reply"


@verb(
    "chat",
    "specdec chat --target HuggingFaceTB/SmolLM2-1.7B-Instruct --draft HuggingFaceTB/SmolLM2-135M-Instruct",
    'specdec chat --target path/to/model --draft suffix-decoding --system "Answer in one sentence."',
    "specdec chat --target path/to/model --recommended   the model authors' sampling settings",
    "specdec chat --target path/to/model < questions.txt   one message per line",
)
@model_options
@template_option
@click.option("--system", metavar="TEXT", help="System message.")
@click.option("--recommended", is_flag=True, help="Use the model authors' sampling settings.")
@decoding_options(
    gamma="the draft's own",
    temperature="0",
    repetition_penalty="none",
    verify="auto",
    seed="random for each reply",
)
@setting_options("max_reasoning_tokens")
@click.option(
    "--cache-bytes", type=int, default=2**30, metavar="N", help="Prefix cache memory.", show_default=True
)
def chat_verb(
    chat_template: str | None, system: str | None, recommended: bool, cache_bytes: int, **given: Any
) -> None:
    """Chat with a model: each input line is a message, and replies stream as they are generated.

    The model needs a chat template, its own or --chat-template. Each turn prefills only its new tokens.
    /new starts over, /figures shows statistics of the last reply, and /quit or end of input exits. Ctrl-C
    stops a reply and keeps its text; between replies it exits. Put a space before a message that starts
    with a slash.
    """
    given["prefill"] = given["prefill"] or "rows"  # so that a turn does not read the last reply again
    target, draft = open_models(given)
    target = with_given_template(target, chat_template)
    if target.chat_template is None:
        expected = "a --target that has one, or --chat-template FILE"
        hint = "specdec generate works with any model"
        raise InputError(f"{target.path} has no chat template; expected {expected} ({hint})")
    options = dict(target.default_sampling) if recommended else {}
    options |= decoding_arguments(given)
    conversation = Conversation(target, draft, system, options | {"prompt_cache": PromptCache(cache_bytes)})
    if sys.stdin is None:
        raise InputError("standard input is closed; expected messages")
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        print(_HELP, file=sys.stderr)
    while (line := _line(interactive)) is not None:
        if line.startswith("/"):
            if not conversation.obey(line.strip()):
                return
        elif line.strip():
            try:
                conversation.reply(line)
            except SpecdecError as error:
                if not interactive:
                    raise
                print(f"specdec chat: error: {error}", file=sys.stderr)


class Conversation:
    """Conversation with a model; `options` as of `specdec.stream`, `last` is the last complete reply."""

    def __init__(
        self, target: Model, draft: Model | Draft | None, system: str | None, options: dict[str, Any]
    ) -> None:
        self._target, self._draft, self._options = target, draft, options
        self._begin: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._begin)
        self.last: Result | None = None

    def reply(self, message: str) -> None:
        """Print the reply to a message; Ctrl-C stops it and keeps its text so far."""
        asked = [*self.messages, {"role": "user", "content": message}]
        said = ""
        pieces = stream(self._target, self._draft, messages=asked, **self._options)
        try:
            for piece in pieces:
                said += piece
                sys.stdout.write(piece)
                sys.stdout.flush()
            self.last = pieces.result
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        finally:
            pieces.close()
        if not said.endswith("\n"):
            print(flush=True)
        self.messages = [*asked, {"role": "assistant", "content": said}]

    def obey(self, order: str) -> bool:
        """Execute a slash command; return False to end the conversation."""
        if order == "/quit":
            return False
        if order == "/new":
            self.messages, self.last = list(self._begin), None
        elif order == "/figures" and self.last is not None:
            print(_figures(self.last), file=sys.stderr)
        elif order == "/figures":
            print("there is no reply yet", file=sys.stderr)
        else:
            print(_HELP, file=sys.stderr)
        return True


def _line(interactive: bool) -> str | None:
    """Read the next message; None at end of input."""
    try:
        if interactive:
            with suppress(ImportError):
                import readline  # noqa: F401  # line editing and history
            return input("> ")
        read = sys.stdin.buffer.readline()
        return read.decode("utf-8").rstrip("\r\n") if read else None
    except EOFError:
        print()
        return None
    except UnicodeDecodeError as error:
        found = f"standard input is not UTF-8: {error.reason} in a line"
        raise InputError(f"{found}; expected messages in UTF-8") from None


def _figures(result: Result) -> str:
    trace = result.trace
    return (
        f"{trace.n_tokens} tokens in {trace.n_calls} target passes, {trace.tokens_per_s:.1f} tokens/s; "
        f"{trace.n_accepted} of {trace.n_drafted} draft tokens accepted; "
        f"{result.n_cached_tokens} of {len(result.prompt_ids)} prompt tokens cached"
    )
