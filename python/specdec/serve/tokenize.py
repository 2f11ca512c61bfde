"""`/tokenize`, `/detokenize`, `/tokenizer_info`: text to token ids and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec.errors import SpecdecError
from specdec.models.tokenizer import ByteTokenizer
from specdec.serve.request_fields import parse, refused
from specdec.serve.schemas import DetokenizeFields, TokenizeChatFields, TokenizeFields
from specdec.serve.service import Service
from specdec.serve.text_request import check_prompt_size, read_model


def tokenized(body: Mapping[str, Any], service: Service) -> dict[str, Any]:
    """Return the token ids of a prompt or conversation."""
    names = [name for name in ("prompt", "content", "messages") if body.get(name) is not None]
    if len(names) != 1:
        found = " and ".join(names) or "neither prompt nor content nor messages"
        raise refused("prompt", f"the body has {found}; expected one of prompt, content and messages")
    fields: Any = parse(TokenizeChatFields if names == ["messages"] else TokenizeFields, body, service)
    read_model(fields.model, service)
    try:
        if names == ["messages"]:
            ids = chat_ids([message.for_template() for message in fields.messages], fields, service)
        else:
            ids = _text_ids(fields, service)
    except SpecdecError as error:
        raise service.refusal(error, {"prompt": names[0]}) from error
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": service.engine.n_text, "tokens": ids}
    if fields.return_token_strs:
        answer["token_strs"] = [service.texts.text(token) for token in ids]
    return answer


def _most_bytes(service: Service) -> int:
    return max(service.limits.n_tokenize_bytes, service.most_bytes)


def chat_ids(messages: list[dict[str, Any]], fields: Any, service: Service) -> list[int]:
    """Encode a conversation with the tools and template variables of a request's fields."""
    offered, template = fields.offered, service.target.chat_template
    variables = {} if template is None else fields.variables(template, tools=offered is not None)
    tools = None if offered is None else offered.for_template
    parts = {"messages": messages, "tools": tools or [], "chat_template_kwargs": variables}
    check_prompt_size(parts, service, _most_bytes(service))
    ids: list[int] = service.target.chat_ids(messages, tools=tools, **variables)
    return ids


def _text_ids(fields: TokenizeFields, service: Service) -> list[int]:
    """Encode a text; a text that is just a special token's name always becomes that token."""
    name, text = ("prompt", fields.prompt) if fields.prompt is not None else ("content", fields.content or "")
    check_prompt_size({name: text}, service, _most_bytes(service))
    # llama.cpp names the text "content" and adds special tokens only on request
    special = fields.add_special_tokens if fields.add_special_tokens is not None else name == "prompt"
    adds, tokenizer = special or fields.add_special, service.tokenizer
    if isinstance(tokenizer, ByteTokenizer) and not tokenizer.reads_special_tokens and not adds:
        token = tokenizer.special_tokens().get(text)
        if token is not None:
            return [token]
    return tokenizer.encode(text, add_bos=adds)


def detokenized(body: Mapping[str, Any], service: Service) -> dict[str, Any]:
    """Decode token ids; special tokens have no text."""
    fields = parse(DetokenizeFields, body, service)
    read_model(fields.model, service)
    text = service.tokenizer.decode(fields.tokens)
    return {"prompt": text, "content": text}


def tokenizer_info(service: Service) -> dict[str, Any]:
    """Return special tokens and chat template, for clients that encode prompts themselves."""
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
