"""`/v1/messages`: conversations, blocks, tools, streams and errors as in Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import specdec
from http_talk import JSON, ask
from scripted_engine import ScriptedEngine, serving
from scripted_models import write_scripted_model
from specdec import Engine, PromptCache
from specdec.errors import ContextLengthError, NotFiniteError
from specdec.serve import Server, ServerLimits, Service

PATH = "/v1/messages"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}<tool_call>{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
QUESTION = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
ASKED: dict[str, Any] = {"max_tokens": 100, "messages": [{"role": "user", "content": "2+2?"}]}
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOL: dict[str, Any] = {"name": "weather", "description": "of a place", "input_schema": PLACE}
CALL = 'I look. <tool_call>\n{"name": "weather", "arguments": {"place": "Köln"}}\n</tool_call>'


@pytest.fixture(scope="module")
def target(chatting_pair: tuple[specdec.Model, specdec.Model]) -> specdec.Model:
    return chatting_pair[0]


@pytest.fixture(scope="module")
def served(target: specdec.Model) -> Iterator[tuple[ScriptedEngine, Server]]:
    with serving(target, "Naïve 🙂.", limits=ServerLimits(event_s=0.0)) as (engine, server):
        yield engine, server


@pytest.fixture
def engine(served: tuple[ScriptedEngine, Server]) -> ScriptedEngine:
    engine = served[0]
    engine.text, engine.reason, engine.step, engine.n_before_error = "Naïve 🙂.", "stop", 2, 0
    engine.error = engine.refusal = None
    return engine


@pytest.fixture
def url(served: tuple[ScriptedEngine, Server], engine: ScriptedEngine) -> str:
    return served[1].url


def collected(events: list[Any]) -> dict[str, Any]:
    """The message that a stream's events build."""
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    message = events[0]["message"]
    for event in events[1:-1]:
        content, index = message["content"], event.get("index")
        if event["type"] == "content_block_start":
            assert index == len(content)
            content.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            name = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "json"}
            at = name[event["delta"]["type"]]
            content[index][at] += event["delta"]["partial_json" if at == "json" else at]
        elif event["type"] == "content_block_stop":
            if written := content[index].pop("json"):
                content[index]["input"] = json.loads(written)
        else:
            assert event["type"] == "message_delta"
            message |= event["delta"]
            message["usage"] = event["usage"]
    return message


@pytest.mark.parametrize("step", [1, 4, 1000])
def test_blocks_of_a_reply(url: str, engine: ScriptedEngine, step: int) -> None:
    engine.step, engine.text = step, CALL
    for tools, wanted, reason in (
        ([TOOL], [("text", "I look."), ("tool_use", {"place": "Köln"})], "tool_use"),
        ([], [("text", CALL)], "end_turn"),
    ):
        status, whole = ask(url, PATH, {**ASKED, "tools": tools})
        _, events = ask(url, PATH, {**ASKED, "tools": tools, "stream": True})
        assert status == 200
        for message in (whole, collected(events)):
            found = [(one["type"], one.get("input") or one.get("text")) for one in message["content"]]
            assert found == wanted and message["stop_reason"] == reason
            assert (message["type"], message["role"], message["stop_sequence"]) == (
                "message",
                "assistant",
                None,
            )
            assert message["usage"]["cache_read_input_tokens"] == 3  # of the scripted engine
            assert message["usage"]["output_tokens"] > 10
    engine.reason = "length"
    assert ask(url, PATH, ASKED)[1]["stop_reason"] == "max_tokens"


