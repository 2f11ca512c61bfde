"""`/v1/responses`: a reply as a list of items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.decoding.engine import Generation, Piece
from specdec.decoding.result import Result
from specdec.errors import shown
from specdec.serve.choice_text import piece_of
from specdec.serve.conversation_request import ConversationRequest
from specdec.serve.event_stream import EventWriter, event
from specdec.serve.form_fields import read_json_format
from specdec.serve.given_fields import GivenFields
from specdec.serve.response_input import read_input
from specdec.serve.text_request import new_id
from specdec.serve.token_texts import chat_logprobs
from specdec.serve.tool_calls import Reasoning, Said, ToolCall
from specdec.serve.usage import Usage

__all__ = ["ResponseRequest"]

_LOGPROBS = "message.output_text.logprobs"
_STATUS = {"length": "incomplete"}
_ECHOED = (
    "instructions", "max_output_tokens", "metadata", "temperature", "top_p", "user", "tool_choice",
    "safety_identifier", "prompt_cache_key", "top_logprobs",
)  # fmt: skip


class ResponseRequest(ConversationRequest):
    """A request for a response, as `TextRequest`."""

    prefix = "resp_"
    limit_names = ("max_output_tokens",)
    text_name = "input"
    has_samples = False
    flat_tools = True

    def read_n_top(self, fields: GivenFields, most: int) -> int | None:
        """See `TextRequest.read_n_top`."""
        included = fields.items("include") or []
        for i, name in enumerate(included):
            if name != _LOGPROBS:
                raise fields.refusal(
                    "include", f"include[{i}] is {shown(name)}; expected {_LOGPROBS!r}",
                    "unsupported_parameter",
                )  # fmt: skip
        n_top = fields.integer("top_logprobs", 0, most)
        return (n_top or 0) if included or n_top is not None else None

    def read_form(self, fields: GivenFields) -> dict[str, Any]:
        """See `TextRequest.read_form`."""
        given = fields.inner("text")
        if given is None:
            return {}
        inner = given.inner("format")
        found = {} if inner is None else read_json_format(inner, inner, self.service.limits)
        if inner is not None:
            inner.finish()
        self.form_name = "text.format"
        given.only("verbosity", why="the model has no such setting")
        given.finish()
        return found

    def read_messages(self, fields: GivenFields) -> Sequence[Mapping[str, Any]]:
        """See `ConversationRequest.read_messages`."""
        return read_input(fields)

    def refuse_others(self, fields: GivenFields) -> None:
        """See `TextRequest.refuse_others`."""
        for name in ("previous_response_id", "conversation", "prompt"):
            fields.only(name, why="nothing is stored; input takes the whole conversation")
        fields.only("background", False, why="a response is computed while its client waits")
        fields.only("truncation", "disabled", why="input that is too long is refused")
        fields.only("background_options", why="a response is computed while its client waits")
        fields.only("reasoning", why="chat_template_kwargs has what the model's template knows")
        fields.only("max_tool_calls", why="the server calls no tools itself")
        fields.only("context_management", why="input that is too long is refused")
        fields.only("moderation", why="nothing is moderated")
        fields.only("access_programs", why="there are none")
        fields.only("image", why="a reply is text")

    @property
    def echoed(self) -> dict[str, Any]:
        """What a response shows of its request."""
        return {name: self.body.get(name) for name in _ECHOED} | {"tools": self.body.get("tools") or []}

    def whole(self, generations: Sequence[Generation], results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        """The answer when the text has ended."""
        writer = _ResponseWriter(self, generations)
        writer.begin()
        writer.piece(0, piece_of(0, results[0][0]))
        return writer.response(results)

    def writer(self, generations: Sequence[Generation]) -> EventWriter:
        """What writes the answer as a stream."""
        return _ResponseWriter(self, generations)


class _ResponseWriter(EventWriter):
    """The events of a response; the items that they tell of are the response's output."""

    def __init__(self, request: ResponseRequest, generations: Sequence[Generation]) -> None:
        self._request, self._generations = request, generations
        self._text = request.choice_text(generations[0], own_text=True, reply=True, tools=request.tools)
        self._n_events = 0
        self._output: list[dict[str, Any]] = []
        self._message: dict[str, Any] | None = None  # the one that more text goes to
        self._reasoning: dict[str, Any] | None = None  # the item that more reasoning goes to
        self._scored: list[dict[str, Any]] = []  # tokens that no message has yet
        self._status = "in_progress"

    def begin(self) -> list[bytes]:
        response = self._response(None)
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def piece(self, prompt: int, piece: Piece) -> list[bytes]:
        delta = self._text.feed(piece)
        said: list[Said] = list(delta.said)
        scored = self._scored + chat_logprobs(self._request.service.texts, delta.scored)
        self._scored = []
        if scored and not any(isinstance(one, str) for one in said):
            calls = [i for i, one in enumerate(said) if isinstance(one, ToolCall)]
            is_open = self._message is not None and not said
            if calls or is_open or delta.finish_reason is not None:
                said.insert(calls[0] if calls else len(said), "")
            else:  # no message yet: the next one has them, after reasoning
                self._scored, scored = scored, []
        found: list[bytes] = []
        for one in said:
            if isinstance(one, ToolCall):
                found += [*self._end_items(), *self._call(one)]
            elif isinstance(one, Reasoning):
                found += self._more_reasoning(one.text)
            else:
                found += self._more(one, scored)
                scored = []
        if delta.finish_reason is not None:
            self._status = _STATUS.get(delta.finish_reason, "completed")
            if all(item["type"] == "reasoning" for item in self._output):
                found += self._more("", [])
            found += self._end_items()
        return found

    def end(self, results: Sequence[Sequence[Result]]) -> list[bytes]:
        return [self._event(f"response.{self._status}", response=self.response(results))]

    def fail(self, error: Mapping[str, Any]) -> list[bytes]:
        inner = error["error"]
        return [self._event("error", code=inner["code"], message=inner["message"], param=inner["param"])]

    def response(self, results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        """The response, whose text has ended."""
        return self._response(Usage(self._generations, results, self._text.n_reasoning_tokens))

    def _event(self, kind: str, **values: Any) -> bytes:
        number, self._n_events = self._n_events, self._n_events + 1
        return event({"type": kind, "sequence_number": number, **values}, kind)

    def _response(self, usage: Usage | None) -> dict[str, Any]:
        request = self._request
        echoed = request.echoed
        found = {
            "id": request.id,
            "object": "response",
            "created_at": request.created,
            "status": self._status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "model": request.model,
            "output": list(self._output),
            "parallel_tool_calls": request.tools is None or request.tools.parallel,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "truncation": "disabled",
            "usage": None if usage is None else usage.response(),
            **echoed,
        }
        found["temperature"] = request.fields.options["temperature"]
        found["top_p"] = request.fields.options.get("top_p") or 1.0
        found["metadata"] = echoed["metadata"] or {}
        found["tool_choice"] = echoed["tool_choice"] or "auto"
        return found if usage is None else {**found, **usage.figures()}

    # ── Items

    def _more(self, text: str, scored: list[dict[str, Any]]) -> list[bytes]:
        """More text, in a message that is begun if there is none."""
        found = self._end_reasoning()
        if self._message is None:
            self._message = {
                "id": new_id("msg_"),
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
            self._output.append(self._message)
            found.append(self._item("response.output_item.added", {**self._message, "content": []}))
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self._message["content"] = [part]
            found.append(self._part("response.content_part.added", part={**part, "logprobs": []}))
        part = self._message["content"][0]
        part["text"] += text
        part["logprobs"] += scored
        if text or scored:
            found.append(self._part("response.output_text.delta", delta=text, logprobs=scored))
        return found

    def _end_message(self) -> list[bytes]:
        if self._message is None:
            return []
        message, part = self._message, self._message["content"][0]
        message["status"] = "incomplete" if self._status == "incomplete" else "completed"
        found = [
            self._part("response.output_text.done", text=part["text"], logprobs=part["logprobs"]),
            self._part("response.content_part.done", part=part),
            self._item("response.output_item.done", message),
        ]
        self._message = None
        return found

    def _more_reasoning(self, text: str) -> list[bytes]:
        """More reasoning, in an item that is begun if there is none."""
        found = self._end_message()
        if self._reasoning is None:
            part = {"type": "reasoning_text", "text": ""}
            self._reasoning = {"id": new_id("rs_"), "type": "reasoning", "summary": [], "content": [part]}
            self._output.append(self._reasoning)
            found.append(self._item("response.output_item.added", {**self._reasoning, "content": []}))
            found.append(self._of_reasoning("response.content_part.added", part={**part}))
        self._reasoning["content"][0]["text"] += text
        found.append(self._of_reasoning("response.reasoning_text.delta", delta=text))
        return found

    def _end_reasoning(self) -> list[bytes]:
        if self._reasoning is None:
            return []
        (part,) = self._reasoning["content"]
        found = [
            self._of_reasoning("response.reasoning_text.done", text=part["text"]),
            self._of_reasoning("response.content_part.done", part=part),
            self._item("response.output_item.done", self._reasoning),
        ]
        self._reasoning = None
        return found

    def _of_reasoning(self, kind: str, **values: Any) -> bytes:
        assert self._reasoning is not None
        place = {"item_id": self._reasoning["id"], "output_index": len(self._output) - 1, "content_index": 0}
        return self._event(kind, **place, **values)

    def _end_items(self) -> list[bytes]:
        return [*self._end_reasoning(), *self._end_message()]

    def _call(self, call: ToolCall) -> list[bytes]:
        item = {
            "id": new_id("fc_"),
            "type": "function_call",
            "call_id": new_id("call_"),
            "name": call.name,
            "arguments": "",
            "status": "in_progress",
        }
        found = [self._item("response.output_item.added", item, len(self._output))]
        of_item = {"item_id": item["id"], "output_index": len(self._output)}
        for kind, value in (("delta", {"delta": call.arguments}), ("done", {"arguments": call.arguments})):
            found.append(self._event(f"response.function_call_arguments.{kind}", **of_item, **value))
        done = {**item, "arguments": call.arguments, "status": "completed"}
        self._output.append(done)
        found.append(self._item("response.output_item.done", done))
        return found

    def _item(self, kind: str, item: Mapping[str, Any], index: int | None = None) -> bytes:
        place = len(self._output) - 1 if index is None else index
        return self._event(kind, output_index=place, item=item)

    def _part(self, kind: str, **values: Any) -> bytes:
        assert self._message is not None
        place = {"item_id": self._message["id"], "output_index": len(self._output) - 1, "content_index": 0}
        return self._event(kind, **place, **values)
