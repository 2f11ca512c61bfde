"""Calls of tools in the texts of models, in the forms of each family, cut into pieces in any way."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from chat_templates import TEMPLATES
from specdec.serve.call_formats import CALL_FORMATS, call_format_of, call_reader
from specdec.serve.tool_calls import Said, ToolCall
from specdec.serve.tool_fields import Tools

WEATHER: dict[str, Any] = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
    },
}
TOOLS = Tools({"weather": WEATHER, "stop": {"name": "stop"}})
KOELN = ToolCall("weather", '{"place": "Köln", "days": 2}')
STOP = ToolCall("stop", "{}")
ARGUMENTS = '{"place": "Köln", "days": 2}'
OBJECT = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'

CASES: list[tuple[str, str, list[Said]]] = [
    ("hermes", f"<tool_call>\n{OBJECT}\n</tool_call>", [KOELN]),
    (
        "hermes",
        f'I look.\n<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>{{"name": "stop"}}</tool_call>\n',
        ["I look.", KOELN, STOP],
    ),
    ("hermes", "1 < 2 <tool_ is no call ", ["1 < 2 <tool_ is no call "]),
    ("hermes", "<tool_call>{broken</tool_call> then", ["<tool_call>{broken</tool_call> then"]),
    (
        "hermes",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        ['<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'],
    ),
    ("hermes", f"<tool_call>{OBJECT}", [KOELN]),  # the text was cut behind the call
    ("hermes", '<tool_call>{"name": "wea', ['<tool_call>{"name": "wea']),
    ("hermes", f"a<tool_call>{OBJECT}</tool_call>\n b  c ", ["a", KOELN, "b  c"]),
    (
        "xml",
        "<tool_call>\n<function=weather>\n<parameter=place>\nKöln\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n</function>\n</tool_call>",
        [KOELN],
    ),
    ("xml", "<tool_call>\n<function=stop>\n</function>\n</tool_call>", [STOP]),
    ("mistral", f"[TOOL_CALLS] [{OBJECT}]", [KOELN]),
    ("mistral", f'[TOOL_CALLS][{OBJECT}, {{"name": "stop", "arguments": {{}}}}]', [KOELN, STOP]),
    (
        "mistral",
        f"Well. [TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]stop[ARGS]{{}}",
        ["Well.", KOELN, STOP],
    ),
    ("llama", f'{{"name": "weather", "parameters": {ARGUMENTS}}}', [KOELN]),
    (
        "llama",
        f'<|python_tag|>{{"name": "weather", "parameters": {ARGUMENTS}}}; {{"name": "stop"}}',
        [KOELN, STOP],
    ),
    ("llama", '{"a": 1} is JSON', ['{"a": 1} is JSON']),
    ("llama", " Hello ", [" Hello "]),
    ("granite", f"<|tool_call|>[{OBJECT}]<|/tool_call|>", [KOELN]),
    ("granite", f"<|tool_call|>[{OBJECT}]", [KOELN]),
    ("json", f"[{OBJECT}]", [f"[{OBJECT}]"]),
    ("json", OBJECT, [KOELN]),
    ("json", '{"name": "weather", "arguments": "{\\"place\\": \\"Köln\\", \\"days\\": 2}"}', [KOELN]),
]


def joined(said: list[Said]) -> list[Said]:
    """Texts in a row as one."""
    found: list[Said] = []
    for one in said:
        if isinstance(one, str) and found and isinstance(found[-1], str):
            found[-1] += one
        else:
            found.append(one)
    return found


def read(name: str, pieces: list[str], tools: Tools = TOOLS) -> list[Said]:
    reader = call_reader(tools, name)
    said = [one for piece in pieces for one in reader.feed(piece)]
    return joined([*said, *reader.finish()])


@pytest.mark.parametrize(("name", "text", "wanted"), CASES)
def test_texts_are_taken_apart_however_they_come(name: str, text: str, wanted: list[Said]) -> None:
    assert read(name, [text]) == wanted
    assert read(name, list(text)) == wanted
    generator = random.Random(1)
    for _ in range(20):
        cuts = sorted(generator.randrange(len(text) + 1) for _ in range(generator.randrange(6)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert read(name, pieces) == wanted


def test_one_call_where_more_are_not_wanted() -> None:
    tools = Tools(TOOLS.functions, parallel=False)
    text = f'<tool_call>{OBJECT}</tool_call><tool_call>{{"name": "stop"}}</tool_call>'
    assert read("hermes", list(text), tools) == [KOELN]
    assert read("mistral", [f"[TOOL_CALLS][{OBJECT}, {OBJECT}]"], tools) == [KOELN]


def test_calls_that_have_to_be() -> None:
    named = Tools({"weather": WEATHER}, "named")
    assert named.schema() == WEATHER["parameters"]
    assert read("hermes", list(ARGUMENTS), named) == [KOELN]
    required = Tools(TOOLS.functions, "required", parallel=False)
    schema = required.schema()
    assert schema["maxItems"] == 1 and len(schema["items"]["anyOf"]) == 2
    assert read("hermes", [f"[{OBJECT}]"], required) == [KOELN]
    assert read("hermes", [f"[{OBJECT}"], required) == [KOELN]  # it was cut behind the call
    both = Tools(TOOLS.functions, "required")
    text = f'[{OBJECT}, {{"name": "stop", "arguments": {{}}}}]'
    assert read("hermes", list(text), both) == read("hermes", [text], both) == [KOELN, STOP]
    for n in range(len(text)):  # cut off anywhere: the calls that are complete, and nothing else
        n_complete = (n >= len(OBJECT) + 1) + (n >= len(text) - 1)
        assert read("hermes", list(text[:n]), both) == [KOELN, STOP][:n_complete]
    assert read("hermes", [ARGUMENTS[:-1]], named) == []


@pytest.mark.parametrize(
    ("family", "name"),
    [("qwen2.5", "hermes"), ("mistral", "mistral"), ("llama 3", "llama"), ("gemma", "json")],
)
def test_a_template_says_how_calls_are_written(family: str, name: str) -> None:
    templates = TEMPLATES[family][0]
    assert isinstance(templates, str)
    assert call_format_of(templates) == name
    assert name in CALL_FORMATS


def test_arguments_are_json() -> None:
    for _, _, wanted in CASES:
        for one in wanted:
            if isinstance(one, ToolCall):
                assert isinstance(json.loads(one.arguments), dict)
