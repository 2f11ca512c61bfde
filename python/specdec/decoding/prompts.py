"""Prompts, sources and conversations as token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec.containers import prompts_of, text_of
from specdec.errors import ContextLengthError, InputError, number_of
from specdec.models.chat_template import (
    ChatTemplate,
    Messages,
    begins_reply,
    conversations_of,
    text_of_message,
)
from specdec.models.model import Model
from specdec.models.reasoning_format import ReasoningPosition, reasoning_format
from specdec.models.tokenizer import ByteTokenizer, StreamDecoder


@dataclass(frozen=True)
class PromptIds:
    """Token ids of a prompt.

    The new text follows `ids` (at least one) and continues the text of `text_ids` (none in a chat reply). For
    an encoder-decoder, `ids` begin with `Model.decoder_start`, and the encoder reads `source`.
    """

    ids: list[int]
    text_ids: list[int]
    source: list[int] | None = None

    @classmethod
    def of(
        cls, target: Model, prompt: Any, name: str, *, decoder_prompt: Any = None, own_text: bool = False
    ) -> PromptIds:
        """Check and encode a prompt (an encoder-decoder's source), called `name` in messages.

        `own_text`: the new text does not continue the prompt. Raises for a prompt that is empty or too long.
        """
        if target.config.encoder is None:
            ids = _fitting_ids(target, prompt, name)
            return cls(ids, [] if own_text else ids)
        try:
            source: list[int] = target.source_ids(prompt).tolist()
        except InputError as error:
            raise InputError.about(name, f"{name}: {error}") from None
        text_ids: list[int] = []
        if decoder_prompt is not None:
            text_ids = _fitting_ids(target, decoder_prompt, f"decoder_prompt of {name}")
        elif not target.decoder_start:
            expected = "a decoder_prompt, or a target language by Model.with_languages"
            found = f"{target.path} defines no decoder start ids"
            raise InputError.about(name, f"{name}: {found}; expected {expected}")
        return cls([*target.decoder_start, *text_ids], text_ids, source)

    @property
    def given(self) -> list[int]:
        """Prompt to pass to `specdec.generate` for these ids, without a decoder_prompt."""
        return self.ids if self.source is None else self.source

    def capacity(self, model: Model) -> int:
        """Return how many new tokens fit a model's context."""
        return model.config.n_ctx - len(self.ids)

    def source_of(self, model: Model) -> list[int] | None:
        """Return the source if a model has an encoder, else None."""
        return None if model.config.encoder is None else self.source

    def source_text(self, target: Model) -> str | None:
        """Return the source as text; None without a source or a tokenizer for it."""
        if self.source is None or target.source_tokenizer is None:
            return None
        return target.source_tokenizer.tokenizer.decode(self.source)

    def stream_decoder(self, model: Model, *, names: bool = False) -> StreamDecoder | None:
        """Return a decoder of the new tokens; it keeps a leading space if text precedes it.

        `names`: write special tokens as their names.
        """
        tokenizer = model.tokenizer
        if tokenizer is None:
            return None
        if isinstance(tokenizer, ByteTokenizer):
            continuing = any(tokenizer.text_bytes(token) for token in self.text_ids)
        else:
            continuing = bool(tokenizer.decode(self.text_ids))
        return StreamDecoder(tokenizer, continuing=continuing, names=names)


def _fitting_ids(target: Model, prompt: Any, name: str) -> list[int]:
    """Encode a prompt, without `Model.decoder_start`; raises if the context has no room for a new token."""
    n_ctx, start = target.config.n_ctx, target.decoder_start
    try:
        ids: list[int] = target.check_ids(prompt, minimum=0 if start else 1).tolist()
        if isinstance(text_of(prompt), str):
            ids = ids[len(start) :]
        n = len(start) + len(ids)
        if n >= n_ctx:
            expected = f"fewer, as the context of {n_ctx} is then full"
            raise ContextLengthError(f"there are {n} token ids; expected {expected}")
    except InputError as error:
        raise type(error).about(name, f"{name}: {error}") from None
    return ids


def decoder_prompts_of(target: Model, decoder_prompt: Any, n_sources: int, is_batch: bool) -> list[Any]:
    """Return the decoder prompt of each sequence: one for all, or one per source."""
    name = "decoder_prompt"
    if decoder_prompt is None:
        return [None] * n_sources
    if target.config.encoder is None:
        expected = f"None, as {target.path} has no encoder"
        raise InputError.of(name, decoder_prompt, expected, "given")
    given, several = prompts_of(name, decoder_prompt)
    if not several:
        return given * n_sources
    if not is_batch or len(given) != n_sources:
        found = f"a list of {len(given)} for {number_of(n_sources, 'source')}"
        raise InputError.of(name, decoder_prompt, "one, or one for each source of a list", found)
    return given


@dataclass(frozen=True)
class Chat:
    """Conversations to answer, and the variables of the chat template."""

    conversations: list[Messages]
    is_batch: bool
    variables: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_call(
        cls, prompt: object, messages: Messages | Sequence[Messages] | None,
        tools: Sequence[Mapping[str, Any]] | None, documents: Sequence[Mapping[str, Any]] | None,
        chat_template_kwargs: Mapping[str, Any] | None,
    ) -> Chat | None:  # fmt: skip
        """Return the chat in the arguments of a call; None if they have a prompt instead."""
        if messages is None:
            given = {"tools": tools, "documents": documents, "chat_template_kwargs": chat_template_kwargs}
            for name, value in given.items():
                if value is not None:
                    raise InputError.of(name, value, "messages, or None", "given without messages")
            return None
        if prompt is not None:
            raise InputError.about("prompt", "prompt and messages are both given; expected one of them")
        if not isinstance(chat_template_kwargs, Mapping | None):
            raise InputError.of("chat_template_kwargs", chat_template_kwargs, "a mapping of names")
        variables = dict(chat_template_kwargs or {})
        for name in variables:
            if not isinstance(name, str) or name in ("self", "messages", "tools", "documents"):
                raise InputError.of("chat_template_kwargs", name, "other names", verb="has the key")
        return cls(*conversations_of(messages), {**variables, "tools": tools, "documents": documents})

    def prompts(self, target: Model) -> list[list[int]]:
        """Return the token ids of each conversation; raises as `specdec.Model.chat_ids`."""
        if target.config.encoder is not None:
            expected = f"a source, as the third argument: {target.path} is an encoder-decoder"
            raise InputError.of("messages", self.conversations, expected, "given", verb="are")
        prompts = []
        for i, messages in enumerate(self.conversations):
            try:
                prompts.append(target.chat_ids(messages, **self.variables))
            except InputError as error:
                if not self.is_batch:
                    raise
                raise InputError.about(error.argument or "messages", f"conversation {i}: {error}") from None
        return prompts

    def reasoning_positions(
        self, target: Model, prompts: Sequence[Sequence[int]]
    ) -> dict[tuple[int, ...], ReasoningPosition]:
        """Return the position in its reply after each prompt; none if the model does not reason."""
        given = self.variables.get("chat_template")
        how = target.reasoning_format
        if given is not None:
            text = (target.chat_template or ChatTemplate({})).text(given)
            how = reasoning_format(target.tokenizer, text)
        if how is None:
            return {}
        continued = (
            None if self.begins_reply(i) else text_of_message(messages[-1])
            for i, messages in enumerate(self.conversations)
        )
        return {tuple(ids): how.position(ids, one) for ids, one in zip(prompts, continued, strict=True)}

    def begins_reply(self, index: int) -> bool:
        """Whether the output is a new message rather than the continuation of the last one."""
        how = (self.variables.get(name) for name in ("add_generation_prompt", "continue_final_message"))
        return begins_reply(self.conversations[index], *how)
