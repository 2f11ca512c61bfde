"""What requests for a reply in a conversation have in common: messages, tools, the chat template."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.serve.form_fields import check_form_size
from specdec.serve.given_fields import GivenFields
from specdec.serve.request_error import RequestError
from specdec.serve.service import Service
from specdec.serve.text_fields import check_prompt_size
from specdec.serve.text_request import TextRequest
from specdec.serve.tool_fields import Tools, read_tools

__all__ = ["ConversationRequest", "read_template_fields"]


class ConversationRequest(TextRequest):
    """A request for replies.

    Attributes
    ----------
    messages : sequence of mapping
        As chat templates read them.
    tools : Tools or None
        What the model may call.
    template : dict
        Variables of the chat template.
    """

    text_name = "messages"
    flat_tools = False
    """Whether name and parameters of a tool stand beside its type."""

    def read_texts(self, fields: GivenFields, form: Mapping[str, Any]) -> list[dict[str, Any]]:
        """See `TextRequest.read_texts`."""
        service = self.service
        self.messages = self.read_messages(fields)
        self.tools = read_tools(fields, service.limits, flat=self.flat_tools)
        call = _form_of_call(fields, self.tools, form, service)
        if call:
            form, self.form_name = call, "tools"
        self.template = read_template_fields(fields)
        shown = None if self.tools is None or self.tools.choice == "none" else self.tools.for_template
        parts = {self.text_name: list(self.messages), "tools": shown or []}
        check_prompt_size(fields, {**parts, "chat_template_kwargs": self.template}, service)
        return [
            {
                **self.options_with(form),
                "n": self.fields.n,
                "messages": self.messages,
                "tools": shown,
                "chat_template_kwargs": self.template or None,
            }
        ]

    @abstractmethod
    def read_messages(self, fields: GivenFields) -> Sequence[Mapping[str, Any]]:
        """Read the conversation.

        Raises
        ------
        RequestError
        """


def read_template_fields(fields: GivenFields) -> dict[str, Any]:
    """Variables of the chat template that a request sets.

    Raises
    ------
    RequestError
    """
    found = dict(fields.whole("chat_template_kwargs") or {})
    for name in ("add_generation_prompt", "continue_final_message"):
        value = fields.optional_flag(name)
        if value is not None:
            if name in found:
                raise fields.refusal(name, f"{name} stands in chat_template_kwargs too; expected one of them")
            found[name] = value
    if "chat_template" in found:
        raise fields.refusal(
            "chat_template_kwargs",
            "chat_template_kwargs has chat_template; expected variables of the model's own template",
            "unsupported_parameter",
        )
    return found


def _form_of_call(
    fields: GivenFields, tools: Tools | None, form: Mapping[str, Any], service: Service
) -> Mapping[str, Any]:
    """The form of a reply that has to call a tool; empty where none has to.

    Raises
    ------
    RequestError
        The model has no chat template, or a call is asked for beside another form.
    """
    if service.target.chat_template is None:
        raise RequestError(
            "the model has no chat template; expected a request to /v1/completions, or a server that was "
            "started with --chat-template",
            code="unsupported_model",
        )
    if tools is None or tools.choice in ("none", "auto"):
        return {}
    if form:
        raise fields.refusal(
            "tool_choice",
            "tool_choice asks for a call, and another field for another form; expected one of them",
        )
    return check_form_size(fields, "tool_choice", {"schema": tools.schema()}, service.limits)
