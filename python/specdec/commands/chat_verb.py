"""`specdec chat`: a conversation."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import click

from specdec.commands.decoding_options import decoding_arguments, decoding_options
from specdec.commands.given_models import model_options, open_models, template_option, with_given_template
from specdec.commands.verb import verb
from specdec.decoding.generate import stream
from specdec.decoding.prompt_cache import PromptCache
from specdec.decoding.result import Result
from specdec.drafts.draft import Draft
from specdec.errors import InputError, SpecdecError
from specdec.models.model import Model

_HELP = (
    "/new forgets the conversation, /figures shows those of the last reply, /quit ends; Ctrl-C ends a reply"
)


@verb(
    "chat",
    "specdec chat --target HuggingFaceTB/SmolLM2-1.7B-Instruct --draft HuggingFaceTB/SmolLM2-135M-Instruct",
    'specdec chat --target path/to/model --draft suffix-decoding --system "Answer in one sentence."',
    "specdec chat --target path/to/model --recommended   sampled as the model's authors recommend",
    "specdec chat --target path/to/model < questions.txt   a message a line",
)
@model_options
@template_option
@click.option("--system", metavar="TEXT", help="System message of the chat.")
@click.option("--recommended", is_flag=True, help="Sample as the model's authors recommend.")
@decoding_options(
    gamma="as many as the draft asks for",
    temperature="0",
    repetition_penalty="none",
    verify="rejection",
    seed="a fresh one for each reply",
)
@click.option(
    "--cache-bytes", type=int, default=2**30, metavar="N", help="Memory for what was read.", show_default=True
)
def chat_verb(
    chat_template: str | None, system: str | None, recommended: bool, cache_bytes: int, **given: Any
) -> None:
    """Talk with a model: each line is a message, and the reply is printed as it comes.

    The model needs a chat template, its own or one in a file. The conversation is read once: a turn reads
    what is new. /new forgets the conversation, /figures shows those of the last reply, /quit ends, as the end
    of the input does. Ctrl-C ends a reply, which stays as it is, or, between replies, the program. A message
    that begins with a slash has a space before it.
    """
    target, draft = open_models(given)
    target = with_given_template(target, chat_template)
    if target.chat_template is None:
        expected = "a --target that has one, or --chat-template FILE"
        hint = "specdec generate continues texts with any model"
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
    """A conversation with a model, a reply at a time; `options` are those of `specdec.stream`.

    `system` is the system message, `last` the result of the last complete reply.
    """

    def __init__(
        self, target: Model, draft: Model | Draft | None, system: str | None, options: dict[str, Any]
    ) -> None:
        self._target, self._draft, self._options = target, draft, options
        self._begin: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._begin)
        self.last: Result | None = None

    def reply(self, message: str) -> None:
        """Print the reply to a message; Ctrl-C ends it, and what has come of it stays."""
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
        """Carry out what begins with a slash; False ends the conversation."""
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
    """The next message; None at the end of the input."""
    try:
        if interactive:
            with suppress(ImportError):
                import readline  # noqa: F401  # lines can be edited, and earlier ones come back
            return input("> ")
        read = sys.stdin.buffer.readline()
        return read.decode("utf-8").rstrip("\r\n") if read else None
    except EOFError:
        print()
        return None
    except UnicodeDecodeError as error:
        found = f"standard input is no UTF-8: {error.reason} in a line"
        raise InputError(f"{found}; expected messages in UTF-8") from None


def _figures(result: Result) -> str:
    trace = result.trace
    return (
        f"{trace.n_tokens} tokens in {trace.n_calls} runs of the model, {trace.tokens_per_s:.1f} a second; "
        f"{trace.n_accepted} of {trace.n_drafted} drafted tokens accepted; "
        f"{result.n_cached_tokens} of {len(result.prompt_ids)} tokens of the conversation read before"
    )
