"""Chat templates: rendering of messages to a prompt.

A template is untrusted Jinja from a checkpoint: it is rendered in Jinja's sandbox in a separate process
(`specdec.models.template_process`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from specdec.checks import check_flag, check_items
from specdec.errors import InputError, TokenizerError, shown, type_of
from specdec.models.template_process import names_in_template, render_template
from specdec.models.tokenizer.added_tokens import SPECIAL_NAMES, read_settings, read_side_tokens
from specdec.text_files import read_text_file

Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""A conversation: messages with "role" and "content"."""

_DEFAULT: Final = "default"
_TOOL_USE: Final = "tool_use"
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")  # synonyms; templates read the first
_MARK: Final = "<|END-OF-THE-MESSAGE|> "  # with a space, which a template may strip
_MAX_DEPTH: Final = 64


class ChatTemplate:
    """Chat templates of a model, see :attr:`specdec.Model.chat_template`.

    Parameters
    ----------
    templates : str or mapping of str to str
        A template, or several by name.
    tokens : mapping of str to str, optional
        Variables of every template, such as "bos_token".
    source : str
        Where they were read, for messages.

    Raises
    ------
    InputError
        `templates` or `tokens` are not strings.

    Examples
    --------
    >>> print(model.chat_template.render([{"role": "user", "content": "Hello!"}]))
    """

    def __init__(
        self,
        templates: str | Mapping[str, str],
        *,
        tokens: Mapping[str, str] | None = None,
        source: str = "the chat template",
    ) -> None:
        given = {_DEFAULT: templates} if isinstance(templates, str) else templates
        self.templates = _texts("templates", given)
        self.tokens = {} if tokens is None else _texts("tokens", tokens)
        self.source = str(source)

    def __repr__(self) -> str:
        return f"<specdec.ChatTemplate of {self.source}: {', '.join(map(repr, self.templates))}>"

    def text(self, chat_template: str | None = None, *, tools: bool = False) -> str:
        """Return the Jinja source of a template.

        Parameters
        ----------
        chat_template : str, optional
            A name, or a template itself. None: "tool_use" if it exists and there are tools, else "default".
        tools : bool
            Whether there are tools.

        Raises
        ------
        InputError
            There is no default template, or `chat_template` is neither a name nor a template.
        """
        names = ", ".join(map(repr, sorted(self.templates)))
        if chat_template is not None:
            if not isinstance(chat_template, str):
                raise InputError.of("chat_template", chat_template, "a name, or a template")
            if chat_template in self.templates:
                return self.templates[chat_template]
            if not any(mark in chat_template for mark in ("{{", "{%")):
                expected = f"a template, which contains {{{{ or {{%, or the name of one in {self.source}"
                expected += f": {names}" if names else ""
                raise InputError.of("chat_template", chat_template, expected)
            return chat_template
        if check_flag("tools", tools) and _TOOL_USE in self.templates:
            return self.templates[_TOOL_USE]
        if _DEFAULT not in self.templates:
            found = f"{self.source} has the chat templates {names}"
            raise InputError(f"{found} and no default; expected chat_template= with one of these names")
        return self.templates[_DEFAULT]

    def reads(self, name: str, chat_template: str | None = None, *, tools: bool = False) -> bool:
        """Return whether a template, chosen as in :meth:`text`, uses a variable; raises as :meth:`render`."""
        return name in names_in_template(self.text(chat_template, tools=tools), self.source)

    def check(self) -> None:
        """Compile all templates; raises as :meth:`render`."""
        for text in self.templates.values():
            names_in_template(text, self.source)

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """Render a conversation as ``apply_chat_template`` of ``transformers`` does.

        Parameters
        ----------
        messages : list of dict
            With "role", "content" and other fields that the template reads. None fields are dropped.
        tools : list of dict, optional
            JSON schemas of functions.
        documents : list of dict, optional
            With "title" and "text", for templates that cite.
        add_generation_prompt : bool, optional
            Start the assistant's reply. None: unless the last message is the assistant's.
        continue_final_message : bool, optional
            End inside the last message to continue it. None: if it is the assistant's and no reply is
            started.
        chat_template : str, optional
            As in :meth:`text`.
        **variables
            Other variables of the template, such as ``enable_thinking``. The template must read them.

        Returns
        -------
        str

        Raises
        ------
        InputError
            Invalid messages; messages that the template refuses, with its reason; tools, documents or
            variables that the template ignores; or a template that exceeds its limits of time or memory.
        TokenizerError
            The template is not valid Jinja.
        MissingPackageError
            Jinja is not installed: ``pip install 'specdec-cpu[chat]'``.
        """
        conversation = _checked(messages)
        for message in conversation:
            given = [message[name] for name in _REASONING if name in message]
            if given and given[0] is not None:
                message["reasoning_content"] = given[0]
                message.setdefault("thinking", given[0])
        add, carry_on = _endings(conversation, add_generation_prompt, continue_final_message)
        if carry_on:
            _mark(conversation[-1])
        template = self.text(chat_template, tools=tools is not None)
        values = {
            **self.tokens,
            **_plain(variables),
            "messages": conversation,
            "tools": _schemas("tools", tools),
            "documents": _schemas("documents", documents),
            "add_generation_prompt": add,
        }
        needed = (*(name for name in ("tools", "documents") if values[name]), *variables)
        text = render_template(template, values, needed, self.source)
        if not carry_on:
            return text
        before, mark, after = text.rpartition(_MARK.strip())
        if not mark:
            found = f"{self.source}: the chat template omits the text of the last message"
            raise InputError(f"{found}; expected one that can be continued")
        return before if after.startswith(" ") else before.rstrip()  # stripped like the template's text

    def end_of_message(self) -> str:
        """Return the stripped text after the assistant's message; "" if unknown, as for gpt-oss."""
        question = {"role": "user", "content": "a"}
        answer = {"role": "assistant", "content": "b" + _MARK}
        try:
            text = self.render([question, answer], add_generation_prompt=False, continue_final_message=False)
        except (InputError, TokenizerError):
            return ""
        _, mark, after = text.rpartition(_MARK.strip())
        end = after.strip() if mark else ""
        return "" if "<|channel|>" in text and end.startswith("<|end|>") else end


