"""Tool calls in model output, in the syntax of each family, split anywhere."""

from __future__ import annotations

import json
import time
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_templates import TEMPLATES
from specdec.models.tokenizer import MarkSpelling
from specdec.serve.reply_readers import (
    TOOL_FORMATS,
    Reasoning,
    Said,
    ToolCall,
    Tools,
    tool_format_of,
)
from specdec.serve.reply_reading import reply_reader

PROPERTIES = {"place": {"type": "string"}, "days": {"type": "integer"}}
WEATHER: dict[str, Any] = {"name": "weather", "parameters": {"type": "object", "properties": PROPERTIES}}
TOOLS = Tools({"weather": WEATHER, "stop": {"name": "stop"}})
KOELN = ToolCall("weather", '{"place": "Köln", "days": 2}')
STOP = ToolCall("stop", "{}")
ARGUMENTS = '{"place": "Köln", "days": 2}'
OBJECT = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
STOP_OBJECT = '{"name": "stop"}'


def marked(text: str) -> str:
    return f"<tool_call>{text}</tool_call>"


def call(arguments: str) -> str:
    return f'{{"name": "weather", "arguments": {arguments}}}'


def to(name: str, content: str, end: str = "<|call|>") -> str:
    """A harmony message to a function."""
    return f"<|channel|>commentary to={name}<|message|>{content}{end}"


def weather(arguments: str) -> ToolCall:
    return ToolCall("weather", arguments)


PYTHON, BROKEN = to("python", "1 + 1"), to("functions.weather", "{broken")
UNKNOWN, LISTED = marked('{"name": "unknown"}'), marked('{"name": "stop", "arguments": [1]}')
OPEN = f'<tool_call>{{"name": "weather</tool_call>, {marked(OBJECT)} b</tool_call>'
CASES: list[tuple[str, str, list[Said]]] = [
    ("hermes", marked(f"\n{OBJECT}\n"), [KOELN]),
    ("hermes", f"I look.\n{marked(OBJECT)}\n{marked(STOP_OBJECT)}\n", ["I look.", KOELN, STOP]),
    ("hermes", "1 < 2 <tool_ is no call ", ["1 < 2 <tool_ is no call "]),
    ("hermes", "<tool_call>{broken</tool_call> then", ["<tool_call>{broken</tool_call> then"]),
    ("hermes", UNKNOWN, [UNKNOWN]),
    ("hermes", f"<tool_call>{OBJECT}", [KOELN]),  # the text was cut after the call
    ("hermes", '<tool_call>{"name": "wea', ['<tool_call>{"name": "wea']),
    ("hermes", f"a{marked(OBJECT)}\n b  c ", ["a", KOELN, "\n b  c"]),
    ("hermes", f" \n{marked(OBJECT)}\n b", [KOELN, "b"]),
    ("hermes", f"a\n{marked(OBJECT)}\n{marked(OBJECT)}\nb", ["a", KOELN, KOELN, "\n\n\nb"]),
    ("hermes", marked(call('{"place": "a\n\tb"}')), [weather('{"place": "a\\n\\tb"}')]),
    ("hermes", marked(call('{"place": "</tool_call>\\"</tool_call>"}')) + ".",
     [weather('{"place": "</tool_call>\\"</tool_call>"}'), "."]),
    ("hermes", OPEN, ['<tool_call>{"name": "weather</tool_call>,', KOELN, "  b</tool_call>"]),
    *[("hermes", marked(f'{{"name": "stop", "arguments": {one}}}'), [STOP])
      for one in ("null", '""', '"null"')],
    ("hermes", LISTED, [LISTED]),
    ("xml", marked('<function=weather><parameter=place>\n"</tool_call>\n</parameter></function>'),
     [weather('{"place": "\\"</tool_call>"}')]),
    ("xml", marked("\n<function=weather>\n<parameter=place>\nKöln\n</parameter>\n<parameter=days>\n2\n"
                   "</parameter>\n</function>\n"), [KOELN]),
    ("xml", marked("\n<function=stop>\n</function>\n"), [STOP]),
    ("mistral", '[TOOL_CALLS]weather{"place": "[TOOL_CALLS]"}[TOOL_CALLS]stop{}',
     [weather('{"place": "[TOOL_CALLS]"}'), STOP]),
    ("mistral", f"[TOOL_CALLS] [{OBJECT}]", [KOELN]),
    ("mistral", f'[TOOL_CALLS][{OBJECT}, {{"name": "stop", "arguments": {{}}}}]', [KOELN, STOP]),
    ("mistral", f"Well. [TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]stop[ARGS]{{}}",
     ["Well.", KOELN, STOP]),
    ("llama", '{"name": "stop", "parameters": null}', [STOP]),
    ("llama", f'{{"name": "weather", "parameters": {ARGUMENTS}}}', [KOELN]),
    ("llama", f'<|python_tag|>{{"name": "weather", "parameters": {ARGUMENTS}}}; {STOP_OBJECT}',
     [KOELN, STOP]),
    ("llama", '{"a": 1} is JSON', ['{"a": 1} is JSON']),
    ("llama", " Hello ", [" Hello "]),
    ("granite", f"<|tool_call|>[{OBJECT}]<|/tool_call|>", [KOELN]),
    ("granite", f"<|tool_call|>[{OBJECT}]", [KOELN]),
    ("json", call('{"place": "a\nb"}'), [weather('{"place": "a\\nb"}')]),
    ("json", f"[{OBJECT}]", [f"[{OBJECT}]"]),
    ("json", OBJECT, [KOELN]),
    ("json", call(json.dumps(ARGUMENTS)), [KOELN]),
    ("harmony", "<|channel|>analysis<|message|>Hm.\n<|end|>"
                "<|start|>assistant<|channel|>final<|message|> Four. <|return|>",
     [Reasoning("Hm.\n"), " Four. "]),
    ("harmony", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
                f"to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>", ["I look.", KOELN]),
    ("harmony", f" to=functions.weather<|channel|>commentary json<|message|>{ARGUMENTS}<|end|>"
                "<|start|>assistant to=functions.stop<|channel|>analysis<|message|><|call|>", [KOELN, STOP]),
    ("harmony", PYTHON, [PYTHON]),  # a tool that was not offered
    ("harmony", BROKEN, [BROKEN]),
    ("harmony", to("functions.weather", ARGUMENTS, ""), [KOELN]),
    ("harmony", '{"a": 1} has no channel', ['{"a": 1} has no channel']),
    ("harmony", " to", [" to"]),
    ("harmony", "<|channel|>analysis<|message|>I do not<|end|><|start|>assis", [Reasoning("I do not")]),
    ("harmony",  # a message whose beginning is missing, and two of one channel
     "<|channel|>analysis<|message|>a<|end|><|channel|>analysis<|message|>b<|end|>"
     "<|channel|>commentary<|message|>c<|end|><|channel|>final<|message|>d", [Reasoning("a\nb"), "c\nd"]),
]  # fmt: skip


