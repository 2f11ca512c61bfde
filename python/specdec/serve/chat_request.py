"""`/v1/chat/completions`: replies in a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.decoding.engine import Generation, Piece
from specdec.decoding.result import Result
from specdec.errors import SpecdecError
from specdec.models.chat_template import begins_reply
from specdec.serve.chat_messages import read_messages
from specdec.serve.choice_text import ChoiceText, Delta, piece_of
from specdec.serve.choices_answer import ChunkWriter, choices_answer
from specdec.serve.conversation_request import ConversationRequest
from specdec.serve.event_stream import EventWriter
from specdec.serve.given_fields import GivenFields
from specdec.serve.service import Service
from specdec.serve.text_request import new_id
from specdec.serve.token_texts import chat_logprobs
from specdec.serve.tool_calls import ToolCall
from specdec.serve.usage import Usage

__all__ = ["ChatRequest"]


class ChatRequest(ConversationRequest):
    """A request for replies, as `TextRequest`."""

    prefix = "chatcmpl-"
    limit_names = ("max_completion_tokens", "max_tokens")

    def read_n_top(self, fields: GivenFields, most: int) -> int | None:
        """See `TextRequest.read_n_top`."""
        n_top = fields.integer("top_logprobs", 0, most)
        if fields.flag("logprobs"):
            return n_top or 0
        if n_top is not None:
            raise fields.refusal(
                "top_logprobs", "top_logprobs is given, but logprobs is not true; expected both"
            )
        return None

    def read_messages(self, fields: GivenFields) -> Sequence[Mapping[str, Any]]:
        """See `ConversationRequest.read_messages`."""
        return read_messages(fields)

    def read_texts(self, fields: GivenFields, form: Mapping[str, Any]) -> list[dict[str, Any]]:
        """See `TextRequest.read_texts`."""
        found = super().read_texts(fields, form)
        self.own_text = _own_text(self.messages, self.template, self.service)
        return found

    def refuse_others(self, fields: GivenFields) -> None:
        """See `TextRequest.refuse_others`."""
        fields.only("modalities", ["text"], why="a reply is text")
        fields.only("audio", why="a reply is text")
        fields.only("functions", why="they are tools now")
        fields.only("function_call", why="it is tool_choice now")
        fields.only("reasoning_effort", why="chat_template_kwargs has what the model's template knows")
        fields.only("verbosity", why="the model has no such setting")
        fields.only("web_search_options", why="nothing is searched for")
        fields.only("moderation", why="nothing is moderated")

    def whole(self, generations: Sequence[Generation], results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        """The answer when all texts have ended."""
        choices, n_reasoning = [], 0
        for sample, result in enumerate(results[0]):
            text = self._text(generations[0])
            delta = text.feed(piece_of(sample, result))
            n_reasoning += text.n_reasoning_tokens
            message: dict[str, Any] = {"role": "assistant", "content": delta.text, "refusal": None}
            if delta.reasoning:
                message["reasoning_content"] = delta.reasoning
            if delta.calls:
                message["content"] = delta.text or None
                message["tool_calls"] = [_entry_of(call) for call in delta.calls]
            choices.append({"index": sample, "message": message, **self._rest(delta)})
        return choices_answer(self, "chat.completion", choices, Usage(generations, results, n_reasoning))

    def writer(self, generations: Sequence[Generation]) -> EventWriter:
        """What writes the answer as a stream."""
        return _ChatWriter(self, generations)

    def _text(self, generation: Generation) -> ChoiceText:
        return self.choice_text(generation, own_text=self.own_text, reply=True, tools=self.tools)

    def _rest(self, delta: Delta) -> dict[str, Any]:
        """What a choice has beside its message."""
        logprobs = None
        if self.n_top is not None:
            logprobs = {"content": chat_logprobs(self.service.texts, delta.scored), "refusal": None}
        return {"logprobs": logprobs, "finish_reason": delta.finish_reason, "stop_reason": delta.stop}


class _ChatWriter(ChunkWriter):
    """The events of replies."""

    _request: ChatRequest

    def __init__(self, request: ChatRequest, generations: Sequence[Generation]) -> None:
        super().__init__(request, "chat.completion.chunk", generations)
        n = request.fields.n
        self._texts = [request._text(generations[0]) for _ in range(n)]
        self._n_calls = [0] * n

    @property
    def n_reasoning_tokens(self) -> int:
        return sum(text.n_reasoning_tokens for text in self._texts)

    def _delta(self, index: int, delta: dict[str, Any], rest: Delta) -> bytes:
        return self.chunk({"index": index, "delta": delta, **self._request._rest(rest)})

    def begin(self) -> list[bytes]:
        return [
            self._delta(index, {"role": "assistant", "content": ""}, Delta())
            for index in range(self._request.fields.n)
        ]

    def piece(self, prompt: int, piece: Piece) -> list[bytes]:
        index, found = piece.index, []
        delta = self._texts[index].feed(piece)
        content: dict[str, Any] = {}
        if delta.reasoning:
            content["reasoning_content"] = delta.reasoning
        if delta.text:
            content["content"] = delta.text
        if delta.calls:
            first = self._n_calls[index]
            content["tool_calls"] = [
                {"index": i, **_entry_of(call)} for i, call in enumerate(delta.calls, first)
            ]
            self._n_calls[index] += len(delta.calls)
        if content or delta.scored:
            found.append(self._delta(index, content, Delta(scored=delta.scored)))
        if delta.finish_reason is not None:
            found.append(self._delta(index, {}, Delta(finish_reason=delta.finish_reason, stop=delta.stop)))
        return found


def _entry_of(call: ToolCall) -> dict[str, Any]:
    """A call as a message has it."""
    return {
        "id": new_id("call_"),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _own_text(messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any], service: Service) -> bool:
    try:
        return begins_reply(
            messages, template.get("add_generation_prompt"), template.get("continue_final_message")
        )
    except SpecdecError as error:
        raise service.refusal(error) from error