def test_a_conversation_reaches_the_template(url: str, engine: ScriptedEngine) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    text = {"type": "text", "text": "Look", **mark}
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"place": "Köln"}}
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "rain"}],
        **mark,
    }
    failed = {"type": "tool_result", "tool_use_id": "t2", "content": "no such place", "is_error": True}
    body = {
        "system": [{**text, "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
        "messages": [
            {"role": "user", "content": [text, {"type": "text", "text": "here"}]},
            {"role": "user", "content": "Now."},
            {"role": "assistant", "content": [thinking, {"type": "text", "text": "I look."}, use]},
            {"role": "assistant", "content": [{**use, "id": "t2"}]},
            {"role": "user", "content": [result, failed, {"type": "text", "text": "And?"}]},
        ],
        "max_tokens": 5, "stop_sequences": ["a"], "stop": ["b"], "temperature": 0.5, "top_k": 3,
        "metadata": {"user_id": "u"}, "service_tier": "auto",
        "tools": [{**TOOL, **mark, "type": "custom"}], **mark,
    }  # fmt: skip
    status, answer = ask(url, PATH, body)
    assert status == 200, answer
    asked = engine.asked[-1]
    function = {"name": "weather", "arguments": {"place": "Köln"}}
    calls = [{"id": name, "type": "function", "function": function} for name in ("t1", "t2")]
    assert asked["messages"] == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Look\nhere\nNow."},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no such place"},
        {"role": "user", "content": "And?"},
    ]
    described = {"name": "weather", "description": "of a place", "parameters": PLACE}
    assert asked["tools"] == [{"type": "function", "function": described}]
    assert (asked["max_new_tokens"], asked["stop"], asked["temperature"], asked["top_k"]) == (
        5,
        ["a", "b"],
        0.5,
        3,
    )
    counted = {name: body[name] for name in ("system", "messages", "tools")}
    assert ask(url, f"{PATH}/count_tokens", counted)[1] == {
        "input_tokens": len(engine.target.chat_ids(asked["messages"], tools=asked["tools"]))
    }
    assert ask(url, PATH, ASKED)[0] == 200 and engine.asked[-1]["temperature"] == 1.0


IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}
BAD: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens is missing", {"max_tokens": None}), ("max_tokens is 0", {"max_tokens": 0}),
    ("messages is missing", {"messages": None}), ("messages is []", {"messages": []}),
    ("messages[0].role is 'tool'", {"messages": [{"role": "tool", "content": "a"}]}),
    ("messages[0].content[0].type is 'image'", {"messages": [{"role": "user", "content": [IMAGE]}]}),
    ("messages[0].content[0].type is 'thinking'",
     {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "a"}]}]}),
    ("messages[0].content[0].input is missing",
     {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]}),
    ("stop_sequence is not a known field; did you mean stop_sequences?", {"stop_sequence": ["a"]}),
    ("stop_sequences[0] is ''", {"stop_sequences": [""]}), ("top_p is 2", {"top_p": 2}),
    ("tools[0].type is 'bash_20250124'", {"tools": [{"type": "bash_20250124", "name": "bash"}]}),
    ("tools[0].input_schema is missing", {"tools": [{"name": "a"}]}),
    ("tools has two functions 'weather'", {"tools": [TOOL, TOOL]}),
    ("tool_choice.type is 'required'", {"tools": [TOOL], "tool_choice": {"type": "required"}}),
    ("tool_choice.name is missing", {"tools": [TOOL], "tool_choice": {"type": "tool"}}),
    ("tool_choice names the function 'other'",
     {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}),
    ("tool_choice is given without tools", {"tool_choice": {"type": "any"}}),
    ("thinking.budget_tokens is missing", {"thinking": {"type": "enabled"}}),
    ("thinking.budget_tokens is 5", {"thinking": {"type": "adaptive", "budget_tokens": 5}}),
    ("thinking is enabled, but the model's chat template has no known reasoning format",
     {"thinking": {"type": "enabled", "budget_tokens": 5}}),
    ("output_config.effort is 'low', which the model's chat template does not read",
     {"output_config": {"effort": "low"}}),
    ("mcp_servers is a list", {"mcp_servers": [{}]}), ("service_tier is 'flex'", {"service_tier": "flex"}),
    ("system[0].type is 'image'", {"system": [IMAGE]}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "changes"), BAD)