def joined(said: list[Said]) -> list[Said]:
    """Texts in a row as one, and reasoning."""
    found: list[Said] = []
    for kind, parts in groupby(said, type):
        if kind is ToolCall:
            found += parts
        else:
            text = "".join(part if isinstance(part, str) else part.text for part in parts)  # type: ignore[union-attr]
            found.append(Reasoning(text) if kind is Reasoning else text)
    return found


def read(
    name: str, pieces: list[str], tools: Tools | None = TOOLS, spelling: MarkSpelling | None = None,
    begun: str | None = None,
) -> list[Said]:  # fmt: skip
    reader = reply_reader(tools, name, spelling, begun)
    assert reader is not None
    return joined([*(one for piece in pieces for one in reader.feed(piece)), *reader.finish()])


def cut_up(text: str, cuts: list[int]) -> list[str]:
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize(("name", "text", "wanted"), CASES)
def test_texts_are_taken_apart(name: str, text: str, wanted: list[Said]) -> None:
    assert all(isinstance(json.loads(one.arguments), dict) for one in wanted if isinstance(one, ToolCall))
    assert read(name, [text]) == wanted
    assert read(name, list(text)) == wanted


def test_numbers_that_json_has_not_are_no_arguments() -> None:
    """Clients parse the arguments as JSON."""
    for number in ("NaN", "-Infinity", "1e999"):
        arguments, tags = f'{{"days": {number}}}', f"<parameter=days>{number}</parameter>"
        for name, text in (
            ("hermes", marked(call(arguments))), ("mistral", f"[TOOL_CALLS]{call(arguments)}"),
            ("json", call(arguments)), ("harmony", to("functions.weather", arguments)),
            ("xml", marked(f"<function=weather>{tags}</function>")),
        ):  # fmt: skip
            assert read(name, [text]) == [text], name


def test_arguments_that_are_nested_as_deep_as_the_stack() -> None:
    for n in range(850, 1010):
        lists = "[" * n + "]" * n
        for text in (f'{{"name": "stop", "arguments": {{"a": {lists}}}}}', '{"name": "stop"}'):
            said = read("hermes", [f"<tool_call>{text}</tool_call>"])
            assert said == [f"<tool_call>{text}</tool_call>"] or isinstance(said[0], ToolCall)