def _texts(name: str, given: Any) -> dict[str, str]:
    expected = "a mapping of names to texts"
    if not isinstance(given, Mapping):
        raise InputError.of(name, given, expected)
    texts = {key: given[key] for key in check_items(name, given, expected)}
    for key, text in texts.items():
        if not (isinstance(key, str) and isinstance(text, str)):
            raise InputError(f"{name} has {shown(key)} with {shown(text)}; expected {expected}")
    return texts


def begins_reply(
    messages: Any, add_generation_prompt: bool | None, continue_final_message: bool | None
) -> bool:
    """Return whether a conversation's prompt starts a reply; flags as in `ChatTemplate.render`."""
    return _endings(_checked(messages[-1:]), add_generation_prompt, continue_final_message)[0]


def text_of_message(message: Mapping[str, Any]) -> str:
    """Return the text of a message, with that of its parts joined."""
    content = _plain(message).get("content")
    blocks = content if isinstance(content, list) else [{"text": content}]
    return "".join(str(block.get("text") or "") for block in blocks if isinstance(block, dict))


def conversations_of(messages: Any) -> tuple[list[Any], bool]:
    """Return the conversations in an argument `messages`, and whether it is a list of them."""
    expected = "a list of messages, or a list of these"
    if not isinstance(messages, list | tuple):
        raise InputError.of("messages", messages, expected, type_of(messages))
    items = check_items("messages", messages, expected)
    if not items:
        raise InputError.of("messages", messages, expected, "an empty list")
    n_conversations = sum(isinstance(item, list | tuple) for item in items)
    if n_conversations not in (0, len(items)):
        raise InputError.about("messages", f"messages mixes messages with lists of them; expected {expected}")
    return (items, True) if n_conversations else ([items], False)


def _checked(messages: Any) -> list[dict[str, Any]]:
    """Return copies of the messages in plain data."""
    expected = "a list of at least one message"
    items = check_items("messages", messages, expected) if isinstance(messages, list | tuple) else []
    if not items:
        raise InputError.of("messages", messages, expected)
    found = []
    for i, message in enumerate(items):
        values = _plain(message)
        if not isinstance(values, dict):
            expected = "a dict with 'role' and 'content'"
            raise InputError.of(f"messages[{i}]", message, expected, type_of(message))
        found.append({name: value for name, value in values.items() if value is not None})
    return found


