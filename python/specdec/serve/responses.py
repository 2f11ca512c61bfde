"""`/v1/responses`: replies as lists of items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from specdec.decoding.engine import Piece
from specdec.decoding.result import Result
from specdec.serve.bodies import event
from specdec.serve.choices import Usage, chat_logprobs, piece_of
from specdec.serve.conversation import messages_of_input
from specdec.serve.reply_readers import Reasoning, Said, ToolCall
from specdec.serve.schemas import ResponseFields
from specdec.serve.text_request import ConversationRequest, new_id

_STATUS: Final = {"length": "incomplete"}
_ECHOED: Final = (
    "instructions", "max_output_tokens", "metadata", "temperature", "top_p", "user", "tool_choice",
    "safety_identifier", "prompt_cache_key", "top_logprobs",
)  # fmt: skip
_PARTS: Final[dict[str, dict[str, Any]]] = {
    "output_text": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "reasoning_text": {"type": "reasoning_text", "text": ""},
}


class ResponseRequest(ConversationRequest):
    """Request for a response; its events build the output items."""

    schema = ResponseFields
    prefix = "resp_"
    limit_fields = ("max_output_tokens",)
    prompt_field = "input"

    def read_n_top(self) -> int | None:
        n_top: int | None = self.fields.top_logprobs
        return (n_top or 0) if self.fields.include or n_top is not None else None

    def read_messages(self) -> list[dict[str, Any]]:
        return messages_of_input(self.fields.instructions, self.fields.input)

    def prepare(self) -> None:
        self._choice = self.reply(self.generations[0])
        self._n_events = 0
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None  # message or reasoning item that takes more text
        self._scored: list[dict[str, Any]] = []  # tokens not yet in a message
        self._status = "in_progress"

    def whole(self, results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        self.piece(0, piece_of(0, results[0][0]))
        return self._response(results)

    def begin(self) -> list[bytes]:
        response = self._response(None)
        return [self._event(f"response.{name}", response=response) for name in ("created", "in_progress")]

    def piece(self, prompt: int, piece: Piece) -> list[bytes]:
        delta = self._choice.feed(piece)
        said: list[Said] = list(delta.said)
        scored = self._scored + chat_logprobs(self.service.texts, delta.scored)
        self._scored = []
        if scored and not any(isinstance(one, str) for one in said):
            calls = [i for i, one in enumerate(said) if isinstance(one, ToolCall)]
            in_message = self._open is not None and self._open["type"] == "message" and not said
            if calls or in_message or delta.finish_reason is not None:
                said.insert(calls[0] if calls else len(said), "")
            else:  # no message yet: keep them for the next
                self._scored, scored = scored, []
        found: list[bytes] = []
        for one in said:
            if isinstance(one, ToolCall):
                found += [*self._end_item(), *self._call(one)]
            elif isinstance(one, Reasoning):
                found += self._more("reasoning", "reasoning_text", one.text)
            else:
                found += self._more("message", "output_text", one, scored)
                scored = []
        if delta.finish_reason is not None:
            self._status = _STATUS.get(delta.finish_reason, "completed")
            if all(item["type"] == "reasoning" for item in self._output):
                found += self._more("message", "output_text", "", [])
            found += self._end_item()
        return found

    def end(self, results: Sequence[Sequence[Result]]) -> list[bytes]:
        return [self._event(f"response.{self._status}", response=self._response(results))]

    def fail(self, error: Mapping[str, Any]) -> list[bytes]:
        inner = error["error"]
        return [self._event("error", code=inner["code"], message=inner["message"], param=inner["param"])]

    def _event(self, event_type: str, **values: Any) -> bytes:
        number, self._n_events = self._n_events, self._n_events + 1
        return event({"type": event_type, "sequence_number": number, **values}, event_type)

    def _response(self, results: Sequence[Sequence[Result]] | None) -> dict[str, Any]:
        usage = None
        if results is not None:
            usage = Usage(self.generations, results, self._choice.n_reasoning_tokens)
        body = self.body
        found = {
            "id": self.id, "object": "response", "created_at": self.created, "status": self._status,
            "background": False, "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "model": self.model, "output": list(self._output),
            "parallel_tool_calls": self.tools is None or self.tools.parallel, "previous_response_id": None,
            "reasoning": {"effort": self.fields.effort[1], "summary": None}, "store": False,
            "truncation": "disabled",
            "usage": None if usage is None else usage.response(),
            **{name: body.get(name) for name in _ECHOED}, "tools": body.get("tools") or [],
            "temperature": self.options["temperature"], "top_p": self.options.get("top_p") or 1.0,
            "metadata": body.get("metadata") or {}, "tool_choice": body.get("tool_choice") or "auto",
        }  # fmt: skip
        return found if usage is None else {**found, **usage.figures()}

    def _more(
        self, item_type: str, part_type: str, text: str, scored: list[dict[str, Any]] | None = None
    ) -> list[bytes]:
        """Append text to the open item, or to a new one of this type."""
        found: list[bytes] = []
        if self._open is None or self._open["type"] != item_type:
            found, part = self._end_item(), deepcopy(_PARTS[part_type])
            item: dict[str, Any] = {"id": new_id("rs_"), "type": item_type, "summary": []}
            if item_type == "message":
                item = {"id": new_id("msg_"), "type": item_type, "role": "assistant", "status": "in_progress"}
            self._open = {**item, "content": [part]}
            self._output.append(self._open)
            found.append(self._item("added", {**item, "content": []}))
            found.append(self._part("content_part.added", part={**part}))
        (part,) = self._open["content"]
        part["text"] += text
        if scored is None:
            found.append(self._part(f"{part_type}.delta", delta=text))
        elif text or scored:
            part["logprobs"] = part["logprobs"] + scored
            found.append(self._part(f"{part_type}.delta", delta=text, logprobs=scored))
        return found

    def _end_item(self) -> list[bytes]:
        item = self._open
        if item is None:
            return []
        (part,) = item["content"]
        if item["type"] == "message":
            item["status"] = "incomplete" if self._status == "incomplete" else "completed"
        whole = {name: part[name] for name in ("text", "logprobs") if name in part}
        found = [
            self._part(f"{part['type']}.done", **whole),
            self._part("content_part.done", part=part),
            self._item("done", item),
        ]
        self._open = None
        return found

    def _call(self, call: ToolCall) -> list[bytes]:
        item = {"id": new_id("fc_"), "type": "function_call", "call_id": new_id("call_"), "name": call.name}
        done = {**item, "arguments": call.arguments, "status": "completed"}
        self._output.append(done)
        of_item = {"item_id": item["id"], "output_index": len(self._output) - 1}
        return [
            self._item("added", {**item, "arguments": "", "status": "in_progress"}),
            self._event("response.function_call_arguments.delta", **of_item, delta=call.arguments),
            self._event("response.function_call_arguments.done", **of_item, arguments=call.arguments),
            self._item("done", done),
        ]

    def _item(self, event_type: str, item: Mapping[str, Any]) -> bytes:
        return self._event(
            f"response.output_item.{event_type}", output_index=len(self._output) - 1, item=item
        )

    def _part(self, event_type: str, **values: Any) -> bytes:
        assert self._open is not None
        where = {"item_id": self._open["id"], "output_index": len(self._output) - 1, "content_index": 0}
        return self._event(f"response.{event_type}", **where, **values)
