"""`/v1/messages` and `/v1/messages/count_tokens`: replies as content blocks, as in Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from specdec.decoding.engine import Piece
from specdec.decoding.result import Result
from specdec.errors import SpecdecError
from specdec.serve.bodies import event, message_error
from specdec.serve.choices import Delta, Usage, piece_of
from specdec.serve.message_fields import CountFields, MessageFields, template_messages
from specdec.serve.reply_readers import Reasoning, ToolCall
from specdec.serve.request_fields import parse
from specdec.serve.service import Service
from specdec.serve.text_request import ConversationRequest, new_id, read_model
from specdec.serve.tokenize import chat_ids

_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS: Final = {"text": "text_delta", "thinking": "thinking_delta"}


class MessageRequest(ConversationRequest):
    """Request for a message; its events build the content blocks."""

    schema = MessageFields
    prefix = "msg_"
    limit_fields = ("max_tokens",)

    def read_n_top(self) -> int | None:
        return None

    def read_messages(self) -> list[dict[str, Any]]:
        return template_messages(self.fields.system, self.fields.messages)

    def _options(self) -> dict[str, Any]:
        options, target = super()._options(), self.service.target
        limit = self.fields.reasoning_limit(target.reasoning_format is not None)
        return {
            **options, "stop": [*self.fields.stop_sequences, *options["stop"]], "max_reasoning_tokens": limit,
        }  # fmt: skip

    def prepare(self) -> None:
        self._choice = self.reply(self.generations[0])
        self._content: list[dict[str, Any]] = []
        self._is_open = False  # whether the last block takes more text
        self._end: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}

    def whole(self, results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        self.piece(0, piece_of(0, results[0][0]))
        return self._message(results)

    def begin(self) -> list[bytes]:
        return [self._event("message_start", message=self._message([]))]

    def piece(self, prompt: int, piece: Piece) -> list[bytes]:
        delta, found = self._choice.feed(piece), list[bytes]()
        for one in delta.said:
            if isinstance(one, ToolCall):
                found += self._call(one)
            elif isinstance(one, Reasoning):
                found += self._more("thinking", one.text)
            else:
                found += self._more("text", one)
        if delta.finish_reason is not None:
            found += self._close()
            self._end = _end_of(delta)
        return found

    def end(self, results: Sequence[Sequence[Result]]) -> list[bytes]:
        usage = Usage(self.generations, results, self._choice.n_reasoning_tokens)
        delta = self._event("message_delta", delta=self._end, usage=usage.message(), **usage.figures())
        return [delta, self._event("message_stop")]

    def fail(self, error: Mapping[str, Any]) -> list[bytes]:
        return [event(message_error(error), "error")]

    def _event(self, event_type: str, **values: Any) -> bytes:
        return event({"type": event_type, **values}, event_type)

    def _message(self, results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        usage = Usage(self.generations, results, self._choice.n_reasoning_tokens)
        return {
            "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": list(self._content), **self._end, "usage": usage.message(),
            **(usage.figures() if results else {}),
        }  # fmt: skip

    def _more(self, block_type: str, text: str) -> list[bytes]:
        """Append text to the last block, or to a new one of this type."""
        found: list[bytes] = []
        if not self._is_open or self._content[-1]["type"] != block_type:
            signature = {"signature": ""} if block_type == "thinking" else {}
            found = [*self._close(), *self._open({"type": block_type, block_type: "", **signature})]
        self._content[-1][block_type] += text
        return [*found, self._delta({"type": _DELTAS[block_type], block_type: text})]

    def _call(self, call: ToolCall) -> list[bytes]:
        block = {"type": "tool_use", "id": new_id("toolu_"), "name": call.name, "input": {}}
        found = [*self._close(), *self._open(block)]
        self._content[-1]["input"] = json.loads(call.arguments)
        found.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
        return [*found, *self._close()]

    def _open(self, block: dict[str, Any]) -> list[bytes]:
        self._content.append(block)
        self._is_open = True
        return [self._event("content_block_start", index=len(self._content) - 1, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._event("content_block_delta", index=len(self._content) - 1, delta=delta)

    def _close(self) -> list[bytes]:
        if not self._is_open:
            return []
        self._is_open = False
        return [self._event("content_block_stop", index=len(self._content) - 1)]


def _end_of(delta: Delta) -> dict[str, Any]:
    """Return the reason why a message ended, and the stop sequence."""
    if delta.finish_reason == "stop" and isinstance(delta.stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": delta.stop}
    return {"stop_reason": _REASONS[str(delta.finish_reason)], "stop_sequence": None}


def counted_tokens(body: Mapping[str, Any], service: Service) -> dict[str, int]:
    """Return the number of tokens of a conversation."""
    fields: Any = parse(CountFields, body, service)
    read_model(fields.model, service)
    messages = template_messages(fields.system, fields.messages)
    try:
        return {"input_tokens": len(chat_ids(messages, fields, service))}
    except SpecdecError as error:
        raise service.refusal(error, {"prompt": "messages"}) from error