def test_refusals(url: str, message: str, changes: dict[str, Any]) -> None:
    status, answer = ask(url, PATH, {**ASKED, **changes})
    assert status == 400 and answer.keys() == {"type", "error"} and answer["type"] == "error", answer
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"].startswith(message), answer


def test_errors_have_the_format_of_the_path(url: str, engine: ScriptedEngine, target: specdec.Model) -> None:
    for path, body, status, error_type in (
        (PATH, {**ASKED, "model": "other"}, 404, "not_found_error"),
        (PATH, b"{", 400, "invalid_request_error"),
        (f"{PATH}/count_tokens", {}, 400, "invalid_request_error"), (f"{PATH}/x", {}, 404, "not_found_error"),
    ):  # fmt: skip
        found, answer = ask(url, path, body)
        assert (found, answer["type"], answer["error"]["type"]) == (status, "error", error_type)
    engine.refusal = ContextLengthError("it is too long")
    assert ask(url, PATH, ASKED)[1]["error"] == {"type": "invalid_request_error", "message": "it is too long"}
    engine.refusal, engine.error, engine.n_before_error = None, NotFiniteError("x"), 2
    events = ask(url, PATH, {**ASKED, "stream": True})[1]
    assert events[-1]["type"] == "error" and events[-1]["error"]["type"] == "api_error"
    with serving(target, "a", api_key="secret") as (_, server):
        for headers, status in (({"X-Api-Key": "secret"}, 200), ({"X-Api-Key": "no"}, 401), ({}, 401)):
            found, answer = ask(server.url, PATH, ASKED, headers=JSON | headers)
            assert found == status and (status == 200 or answer["error"]["type"] == "authentication_error")


def reasoning_model(folder: Path, text: str) -> specdec.Model:
    specials = ["<|im_start|>", "<|im_end|>"]
    write_scripted_model(folder, QUESTION, text, specials, "<|im_end|>", n_ctx=192, chat_template=TEMPLATE)
    return specdec.load(folder, "f32")


def test_thinking(tmp_path: Path) -> None:
    """Blocks of its own, a budget, and off by the template or at once."""
    target = reasoning_model(tmp_path, "<think>\n2 and 2\n</think>\n\nFour.")
    with Engine(target, None, n_threads=1) as engine, Server(Service(engine, ["m"]), port=0) as server:

        def blocks(**more: Any) -> tuple[list[tuple[str, str]], int]:
            body = {**ASKED, "temperature": 0, **more}
            _, message = ask(server.url, PATH, body)
            streamed = collected(ask(server.url, PATH, {**body, "stream": True})[1])
            assert streamed["content"] == message["content"] and streamed["usage"] == message["usage"]
            found = [(one["type"], one[one["type"]]) for one in message["content"]]
            return found, message["usage"]["output_tokens_details"]["thinking_tokens"]

        wanted = [("thinking", "2 and 2"), ("text", "Four.")]
        assert blocks() == blocks(thinking={"type": "adaptive"}) == (wanted, 9)
        found, n = blocks(thinking={"type": "enabled", "budget_tokens": 4})
        assert found[0] == ("thinking", "2 a") and n == 4
        found, n = blocks(thinking={"type": "disabled"}, max_tokens=4)
        assert [one for one, _ in found] == ["text"] and n == 0
        wanted_json = {"format": {"type": "json_schema", "schema": {"const": [4]}}}
        assert blocks(output_config=wanted_json)[0] == [wanted[0], ("text", "[4]")]
        assert blocks(stop_sequences=["ou"])[0] == [wanted[0], ("text", "F")]
        _, message = ask(server.url, PATH, {**ASKED, "temperature": 0, "stop_sequences": ["ou"]})
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "ou")


# -------------------------------------------------------------------------------------- the real client


