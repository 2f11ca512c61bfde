"""`/v1/chat/completions`: replies in a conversation, and what such requests have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.decoding.engine import Piece
from specdec.decoding.result import Result
from specdec.errors import SpecdecError
from specdec.models.chat_template import begins_reply
from specdec.serve.bodies import RequestError, json_bytes
from specdec.serve.choices import Choice, Delta, piece_of
from specdec.serve.logprobs import chat_logprobs
from specdec.serve.request_fields import refused
from specdec.serve.schemas import ChatFields
from specdec.serve.text_request import ChoicesRequest, TextRequest, check_prompt_size, new_id
from specdec.serve.tool_calls import ToolCall, Tools


class ConversationRequest(TextRequest):
    """A request for replies.

    Attributes
    ----------
    messages : list of dict
        As chat templates read them.
    tools : Tools or None
        What the model may call.
    variables : dict
        Variables of the chat template.
    """

    prompt_field = "messages"

    def read_prompts(self) -> list[dict[str, Any]]:
        """See `TextRequest.read_prompts`."""
        fields, service = self.fields, self.service
        self.messages = self.read_messages()
        self.tools: Tools | None = fields.offered
        if service.target.chat_template is None:
            raise RequestError(
                "the model has no chat template; expected a request to /v1/completions, or a server that was "
                "started with --chat-template",
                code="unsupported_model",
            )
        forced = self._forced_call()
        self.variables: dict[str, Any] = fields.variables
        shown = None if self.tools is None or self.tools.choice == "none" else self.tools.for_template
        parts = {
            self.prompt_field: self.messages,
            "tools": shown or [],
            "chat_template_kwargs": self.variables,
        }
        check_prompt_size(parts, service)
        return [
            {
                **self.options,
                **forced,
                "n": getattr(fields, "n", 1),
                "messages": self.messages,
                "tools": shown,
                "chat_template_kwargs": self.variables or None,
            }
        ]

    @abstractmethod
    def read_messages(self) -> list[dict[str, Any]]:
        """Return the conversation."""

    def _forced_call(self) -> dict[str, Any]:
        """The constraint of a reply that has to call a tool; empty where none has to."""
        if self.tools is None or self.tools.choice in ("none", "auto"):
            return {}
        if self.constraint_field:
            message = "tool_choice asks for a call, and another field for a structured output"
            raise refused("tool_choice", f"{message}; expected one of them")
        self.constraint_field, schema = "tools", self.tools.schema()
        n_bytes, most = len(json_bytes(schema)), self.service.limits.n_constraint_bytes
        if n_bytes > most:
            message = f"the schema of the call in tool_choice has {n_bytes} bytes; expected at most {most}"
            raise refused("tool_choice", message)
        return {"schema": schema}


class ChatRequest(ChoicesRequest, ConversationRequest):
    """A request for replies, as `TextRequest`."""

    schema = ChatFields
    prefix = "chatcmpl-"
    limit_fields = ("max_completion_tokens", "max_tokens")
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def read_n_top(self) -> int | None:
        """See `TextRequest.read_n_top`."""
        return (self.fields.top_logprobs or 0) if self.fields.logprobs else None

    def read_messages(self) -> list[dict[str, Any]]:
        """See `ConversationRequest.read_messages`."""
        return [message.for_template() for message in self.fields.messages]

    def read_prompts(self) -> list[dict[str, Any]]:
        """See `TextRequest.read_prompts`."""
        found = super().read_prompts()
        begins, continues = map(self.variables.get, ("add_generation_prompt", "continue_final_message"))
        try:
            self.own_text = begins_reply(self.messages, begins, continues)
        except SpecdecError as error:
            raise self.service.refusal(error) from error
        return found

    def make_choice(self, prompt: int) -> Choice:
        """See `ChoicesRequest.make_choice`."""
        return self.choice(self.generations[prompt], own_text=self.own_text, reply=True, tools=self.tools)

    def whole(self, results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        """See `TextRequest.whole`."""
        choices = []
        for sample, result in enumerate(results[0]):
            delta = self.choices[sample].feed(piece_of(sample, result))
            message: dict[str, Any] = {"role": "assistant", "content": delta.text, "refusal": None}
            if delta.reasoning:
                message["reasoning_content"] = delta.reasoning
            if delta.calls:
                message["content"] = delta.text or None
                message["tool_calls"] = [_entry_of(call) for call in delta.calls]
            choices.append({"index": sample, "message": message, **self._rest(delta)})
        return self.answer(self.kind, choices, self.usage(results))

    def begin(self) -> list[bytes]:
        """See `TextRequest.begin`."""
        first = {"role": "assistant", "content": ""}
        return [self._delta(index, first, Delta()) for index in range(self.fields.n)]

    def piece(self, prompt: int, piece: Piece) -> list[bytes]:
        """See `TextRequest.piece`."""
        index, found = piece.index, []
        n_calls = self.choices[index].n_calls
        delta = self.choices[index].feed(piece)
        content: dict[str, Any] = {}
        if delta.reasoning:
            content["reasoning_content"] = delta.reasoning
        if delta.text:
            content["content"] = delta.text
        if delta.calls:
            calls = enumerate(delta.calls, n_calls)
            content["tool_calls"] = [{"index": i, **_entry_of(call)} for i, call in calls]
        if content or delta.scored:
            found.append(self._delta(index, content, Delta(scored=delta.scored)))
        if delta.finish_reason is not None:
            found.append(self._delta(index, {}, Delta(finish_reason=delta.finish_reason, stop=delta.stop)))
        return found

    def _delta(self, index: int, delta: Mapping[str, Any], rest: Delta) -> bytes:
        return self.chunk({"index": index, "delta": delta, **self._rest(rest)})

    def _rest(self, delta: Delta) -> dict[str, Any]:
        """The fields of a choice after its message."""
        logprobs = None
        if self.n_top is not None:
            logprobs = {"content": chat_logprobs(self.service.texts, delta.scored), "refusal": None}
        return {"logprobs": logprobs, "finish_reason": delta.finish_reason, "stop_reason": delta.stop}


def _entry_of(call: ToolCall) -> dict[str, Any]:
    """A call in a message."""
    return {
        "id": new_id("call_"),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
