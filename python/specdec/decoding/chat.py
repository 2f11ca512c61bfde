"""Conversations as prompts of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec.errors import InputError
from specdec.models.chat_template import Messages, begins_reply, conversations_of
from specdec.models.model import Model


@dataclass(frozen=True)
class Chat:
    """Conversations to be answered, and what else the chat template is given.

    Attributes
    ----------
    conversations : list of list of dict
    is_batch : bool
        Whether the caller gave a list of conversations and expects a list of results.
    variables : dict
        Keyword arguments of `specdec.ChatTemplate.render`.
    """

    conversations: list[Messages]
    is_batch: bool
    variables: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_call(
        cls,
        prompt: object,
        messages: Messages | Sequence[Messages] | None,
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        chat_template_kwargs: Mapping[str, Any] | None,
    ) -> Chat | None:
        """The chat in the arguments of a call; None where there is a prompt instead."""
        if messages is None:
            given = {"tools": tools, "documents": documents, "chat_template_kwargs": chat_template_kwargs}
            for name, value in given.items():
                if value is not None:
                    raise InputError.about(
                        name, f"{name} is given without messages; expected messages, or None"
                    )
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
        """The token ids of each conversation for a target; raises as `specdec.Model.chat_ids`."""
        if target.config.encoder is not None:
            raise InputError.about(
                "messages",
                f"messages are given, but {target.path} is an encoder-decoder; expected a source, as the "
                "third argument",
            )
        prompts = []
        for i, messages in enumerate(self.conversations):
            try:
                prompts.append(target.chat_ids(messages, **self.variables))
            except InputError as error:
                if not self.is_batch:
                    raise
                raise InputError.about(error.argument or "messages", f"conversation {i}: {error}") from None
        return prompts

    def begins_reply(self, index: int) -> bool:
        """Whether the new text is a message of its own, not the rest of the conversation's last one."""
        return begins_reply(
            self.conversations[index],
            self.variables.get("add_generation_prompt"),
            self.variables.get("continue_final_message"),
        )
