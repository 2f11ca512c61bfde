"""The `openai` client against the server: all that it sends is understood, all that it reads is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import specdec
from http_talk import ask
from scripted_engine import serving
from specdec import Engine
from specdec.serve import Server, Service

pytestmark = pytest.mark.oracle

PROMPT = "It was a dark and stormy night"
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOL: Any = {"name": "weather", "description": "The weather of a place.", "parameters": PLACE}
CALL = 'I look. <tool_call>\n{"name": "weather", "arguments": {"place": "Köln"}}\n</tool_call>'


def openai_client(server: Server, key: str = "none") -> Any:
    import openai

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def target(chatting_pair: tuple[specdec.Model, specdec.Model]) -> specdec.Model:
    return chatting_pair[0]


@pytest.fixture(scope="module")
def client(chatting_pair: tuple[specdec.Model, specdec.Model]) -> Iterator[Any]:
    with Engine(*chatting_pair, n_slots=4, n_threads=1) as engine:
        service = Service(engine, ["mine"], draft_name="small")
        with Server(service, port=0, api_key="secret") as server, openai_client(server, "secret") as client:
            assert [model.id for model in client.models.list()] == ["mine"]
            yield client


@pytest.fixture(scope="module")
def calling(target: specdec.Model) -> Iterator[Any]:
    """A client of a model that always calls a tool."""
    with serving(target, CALL) as (_, server), openai_client(server) as client:
        yield client


def test_completions_equal_generate(client: Any, target: specdec.Model) -> None:
    for prompt in (PROMPT, target.tokenizer.encode(PROMPT)):
        wanted = specdec.generate(target, None, prompt, max_new_tokens=30, logprobs=2, stop=["xyz"])
        found = client.completions.create(
            model="mine", prompt=prompt, max_tokens=30, temperature=0, logprobs=2, stop="xyz", user="someone"
        )
        (choice,) = found.choices
        assert choice.text == wanted.text and choice.finish_reason == "length"
        assert wanted.logprobs is not None and wanted.top_logprobs is not None
        assert np.array_equal(choice.logprobs.token_logprobs, wanted.logprobs)
        best = [max(value for _, value in top) for top in wanted.top_logprobs]
        assert [max(top.values()) for top in choice.logprobs.top_logprobs] == best
        assert found.usage.completion_tokens == 30
        assert found.usage.prompt_tokens == len(wanted.prompt_ids)
        assert found.model_extra["timings"]["predicted_n"] == 30


def test_chat(client: Any, target: specdec.Model) -> None:
    wanted = specdec.generate(target, None, messages=MESSAGES, max_new_tokens=25, logprobs=3)
    asked: Any = {"model": "mine", "messages": MESSAGES, "max_completion_tokens": 25, "temperature": 0}
    found = client.chat.completions.create(logprobs=True, top_logprobs=3, **asked)
    (choice,) = found.choices
    assert choice.message.role == "assistant" and choice.message.content == wanted.text
    entries = choice.logprobs.content
    assert wanted.logprobs is not None and wanted.top_logprobs is not None
    assert np.array_equal([entry.logprob for entry in entries], wanted.logprobs)
    assert bytes(byte for entry in entries for byte in entry.bytes).decode() == wanted.text
    for entry, top in zip(entries, wanted.top_logprobs, strict=True):
        assert [one.logprob for one in entry.top_logprobs] == [value for _, value in top]
    ended = specdec.generate(target, None, messages=MESSAGES, stop=["."])
    with client.chat.completions.stream(**{**asked, "max_completion_tokens": 200}, stop=["."]) as stream:
        for _ in stream:  # the client's own accumulation
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == ended.text


def test_responses(client: Any, target: specdec.Model) -> None:
    wanted = specdec.generate(target, None, messages=MESSAGES, max_new_tokens=25)
    asked: Any = {"model": "mine", "input": PROMPT, "max_output_tokens": 25, "temperature": 0}
    found = client.responses.create(**asked)
    assert found.output_text == wanted.text and found.status == "incomplete"
    assert found.usage.output_tokens == 25
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    assert [events[0].type, events[-1].type] == ["response.created", "response.incomplete"]
    assert events[-1].response.output_text == wanted.text
    ended = client.responses.create(**{**asked, "max_output_tokens": 200}, extra_body={"stop": ["."]})
    assert ended.status == "completed" and "." not in ended.output_text


def test_tools(calling: Any) -> None:
    tools: Any = [{"type": "function", "function": TOOL}]
    asked: Any = {"model": "mine", "messages": MESSAGES, "tools": tools}
    message = calling.chat.completions.create(**asked).choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"place": "Köln"}
    more = [*MESSAGES, message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    again = calling.chat.completions.create(**{**asked, "messages": more})
    assert again.choices[0].finish_reason == "tool_calls"
    with calling.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls" and final.message.content == "I look."
    assert final.message.tool_calls[0].function.arguments == call.function.arguments
    flat: Any = [{"type": "function", **TOOL}]
    response = calling.responses.create(model="mine", input=PROMPT, tools=flat)
    assert [item.type for item in response.output] == ["message", "function_call"]
    output = {"type": "function_call_output", "call_id": response.output[1].call_id, "output": "rain"}
    answer: Any = [*MESSAGES, *response.output, output]
    assert calling.responses.create(model="mine", input=answer, tools=flat).status == "completed"
    with calling.responses.stream(model="mine", input=PROMPT, tools=flat) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output[1].name == "weather"


def test_answers_satisfy_the_schemas_of_the_client(client: Any, calling: Any) -> None:
    """The client itself takes what comes; here its pydantic types check every field."""
    from openai.types import Completion, chat, responses
    from pydantic import TypeAdapter

    chats: Any = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1, "max_tokens": 5}
    texts: Any = {"input": PROMPT, "max_output_tokens": 5, "include": ["message.output_text.logprobs"]}
    tools = [{"type": "function", **TOOL}]
    bodies: tuple[tuple[Any, str, Any, Any, Any], ...] = (
        (client, "completions", {"prompt": PROMPT, "logprobs": 1}, Completion, None),
        (client, "chat/completions", chats, chat.ChatCompletion, chat.ChatCompletionChunk),
        (calling, "chat/completions", chats, chat.ChatCompletion, chat.ChatCompletionChunk),
        (client, "responses", texts, responses.Response, responses.ResponseStreamEvent),
        (calling, "responses", {**texts, "tools": tools}, responses.Response, responses.ResponseStreamEvent),
    )
    headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
    for one, path, body, whole, event in bodies:
        url = str(one.base_url).removesuffix("/v1/")
        _, answer = ask(url, f"/v1/{path}", body, headers=headers)
        TypeAdapter(whole).validate_python(answer)
        if event is not None:
            _, events = ask(url, f"/v1/{path}", {**body, "stream": True}, headers=headers)
            for found in events:
                if found != "[DONE]":
                    TypeAdapter(event).validate_python(found)


def test_a_schema(client: Any) -> None:
    from typing import Literal

    from pydantic import BaseModel

    class Person(BaseModel):
        name: Literal["Ann", "Bob"]
        age: Literal[3, 17]

    asked: Any = {"model": "mine", "temperature": 0}
    reply = client.chat.completions.parse(messages=MESSAGES, response_format=Person, **asked)
    person = reply.choices[0].message.parsed
    assert person.name in ("Ann", "Bob") and person.age in (3, 17)
    assert client.responses.parse(input=PROMPT, text_format=Person, **asked).output_parsed == person


def test_errors(client: Any) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="did you mean temperature") as refused:
        client.chat.completions.create(model="mine", messages=MESSAGES, extra_body={"temprature": 1})
    assert refused.value.param == "temprature" and refused.value.code == "unknown_parameter"
    with pytest.raises(openai.NotFoundError, match="gpt-5"):
        client.completions.create(model="gpt-5", prompt="a")
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="mine", prompt=[5] * 600)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
