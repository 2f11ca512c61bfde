"""Chat templates in the public formats of model families, written for these tests; conversations for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import specdec

Factory = Callable[..., Path]


def _template(name: str) -> str:
    return (Path(__file__).parents[1] / "data" / "chat_templates" / f"{name}.jinja").read_bytes().decode()


CHATML = _template("chatml")

LLAMA_2 = _template("llama_2")

LLAMA_3 = _template("llama_3")

MISTRAL = _template("mistral")

GEMMA = _template("gemma")

PHI_3 = _template("phi_3")

SMOLLM = _template("smollm")

ZEPHYR = _template("zephyr")

GRANITE = _template("granite")

COHERE = {name: _template(f"cohere_{name}") for name in ["default", "rag", "tool_use"]}

QWEN_3 = _template("qwen_3")

TEMPLATES: dict[str, tuple[str | dict[str, str], dict[str, str], str]] = {
    "qwen2.5": (CHATML, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}, "<|im_end|>"),
    "llama 2": (LLAMA_2, {"bos_token": "<s>", "eos_token": "</s>"}, "</s>"),
    "llama 3": (LLAMA_3, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}, "<|eot_id|>"),
    "mistral": (MISTRAL, {"bos_token": "<s>", "eos_token": "</s>"}, "</s>"),
    "gemma": (GEMMA, {"bos_token": "<bos>", "eos_token": "<eos>"}, "<end_of_turn>"),
    "phi-3": (PHI_3, {"bos_token": "<s>", "eos_token": "<|endoftext|>"}, "<|end|>"),
    "smollm": (SMOLLM, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}, "<|im_end|>"),
    "zephyr": (ZEPHYR, {"bos_token": "<s>", "eos_token": "</s>"}, "</s>"),
    "granite": (GRANITE, {"bos_token": "<|end_of_text|>", "eos_token": "<|end_of_text|>"}, "<|end_of_text|>"),
    "cohere": (
        COHERE,
        {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"},
        "<|END_OF_TURN_TOKEN|>",
    ),
    "qwen3": (QWEN_3, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}, "<|im_end|>"),
}
"""Of each family: template or templates, special tokens, the token that ends a message."""

_NAMED = {token for _, tokens, end in TEMPLATES.values() for token in [*tokens.values(), end]}
SPECIAL_TOKENS = sorted(_NAMED | {
    "<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "[INST]", "[/INST]", "<start_of_turn>",
    "<|user|>", "<|system|>", "<|assistant|>", "<|start_of_role|>", "<|end_of_role|>",
    "<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>",
})  # fmt: skip

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather at a place: <b>now</b> & later, 'täglich'",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["place"],
        },
    },
}
DOCUMENTS = [{"title": "Tides", "text": "The moon pulls."}, {"title": "Winds", "text": "The sun heats.\n"}]


def said(*contents: Any, system: str | None = None) -> list[dict[str, Any]]:
    """A conversation in which user and assistant take turns."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    return messages + [
        {"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)
    ]


CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "weather", "arguments": {"place": "Köln"}},
}
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
        named = [{"name": name, "template": text} for name, text in templates.items()]  # type: ignore[assignment]
    n_vocab = 256 + len(SPECIAL_TOKENS)
    folder = make_llama(
        vocab_size=n_vocab, max_position_embeddings=2048, bos_token_id=..., eos_token_id=..., **changes
    )
    return specdec.load(write_tokenizer(folder, chat_template=named, **tokens))


def chatting_pair() -> tuple[specdec.Model, specdec.Model]:
    """The embedded pair, with a template that knows tools."""
    target, draft = specdec.embedded_pair()
    template = TEMPLATES["qwen2.5"][0]
    assert isinstance(template, str)
    return target.with_chat_template(template), draft
