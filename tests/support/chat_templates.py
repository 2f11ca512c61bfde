"""Chat templates in the public formats of model families, written for these tests; conversations for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import specdec

Factory = Callable[..., Path]


def _read(name: str) -> str:
    """A template of tests/data, less the end of its last line."""
    path = Path(__file__).parents[1] / "data" / "chat_templates" / f"{name}.jinja"
    return path.read_text(encoding="utf-8").removesuffix("\n")


CHATML = _read("chatml")
LLAMA_3 = _read("llama_3")
MISTRAL = _read("mistral")
ZEPHYR = _read("zephyr")
GRANITE = _read("granite")
QWEN_3 = _read("qwen_3")

LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
    "{% set system = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set system = false %}"
    "{% endif %}{% for message in rest %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system != false %}"
    "{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}"
    "{% endfor %}"
)

GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)

PHI_3 = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}"
    "{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}"
    "{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)

SMOLLM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_COHERE_TURN = "<|START_OF_TURN_TOKEN|>"
COHERE = {
    "default": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set system_message = messages[0]['content'] %}{% elif false == true %}"
        "{% set loop_messages = messages %}{% set system_message = 'You are Command-R.' %}{% else %}"
        "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
        "{% if system_message != false %}{{ '" + _COHERE_TURN + "<|SYSTEM_TOKEN|>' + system_message "
        "+ '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% for message in loop_messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
        "{% set content = message['content'] %}{% if message['role'] == 'user' %}"
        "{{ '" + _COHERE_TURN + "<|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}"
        "{% elif message['role'] == 'assistant' %}"
        "{{ '" + _COHERE_TURN + "<|CHATBOT_TOKEN|>'  + content.strip() + '<|END_OF_TURN_TOKEN|>' }}"
        "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '" + _COHERE_TURN + "<|CHATBOT_TOKEN|>' }}{% endif %}"
    ),
    "rag": (
        "{{ bos_token }}{% for message in messages %}{{ '" + _COHERE_TURN + "<|' + message['role'] | upper "
        "+ '_TOKEN|>' + message['content'].strip() + '<|END_OF_TURN_TOKEN|>' }}{% endfor %}"
        "{{ '" + _COHERE_TURN + "<|SYSTEM_TOKEN|><results>' }}"
        "{% for document in documents %}{{ '\\nDocument: ' }}"
        "{{ loop.index0 }}\n{% for key, value in document.items() %}{{ key }}: {{ value }}\n{% endfor %}"
        "{% endfor %}{{ '</results><|END_OF_TURN_TOKEN|>' }}"
        "{% if add_generation_prompt %}{{ '" + _COHERE_TURN + "<|CHATBOT_TOKEN|>' }}{% endif %}"
    ),
    "tool_use": (
        "{{ bos_token }}{%- macro kind(schema) -%}"
        "{{ {'string': 'str', 'integer': 'int'}[schema.type] or 'Any' }}"
        "{%- endmacro -%}{% for tool in tools %}{{ 'def ' + tool.function.name + '(' }}"
        "{%- for name, schema in tool.function.parameters.properties | dictsort -%}"
        "{{ ', ' if loop.index > 1 }}{{ name }}: {{ kind(schema) }}{%- endfor -%}{{ '):\\n    pass\\n' }}"
        "{% endfor %}{% for message in messages if message.content %}{{ '" + _COHERE_TURN + "<|'"
        " + message['role'] | upper + '_TOKEN|>' + message['content'].strip() + '<|END_OF_TURN_TOKEN|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '" + _COHERE_TURN + "<|CHATBOT_TOKEN|>' }}{% endif %}"
    ),
}

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
    "<|user|>", "<|system|>", "<|assistant|>", "<|start_of_role|>", "<|end_of_role|>", _COHERE_TURN,
    "<|CHATBOT_TOKEN|>",
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
