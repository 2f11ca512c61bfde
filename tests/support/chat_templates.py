"""Chat templates in the public formats of model families, and conversations; written for these tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import specdec
from trained import small_pair

Factory = Callable[..., Path]


def _template(name: str) -> str:
    return (Path(__file__).parents[1] / "data" / "chat_templates" / f"{name}.jinja").read_bytes().decode()


COHERE = {name: _template(f"cohere_{name}") for name in ["default", "rag", "tool_use"]}
_NAMES = ("bos_token", "eos_token", "pad_token")


def _family(template: str | dict[str, str], end: str, *tokens: str | None) -> tuple[Any, dict[str, str], str]:
    named = zip(_NAMES, tokens, strict=False)
    return template, {name: token for name, token in named if token is not None}, end


TEMPLATES: dict[str, tuple[Any, dict[str, str], str]] = {
    "qwen2.5": _family(_template("chatml"), "<|im_end|>", None, "<|im_end|>", "<|endoftext|>"),
    "llama 2": _family(_template("llama_2"), "</s>", "<s>", "</s>"),
    "llama 3": _family(_template("llama_3"), "<|eot_id|>", "<|begin_of_text|>", "<|eot_id|>"),
    "mistral": _family(_template("mistral"), "</s>", "<s>", "</s>"),
    "gemma": _family(_template("gemma"), "<end_of_turn>", "<bos>", "<eos>"),
    "phi-3": _family(_template("phi_3"), "<|end|>", "<s>", "<|endoftext|>"),
    "smollm": _family(_template("smollm"), "<|im_end|>", "<|im_start|>", "<|im_end|>"),
    "zephyr": _family(_template("zephyr"), "</s>", "<s>", "</s>"),
    "granite": _family(_template("granite"), "<|end_of_text|>", "<|end_of_text|>", "<|end_of_text|>"),
    "cohere": _family(COHERE, "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "qwen3": _family(_template("qwen_3"), "<|im_end|>", None, "<|im_end|>", "<|endoftext|>"),
}
"""(template or templates, special tokens, end token of a message) of each family."""

_NAMED = {token for _, tokens, end in TEMPLATES.values() for token in [*tokens.values(), end]}
SPECIAL_TOKENS = sorted(_NAMED | {
    "<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "[INST]", "[/INST]", "<start_of_turn>",
    "<|user|>", "<|system|>", "<|assistant|>", "<|start_of_role|>", "<|end_of_role|>",
    "<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>",
})  # fmt: skip

_PLACE = {"place": {"type": "string"}, "days": {"type": "integer"}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather", "description": "The weather at a place: <b>now</b> & later, 'täglich'",
        "parameters": {"type": "object", "properties": _PLACE, "required": ["place"]},
    },
}  # fmt: skip
DOCUMENTS = [{"title": "Tides", "text": "The moon pulls."}, {"title": "Winds", "text": "The sun heats.\n"}]


def said(*contents: Any, system: str | None = None) -> list[dict[str, Any]]:
    """Make a conversation with alternating user and assistant."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    return messages + [
        {"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)
    ]


_CALLED = {"name": "weather", "arguments": {"place": "Köln"}}
CALL = {"id": "abcdefghi", "type": "function", "function": _CALLED}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "question": said("Hello, who are you?"),
    "system": said(" Hi \n", system="Be brief.\n"),
    "turns": said("1+1?", "2", "And <b>&amp;</b> 走了 🙂?", " it is  \n", "  Thanks "),
    "reply": said("Write a poem", "Roses are red,"),
    "reply with space": said("Write a poem", " Roses are red, \n"),
    "reply with system": said("Write", "Once  ", system="You write."),
    "reasoning": [*said("2+2?"), {"role": "assistant", "content": "4", "reasoning_content": "two and two"}],
    "thinking": said("2+2?", "<think>\nhm\n</think>\n\n4", "Why?"),
    "tools": [
        *said("Weather?"),
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "name": "weather", "content": "rain"},
    ],
    "out of turn": [{"role": "assistant", "content": "I begin"}, {"role": "assistant", "content": "again"}],
    "no role": [{"content": "x"}],
    "no content": [{"role": "user"}],
    "blocks": [{"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image"}]}],
}


def library_tokenizer(specials: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    return tokenizer


def write_tokenizer(folder: Path, specials: list[str] = SPECIAL_TOKENS, **settings: Any) -> Path:
    library_tokenizer(specials).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def make_chat(make_llama: Factory, family: str, **changes: Any) -> specdec.Model:
    templates, tokens, _ = TEMPLATES[family]
    named = templates
    if isinstance(templates, dict):
        named = [{"name": name, "template": text} for name, text in templates.items()]
    n_vocab = 256 + len(SPECIAL_TOKENS)
    folder = make_llama(
        vocab_size=n_vocab, max_position_embeddings=2048, bos_token_id=..., eos_token_id=..., **changes
    )
    return specdec.load(write_tokenizer(folder, chat_template=named, **tokens))


def chatting_pair() -> tuple[specdec.Model, specdec.Model]:
    """Embedded pair with a chat template that supports tools."""
    target, draft = small_pair()
    return target.with_chat_template(TEMPLATES["qwen2.5"][0]), draft