def _endings(
    messages: Sequence[Mapping[str, Any]], add: bool | None, carry_on: bool | None
) -> tuple[bool, bool]:
    """Return whether to start a reply, and whether to continue the last message."""
    last_is_reply = messages[-1].get("role") == "assistant"
    names = ("add_generation_prompt", "continue_final_message")
    add = None if add is None else check_flag(names[0], add)
    carry_on = None if carry_on is None else check_flag(names[1], carry_on)
    if add and carry_on:
        raise InputError.about(names[0], f"{' and '.join(names)} are both True; expected one")
    if add is None:
        add = not (last_is_reply or carry_on)
    if carry_on is None:
        carry_on = last_is_reply and not add
    return add, carry_on


def _mark(message: dict[str, Any]) -> None:
    """Append the mark to a message's text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _MARK
        return
    for block in reversed(content) if isinstance(content, list) else ():
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            block["text"] += _MARK
            return
    found = "the last message has no text to continue"
    raise InputError.about("messages", f"{found}; expected its content")


def _schemas(name: str, given: Any) -> list[Any] | None:
    items = [] if given is None else check_items(name, given, "a list of dicts")
    for i, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise InputError.of(f"{name}[{i}]", item, "a dict", type_of(item))
    return None if given is None else [_plain(item) for item in items]


def _plain(value: Any, depth: int = 0) -> Any:
    """Convert a value to JSON types for the template; other objects become their type's name."""
    if depth > _MAX_DEPTH:
        found = f"messages, tools or documents are nested more than {_MAX_DEPTH} deep"
        raise InputError.about("messages", found)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item(), depth + 1)
    conversions: Any = ((str, str.__str__), (int, int.__index__), (float, float.__float__))
    for base, own in conversions:
        if isinstance(value, base):
            return own(value)  # a subclass may have methods that the sandbox does not restrict
    if isinstance(value, Mapping):
        names = [(name, _plain(name)) for name in check_items("a field of messages", value, "a mapping")]
        for name, key in names:
            if isinstance(key, list | dict):
                found = f"a field of messages has the name {shown(name)}"
                raise InputError.about("messages", f"{found}; expected a string")
        return {key: _plain(value[name], depth + 1) for name, key in names}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in check_items("a field of messages", value, "a list")]
    if callable(getattr(value, "model_dump", None)):  # of pydantic
        return _plain(value.model_dump(), depth + 1)
    return f"<{type(value).__name__}>"


def resolve_chat_template(tokenizer: Any, folder: Path) -> ChatTemplate | None:
    """Return the chat templates of a caller's ``tokenizer=`` (object or path), else of the folder."""
    if tokenizer is False:
        return None
    own = getattr(tokenizer, "chat_template", None)
    if isinstance(own, ChatTemplate):
        return own
    if isinstance(own, str | Mapping):
        held = {name: getattr(tokenizer, name, None) for name in SPECIAL_NAMES}
        tokens = {name: str(token) for name, token in held.items() if token is not None}
        return ChatTemplate(own, tokens=tokens, source=f"the {type(tokenizer).__name__}")
    if isinstance(tokenizer, str | os.PathLike):
        location = Path(tokenizer).expanduser()
        found = _read_chat_template(location if location.is_dir() else location.parent)
        if found is not None:
            return found
    return _read_chat_template(folder)


def _read_chat_template(folder: Path) -> ChatTemplate | None:
    """Read the chat templates of a folder from files or tokenizer_config.json; None if it has none."""
    file = folder / "tokenizer_config.json"
    settings = read_settings(file)
    more = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    single = folder / "chat_template.jinja"
    paths = {_DEFAULT: single, **more} if single.is_file() else more
    templates = {
        name: read_text_file(path, "a chat template", error=TokenizerError) for name, path in paths.items()
    } or _named(settings.get("chat_template"), file)
    if not templates:
        return None
    side = read_side_tokens(folder)
    found = {name: side.name(name) for name in SPECIAL_NAMES}
    tokens = {name: token for name, token in found.items() if token is not None}
    return ChatTemplate(templates, tokens=tokens, source=str(folder))


def _named(value: Any, file: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {_DEFAULT: value}
    templates = {}
    for item in value if isinstance(value, list) else [value]:
        name, template = (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        if not (isinstance(name, str) and isinstance(template, str)):
            expected = "a template, or a list of objects with name and template"
            raise TokenizerError.of(file, "chat_template", value, expected)
        templates[name] = template
    return templates