def test_one_call_where_more_are_not_wanted() -> None:
    tools = Tools(TOOLS.functions, parallel=False)
    text = marked(OBJECT) + marked(STOP_OBJECT)
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
    assert read("hermes", [f"[{OBJECT}"], required) == [KOELN]  # it was cut after the call
    both = Tools(TOOLS.functions, "required")
    text = f'[{OBJECT}, {{"name": "stop", "arguments": {{}}}}]'
    assert read("hermes", list(text), both) == read("hermes", [text], both) == [KOELN, STOP]
    long = json.dumps([{"name": "stop", "arguments": {"a": [{}] * 20_000}}])  # a brace closes at each item
    begun = time.process_time()
    assert len(read("hermes", [long[i : i + 8] for i in range(0, len(long), 8)], both)) == 1
    assert time.process_time() - begun < 5.0  # parsing again at each brace would take minutes
    for n in range(len(text)):  # cut off anywhere: only complete calls
        n_complete = (n >= len(OBJECT) + 1) + (n >= len(text) - 1)
        assert read("hermes", list(text[:n]), both) == [KOELN, STOP][:n_complete]
    # Clients get the text of arguments, so it must be strictly valid JSON.
    for text in (ARGUMENTS[:-1], '{"place": "a\nb"}', '{"place": "a\x00b"}'):
        assert read("hermes", [text], named) == []
    for text in ("null", r'{"place": "a\nb"}'):
        assert read("hermes", [text], named) == [ToolCall("weather", text)]


def test_a_template_says_how_calls_are_written() -> None:
    names = {"qwen2.5": "hermes", "mistral": "mistral", "llama 3": "llama", "gemma": "json"}
    assert {family: tool_format_of(TEMPLATES[family][0]) for family in names} == names


def test_the_first_end_mark_is_one_where_no_later_one_ends_a_call() -> None:
    text = '<tool_call>{"name": "</tool_call>' * 4_000  # whose strings are open
    assert read("hermes", [text]) == [text]


FRAGMENTS = [mark for one in TOOL_FORMATS.values() for mark in one.marks]
FRAGMENTS += [
    '{"name": "stop"', '{"name": "weather", ', '"arguments": ', '"parameters": ', "{}", '{"place": "', '"}',
    "}", "[", "]", "\\", '"', "null", " ", "\n", "stop", "<function=stop>", "</function>",
    "<parameter=place>", "</parameter>", "text", "assistant", "final", "analysis", "commentary",
    " to=functions.stop", "<", "|", OBJECT, STOP_OBJECT,
]  # fmt: skip


@given(
    name=st.sampled_from(sorted(TOOL_FORMATS)),
    text=st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join),
    cuts=st.lists(st.integers(0, 300), max_size=8),
    parallel=st.booleans(),
)
@settings(deadline=None, max_examples=500)
def test_any_text_is_read_alike_however_it_comes(
    name: str, text: str, cuts: list[int], parallel: bool
) -> None:
    """Calls have names that were offered and objects as arguments; a text without calls stays as it is."""
    tools = Tools(TOOLS.functions, parallel=parallel)
    whole = read(name, [text], tools)
    assert read(name, cut_up(text, cuts), tools) == whole
    calls = [one for one in whole if isinstance(one, ToolCall)]
    assert all(one.name in TOOLS.functions for one in calls)
    assert all(isinstance(json.loads(one.arguments), dict) for one in calls)
    assert len(calls) <= 1 or parallel
    if not calls and not TOOL_FORMATS[name].begin:
        assert "".join(one for one in whole if isinstance(one, str)) == text


def test_a_header_that_the_prompt_has_begun() -> None:
    for begun, text in (
        ("assistant<|channel|>", "analysis<|message|>a"),
        ("assistant<|channel|>ana", "lysis<|message|>a"),
    ):
        assert read("harmony", [text + "<|end|>b"], None, begun=begun) == [Reasoning("a"), "b"]


def test_marks_without_a_name_reach_no_text() -> None:
    for names in ([], ["<b>"]):
        spelling = MarkSpelling.of({"<a>": 5, "<b>": 6}, names)
        assert spelling.named(f"x{spelling.mark(5)}y{spelling.mark(6)}") == "xy" + "".join(names)
        assert spelling.without_marks(f"x{spelling.mark(5)}y{spelling.mark(6)}") == "xy"


def test_marks_that_are_special_tokens_are_no_text() -> None:
    """Where a tokenizer has them, their names in a text are a text."""
    names = {"<tool_call>": 300, "</tool_call>": 301, "<|message|>": 302, "<|channel|>": 303, "<|end|>": 304}
    spelling = MarkSpelling.of(names, names, others=False)
    mark = {name: spelling.mark(token) for name, token in names.items()}
    begin, end = mark["<tool_call>"], mark["</tool_call>"]
    text = f"<tool_call>a</tool_call>{begin}{OBJECT}{end}{end}b"
    assert read("hermes", [text], spelling=spelling) == ["<tool_call>a</tool_call>", KOELN, "</tool_call>b"]
    text = f"{mark['<|channel|>']}final{mark['<|message|>']}It ends with <|end|>.{mark['<|end|>']}"
    assert read("harmony", [text], None, spelling) == ["It ends with <|end|>."]
    assert reply_reader(None, "hermes") is None
