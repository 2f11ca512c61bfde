"""`/tokenize`, `/detokenize`, `/tokenizer_info`: text to token ids and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec.errors import SpecdecError
from specdec.models.tokenizer import ByteTokenizer
from specdec.serve.chat_messages import read_messages
from specdec.serve.conversation_request import read_template_fields
from specdec.serve.given_fields import GivenFields
from specdec.serve.service import Service
from specdec.serve.text_fields import check_prompt_size, read_model
from specdec.serve.tool_fields import read_tools

__all__ = ["detokenized", "tokenized", "tokenizer_info"]


def tokenized(body: Mapping[str, Any], service: Service) -> dict[str, Any]:
    """The token ids of a prompt, or of a conversation.

    Raises
    ------
    RequestError
    """
    fields = GivenFields(body)
    read_model(fields, service.names)
    names = [name for name in ("prompt", "content", "messages") if name in fields]
    if len(names) != 1:
        found = " and ".join(names) or "neither prompt nor content nor messages"
        raise fields.refusal("prompt", f"the body has {found}; expected one of prompt, content and messages")
    (name,) = names
    shows = fields.flag("return_token_strs")
    most = max(service.limits.n_tokenize_bytes, service.most_bytes)
    try:
        if name == "messages":
            messages, tools = read_messages(fields), read_tools(fields, service.limits)
            template = read_template_fields(fields)
            given = None if tools is None else tools.for_template
            parts = {"messages": messages, "tools": given or [], "chat_template_kwargs": template}
            check_prompt_size(fields, parts, service, most)
            ids = service.target.chat_ids(messages, tools=given, **template)
        else:
            text = fields.text(name)
            assert text is not None
            check_prompt_size(fields, {name: text}, service, most)
            # llama.cpp calls the text "content", and adds nothing unless it is asked to
            special, added = fields.flag("add_special_tokens", name == "prompt"), fields.flag("add_special")
            ids = _encoded(service, text, special or added)
        fields.finish()
    except SpecdecError as error:
        raise service.refusal(error, {"prompt": name}) from error
    found_ids: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": service.engine.n_text,
        "tokens": ids,
    }
    if shows:
        found_ids["token_strs"] = [service.texts.text(token) for token in ids]
    return found_ids


def _encoded(service: Service, text: str, add_special: bool) -> list[int]:
    """The ids of a text; the name of a special token alone is that token, whether or not others are read."""
    tokenizer = service.tokenizer
    if isinstance(tokenizer, ByteTokenizer) and not tokenizer.reads_special_tokens and not add_special:
        token = tokenizer.special_tokens().get(text)
        if token is not None:
            return [token]
    return tokenizer.encode(text, add_bos=add_special)


def detokenized(body: Mapping[str, Any], service: Service) -> dict[str, Any]:
    """The text of token ids; special tokens have none.

    Raises
    ------
    RequestError
    """
    fields = GivenFields(body)
    read_model(fields, service.names)
    fields.required("tokens", "a list of token ids")
    ids = fields.token_ids("tokens", fields.items("tokens") or [], service.target.config.n_vocab)
    fields.finish()
    text = service.tokenizer.decode(ids)
    return {"prompt": text, "content": text}


def tokenizer_info(service: Service) -> dict[str, Any]:
    """What programs that encode prompts themselves ask: special tokens and the chat template."""
    tokenizer, template = service.tokenizer, service.target.chat_template
    found: dict[str, Any] = {
        "tokenizer_class": type(tokenizer).__name__,
        "n_vocab": tokenizer.n_vocab,
        "model_max_length": service.engine.n_text,
        "add_bos_token": isinstance(tokenizer, ByteTokenizer) and tokenizer.adds_bos,
        "bos_token": None if tokenizer.bos_id is None else service.texts.text(tokenizer.bos_id),
        "eos_token": service.texts.text(tokenizer.eos_ids[0]) if tokenizer.eos_ids else None,
        "chat_template": None,
    }
    if template is not None:
        templates = template.templates
        found["chat_template"] = templates.get("default") or next(iter(templates.values()), None)
        found.update({name: text for name, text in template.tokens.items() if found.get(name) is None})
    return found