@pytest.fixture
def anthropic() -> Any:
    import anthropic

    return anthropic


def client_of(anthropic: Any, url: str) -> Any:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


@pytest.mark.oracle
def test_texts_equal_generate(anthropic: Any, chatting_pair: tuple[specdec.Model, specdec.Model]) -> None:
    """With the client of PyPI, whole and streamed; its types check every field, and the cache is counted."""
    from anthropic.types import Message, RawMessageStreamEvent
    from pydantic import TypeAdapter

    messages: Any = [{"role": "user", "content": "Once upon a time"}]
    wanted = specdec.generate(chatting_pair[0], None, messages=messages, max_new_tokens=25)
    cache = PromptCache(max_bytes=1 << 26)
    with (
        Engine(*chatting_pair, n_threads=1, prompt_cache=cache) as engine,
        Server(Service(engine, ["m"]), port=0) as server,
        client_of(anthropic, server.url) as client,
    ):
        asked: Any = {"model": "m", "max_tokens": 25, "messages": messages, "extra_body": {"temperature": 0}}
        for n_cached in (0, len(wanted.prompt_ids) - 1):
            message = client.messages.create(**asked)
            assert message.content[0].text == wanted.text and message.stop_reason == "max_tokens"
            usage = message.usage
            assert usage.input_tokens + usage.cache_read_input_tokens == len(wanted.prompt_ids)
            assert usage.cache_read_input_tokens == n_cached and usage.output_tokens == 25
        with client.messages.stream(**asked) as stream:
            assert "".join(stream.text_stream) == wanted.text
            assert stream.get_final_message().usage.output_tokens == 25
        counted = client.messages.count_tokens(model="m", messages=messages)
        assert counted.input_tokens == len(wanted.prompt_ids)
        body = {"model": "m", "max_tokens": 9, "messages": messages, "temperature": 0}
        TypeAdapter(Message).validate_python(ask(server.url, PATH, body)[1])
        for event in ask(server.url, PATH, {**body, "stream": True})[1]:
            TypeAdapter(RawMessageStreamEvent).validate_python(event)
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].role is 'wizard'"):
            client.messages.create(model="m", max_tokens=1, messages=[{"role": "wizard", "content": "a"}])
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="other", max_tokens=1, messages=messages)


@pytest.mark.oracle
def test_tools_of_the_client(anthropic: Any, target: specdec.Model) -> None:
    with serving(target, CALL) as (_, server), client_of(anthropic, server.url) as client:
        asked: Any = {"model": "m", "max_tokens": 99, "tools": [TOOL], "messages": list(ASKED["messages"])}
        asked["model"] = "mine"
        message = client.messages.create(**asked)
        assert [block.type for block in message.content] == ["text", "tool_use"]
        use = message.content[1]
        assert (use.name, use.input, message.stop_reason) == ("weather", {"place": "Köln"}, "tool_use")
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain"}
        asked["messages"] += [
            {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}
        ]  # fmt: skip
        with client.messages.stream(**asked) as stream:
            assert stream.get_final_message().content[1].input == {"place": "Köln"}


@pytest.mark.oracle
def test_a_forced_tool(anthropic: Any, chatting_pair: tuple[specdec.Model, specdec.Model]) -> None:
    schema = {**PLACE, "properties": {"place": {"enum": ["Köln", "Bonn"]}}, "additionalProperties": False}
    with (
        Engine(*chatting_pair, n_threads=1) as engine,
        Server(Service(engine, ["m"]), port=0) as server,
        client_of(anthropic, server.url) as client,
    ):
        for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
            message = client.messages.create(
                model="m", max_tokens=60, messages=ASKED["messages"],
                tools=[{**TOOL, "input_schema": schema}],
                tool_choice={**choice, "disable_parallel_tool_use": True},
            )  # fmt: skip
            (use,) = message.content
            assert use.input["place"] in ("Köln", "Bonn") and message.stop_reason == "tool_use"
