"""Chat templates in the public formats of model families, written for these tests; conversations for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import specdec

Factory = Callable[..., Path]

CHATML = """
{%- set first = messages[0] %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {{- first['content'] if first['role'] == 'system' else 'You are a helpful assistant.' }}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if first['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + first['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first)
        or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

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

LLAMA_3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'
            + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.get("tool_calls")) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val | tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of system!") }}
    {%- endif %}
{%- endfor %}
"""

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

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

GRANITE = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "Knowledge Cutoff Date: April 2024.\\nYou are Granite." %}
    {%- if tools and documents %}
        {%- set system_message = system_message + " You have tools and documents." %}
    {%- elif tools %}
        {%- set system_message = system_message + " You have tools." %}
    {%- elif documents %}
        {%- set system_message = system_message + " You have documents." %}
    {%- endif %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
{%- if tools %}
    {{- '<|start_of_role|>tools<|end_of_role|>' }}
    {{- tools | tojson(indent=4) }}
    {{- '<|end_of_text|>\\n' }}
{%- endif %}
{%- if documents %}
    {{- '<|start_of_role|>documents<|end_of_role|>' }}
    {%- for document in documents %}
        {{- 'Document ' + loop.index0 | string + '\\n' }}
        {{- document['text'] }}
        {%- if not loop.last %}
            {{- '\\n\\n' }}
        {%- endif %}
    {%- endfor %}
    {{- '<|end_of_text|>\\n' }}
{%- endif %}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' }}
    {{- message['content'] + '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant' }}
        {%- if controls %}
            {{- ' ' + controls | tojson() }}
        {%- endif %}
        {{- '<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}"""

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

QWEN_3 = """
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if not ns.multi_step %}
        {%- break %}
    {%- endif %}
    {%- if message.role != "user" or message.content is not string %}
        {%- continue %}
    {%- endif %}
    {%- set content = message.content %}
    {%- if not (content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning_content) %}
            {{- '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

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
