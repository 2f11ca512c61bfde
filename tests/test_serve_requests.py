"""Requests and responses of the server, over a socket: fields, streams, tools, errors, limits.

The engine writes texts given by the tests; `test_serve.py` has the real one.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from select import select
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

import specdec
from chat_templates import TEMPLATES
from http_talk import ask, connected, send
from processes import wait_for
from scripted_engine import ScriptedEngine, log_prob, serving
from specdec.errors import ContextLengthError, InputError, NotFiniteError, SpecdecError
from specdec.serve import Server, ServerLimits, Service
from trained import small_pair

CHAT, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
REPLY = "Naïve 🙂 it is, by the sea."
USER = [{"role": "user", "content": "Hello"}]
FUNCTION: dict[str, Any] = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = 'I look. <tool_call>\n{"name": "weather", "arguments": {"place": "Köln"}}\n</tool_call>'
NO_DRAFT = {
    "accepted_draft_tokens": 0, "rejected_draft_tokens": 0, "accepted_draft_tokens_per_pos": [],
}  # fmt: skip
LARGE = {"name": "a", "schema": {"enum": ["x" * 600]}}
LIMITS = ServerLimits(
    n_body_bytes=100_000, n_texts=8, n_stops=4, n_biases=3, n_top=5, n_new_tokens=50, n_constraint_bytes=500,
    n_tools=2, body_s=0.3, write_s=0.5, event_s=0.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def target(chatting_pair: tuple[specdec.Model, specdec.Model]) -> specdec.Model:
    return chatting_pair[0]


@pytest.fixture(scope="module")
def served(target: specdec.Model) -> Iterator[tuple[ScriptedEngine, Server]]:
    engine = ScriptedEngine(target, max_open=10)
    service = Service(engine, ["mine", "also-mine"], limits=LIMITS, draft_name="small")
    with Server(service, port=0) as server:
        yield engine, server


@pytest.fixture
def engine(served: tuple[ScriptedEngine, Server]) -> Iterator[ScriptedEngine]:
    engine = served[0]
    engine.text, engine.reason, engine.step, engine.error, engine.n_before_error = REPLY, "stop", 2, None, 0
    engine.asked.clear()
    yield engine
    engine.held.clear()


@pytest.fixture
def url(served: tuple[ScriptedEngine, Server], engine: ScriptedEngine) -> str:
    return served[1].url


def body_of(path: str, **changes: Any) -> dict[str, Any]:
    """A valid request."""
    base = {CHAT: {"messages": USER}, TEXTS: {"prompt": "Once"}, RESPONSES: {"input": "Hello"}}
    return {"model": "mine", **base[path], **changes}


def post(url: str, path: str, **changes: Any) -> tuple[int, Any]:
    return ask(url, path, body_of(path, **changes))


def refused(answer: tuple[int, Any], status: int = 400, **wanted: Any) -> str:
    """Send a request that is rejected with a status and error fields; return the message."""
    found, body = answer
    error = body["error"]
    assert found == status and {name: error[name] for name in wanted} == wanted, body
    return str(error["message"])


# ── Answers


def test_a_completion(url: str, engine: ScriptedEngine) -> None:
    status, answer = post(url, TEXTS, n=2, logprobs=1)
    assert status == 200 and answer["object"] == "text_completion" and answer["model"] == "mine"
    ends = [(one["index"], one["text"], one["finish_reason"]) for one in answer["choices"]]
    assert ends == [(0, REPLY, "stop"), (1, REPLY, "stop")]
    tokens = engine.target.tokenizer.encode(REPLY, add_bos=False)
    n_prompt = len(engine.generations[-1].prompt_ids)
    assert answer["usage"] == {
        "prompt_tokens": n_prompt, "completion_tokens": 2 * len(tokens),
        "total_tokens": n_prompt + 2 * len(tokens), "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details":
            {**NO_DRAFT, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }  # fmt: skip
    assert set(answer["timings"]) >= {"predicted_per_second", "draft_n", "draft_n_accepted", "prompt_n"}
    assert set(answer["metrics"]["speculative_decoding"]) >= {"acceptance_histogram", "num_spec_steps"}
    found = answer["choices"][0]["logprobs"]
    assert found["token_logprobs"] == [log_prob(i) for i in range(len(tokens))]
    assert any(token.startswith("bytes:") for token in found["tokens"])  # parts of characters
    texts = [eval(f"b'{one[6:]}'") if one.startswith("bytes:") else one.encode() for one in found["tokens"]]
    assert b"".join(texts).decode() == REPLY
    offsets = [len(b"".join(texts[:i]).decode("utf-8", "ignore")) for i in range(len(texts))]
    assert found["text_offset"] == offsets
    tops = zip(found["tokens"], found["top_logprobs"], strict=True)
    assert [top[token] for token, top in tops] == found["token_logprobs"]


def test_several_prompts_and_samples_have_keys_of_their_own(url: str, engine: ScriptedEngine) -> None:
    _, answer = post(url, TEXTS, prompt=["a", [5, 6, 7]], n=2, seed=-1)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [one["prompt"] for one in engine.asked] == ["a", [5, 6, 7]]
    key = 2**64 - 1
    assert [one["seed"] for one in engine.asked] == [[(key, 0), (key, 1)], [(key, 2), (key, 3)]]
    events = post(url, TEXTS, prompt=["a", [5, 6, 7]], n=2, stream=True)[1]
    texts = ["", "", "", ""]
    for event in events[:-1]:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == [REPLY] * 4 and events[-1] == "[DONE]"
    _, events = post(url, TEXTS, stream=True, echo=True)
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "Once" + REPLY
    assert all("usage" not in event for event in events[:-1])


@pytest.mark.parametrize("step", [1, 3, 100])
def test_streams_hold_what_the_whole_answer_holds(url: str, engine: ScriptedEngine, step: int) -> None:
    engine.step = step
    asked = {"logprobs": True, "top_logprobs": 2, "n": 2}
    _, whole = post(url, CHAT, **asked)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    _, events = post(url, CHAT, **asked, **options)
    assert events[-1] == "[DONE]" and events[-2]["choices"] == [] and events[-2]["usage"] == whole["usage"]
    assert {event["object"] for event in events[:-1]} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events[:-1]}) == 1
    for index in range(2):
        choices = [one for event in events[:-2] for one in event["choices"] if one["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert [one["finish_reason"] for one in choices] == [None] * (len(choices) - 1) + ["stop"]
        assert choices[-1]["delta"] == {}
        wanted = whole["choices"][index]
        text = "".join(one["delta"].get("content", "") for one in choices)
        assert text == wanted["message"]["content"] == REPLY
        scored = [entry for one in choices for entry in one["logprobs"]["content"]]
        assert scored == wanted["logprobs"]["content"]
        assert bytes(byte for entry in scored for byte in entry["bytes"]).decode() == REPLY
        assert all(len(entry["top_logprobs"]) == 2 for entry in scored)


def test_log_probabilities_end_with_the_text(url: str, engine: ScriptedEngine) -> None:
    """The token that ends a text has no text and is not among them; a text that was cut has all tokens."""
    ids = engine.target.tokenizer.encode("The sea", add_bos=False)
    engine.text = [*ids, 0]
    _, answer = post(url, CHAT, logprobs=True)
    assert len(answer["choices"][0]["logprobs"]["content"]) == len(ids)
    assert answer["usage"]["completion_tokens"] == len(ids) + 1
    engine.reason = "length"
    _, answer = post(url, CHAT, logprobs=True)
    assert answer["choices"][0]["finish_reason"] == "length"
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == len(ids) + 1 and entries[-1]["token"] == "<|endoftext|>"


def test_a_conversation_with_calls_is_read_as_templates_expect_it(url: str, engine: ScriptedEngine) -> None:
    call = {"id": "c1", "type": "function"}
    function, written = {"name": "weather", "arguments": {"place": "Köln"}}, '{"place": "Köln"}'
    parts = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]
    messages = [
        {"role": "developer", "content": parts},
        {"role": "user", "content": "Weather?", "name": "Ann"},
        {"role": "assistant", "content": None, "refusal": None, "annotations": [],
         "tool_calls": [{**call, "index": 0, "function": {**function, "arguments": written}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]  # fmt: skip
    assert post(url, CHAT, messages=messages)[0] == 200
    wanted = [
        {"role": "system", "content": "Be\nbrief."},
        {"role": "user", "content": "Weather?", "name": "Ann"},
        {"role": "assistant", "content": "", "tool_calls": [{**call, "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    assert engine.asked[-1]["messages"] == wanted
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": written, "id": "fc_1"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    ]
    assert post(url, RESPONSES, input=items, instructions="Be\nbrief.")[0] == 200
    user = {"role": "user", "content": "Weather?"}
    assert engine.asked[-1]["messages"] == [wanted[0], user, *wanted[2:]]


def test_a_response_and_its_events(url: str, engine: ScriptedEngine) -> None:
    engine.text = CALL
    tools = [{"type": "function", **FUNCTION}]
    asked = {"tools": tools, "include": ["message.output_text.logprobs"], "metadata": {"a": "b"}}
    _, response = post(url, RESPONSES, **asked)
    assert (response["object"], response["status"], response["tools"]) == ("response", "completed", tools)
    assert response["metadata"] == {"a": "b"} and response["store"] is False
    message, call = response["output"]
    assert message["content"][0]["text"] == "I look." and message["status"] == "completed"
    assert call["type"] == "function_call" and json.loads(call["arguments"]) == {"place": "Köln"}
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 3
    _, events = post(url, RESPONSES, **asked, stream=True)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert [kind for kind in kinds[4:] if kind != "output_text.delta"] == [
        "output_text.done", "content_part.done", "output_item.done", "output_item.added",
        "function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == "I look." and deltas > 1
    last = events[-1]["response"]
    assert last["output"][0]["content"] == message["content"]
    assert last["output"][1]["arguments"] == call["arguments"] and last["usage"] == response["usage"]
    engine.reason, engine.text = "length", ""
    _, response = post(url, RESPONSES, max_output_tokens=3)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["content"][0]["text"] == ""


def test_a_prediction_is_handed_on_and_counted(url: str, engine: ScriptedEngine) -> None:
    content = [{"type": "text", "text": "Naïve"}, {"type": "text", "text": "it is"}]
    _, answer = post(url, CHAT, prediction={"type": "content", "content": content})
    assert engine.asked[-1]["prediction"] == "Naïve\nit is"
    details = answer["usage"]["completion_tokens_details"]
    assert details == {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 4, **NO_DRAFT}


def test_fields_reach_the_engine(url: str, engine: ScriptedEngine) -> None:
    given = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.5,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"5": -100, "7": 2.5},
        "stop": ["a", "b"], "stop_token_ids": [9], "max_tokens": 7, "ignore_eos": True,
        "logprobs_of": "sampling", "user": "someone", "seed": 3, "min_tokens": 2,
        "no_repeat_ngram_size": 3, "bad_words": ["a", [5, 6]], "dry_multiplier": 0.8, "dry_base": 1.5,
        "dry_allowed_length": 3, "dry_penalty_last_n": 64, "dry_sequence_breakers": ["\n", [7]],
        "include_stop_str_in_output": True, "skip_special_tokens": False,
        "speculative": {"draft": "small", "gamma": 2, "verify": "block"},
    }  # fmt: skip
    assert post(url, TEXTS, **given)[0] == 200
    asked = engine.asked[-1]
    changed = {name for name, value in given.items() if name in asked and asked[name] != value}
    assert changed == {
        "logit_bias", "stop", "seed", "bad_words", "dry_sequence_breakers", "speculative",
    }  # fmt: skip
    assert asked["dry_sequence_breakers"] == ("\n", (7,))
    assert asked["logit_bias"] == {5: -100.0, 7: 2.5} and asked["stop"] == ["a", "b", 9]
    assert asked["max_new_tokens"] == 7 and asked["seed"] == [(3, 0)]
    assert asked["speculative"] == specdec.Speculative(draft=True, gamma=2, verify="block")
    for names in ({"model": "small", "num_speculative_tokens": 2}, {"model": True, "gamma": 2}):
        assert post(url, CHAT, speculative=names)[0] == 200
        assert engine.asked[-1]["speculative"] == specdec.Speculative(draft=True, gamma=2)
    assert post(url, CHAT, speculative={"draft": "none"}, top_k=-1, dry_penalty_last_n=-1)[0] == 200
    asked = engine.asked[-1]
    assert asked["dry_penalty_last_n"] is None
    assert asked["speculative"] == specdec.Speculative(draft=False) and asked["top_k"] is None
    assert asked["temperature"] == 1.0 and asked["max_new_tokens"] == 50  # the server's bound
    started = {"add_generation_prompt": True}
    assert post(url, CHAT, max_completion_tokens=9, chat_template_kwargs=started)[0] == 200
    assert engine.asked[-1]["max_new_tokens"] == 9 and engine.asked[-1]["chat_template_kwargs"] == started
    assert post(url, TEXTS, prompt="[{" * 500 + '\\"')[0] == 200  # brackets in a text are not depth
    assert engine.asked[-1]["max_new_tokens"] == 16


NEUTRAL: dict[str, Any] = {
    "use_beam_search": False, "length_penalty": 1, "early_stopping": False, "min_tokens": 0,
    "spaces_between_special_tokens": True, "skip_special_tokens": True, "allowed_token_ids": [],
    "typical_p": 1.0, "xtc_probability": 0, "mirostat": 0, "id_slot": -1, "dry_multiplier": 0,
    "suffix": None, "include_stop_str_in_output": False, "no_repeat_ngram_size": 0, "bad_words": [],
}  # fmt: skip


def test_values_of_other_servers_that_change_nothing_are_accepted(url: str, engine: ScriptedEngine) -> None:
    for path in (TEXTS, CHAT, RESPONSES):
        given = {name: value for name, value in NEUTRAL.items() if path == TEXTS or name != "suffix"}
        plain = post(url, path)[1]
        status, answer = post(url, path, **given)
        assert status == 200, answer
        for one in (plain, answer):
            for name in ("id", "created", "created_at", "output", "timings"):
                one.pop(name, None)
        assert answer == plain
    message = refused(post(url, TEXTS, use_beam_search=True), code="unsupported_parameter")
    assert message.startswith("use_beam_search is True, which this server does not support; expected False")
    message = refused(post(url, TEXTS, xtc_probability=0.1), code="unsupported_parameter")
    assert "; expected 0.0: " in message  # 0 is the same value


def test_marks_of_prefixes_to_cache_are_accepted(url: str, engine: ScriptedEngine) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    parts = [{"type": "text", "text": "Hello", **mark}]
    asked = {"messages": [{"role": "user", "content": parts, **mark}], "tools": [{**TOOLS[0], **mark}]}
    assert post(url, CHAT, **asked)[0] == 200
    assert engine.asked[-1]["messages"] == USER and engine.asked[-1]["tools"] == TOOLS
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Hello", **mark}]}]
    assert post(url, RESPONSES, input=items)[0] == 200
    assert engine.asked[-1]["messages"] == USER


def test_a_stream_echoes_prompts_with_their_scores(url: str, engine: ScriptedEngine) -> None:
    asked = {"prompt": ["Once upon", [5, 6, 7]], "n": 2, "echo": True, "logprobs": 2}
    _, whole = post(url, TEXTS, **asked)
    _, events = post(url, TEXTS, **asked, stream=True)
    for index, choice in enumerate(whole["choices"]):
        parts = [one for event in events[:-1] for one in event["choices"] if one["index"] == index]
        assert "".join(one["text"] for one in parts) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [value for one in parts for value in one["logprobs"][name]] == values, name
        assert choice["logprobs"]["token_logprobs"][0] is None


# ── Other pages


def test_pages_of_other_origins(target: specdec.Model) -> None:
    ours, theirs = "https://app.example:8443", "https://evil.example"
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    body = json.dumps(body_of(CHAT)).encode()

    def exchange(url: str, method: str, origin: str, key: str = "secret", **headers: str) -> Any:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
        given = {"Origin": origin, "Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        connection.request(method, CHAT, body if method == "POST" else None, {**given, **headers})
        response = connection.getresponse()
        response.read()
        connection.close()
        found = {name.lower(): value for name, value in response.getheaders()}
        return response.status, found.get("access-control-allow-origin"), found

    for origins, other in (([ours], None), (["*"], "*"), ([], None)):
        with serving(target, REPLY, cors_origins=origins, api_key="secret") as (_, server):
            allowed = origins[0] if origins else None
            status, named, headers = exchange(server.url, "OPTIONS", ours, key="", **asks)
            assert (status == 200, named) == (bool(origins), allowed)
            if origins:
                assert "POST" in headers["access-control-allow-methods"]
                assert "authorization" in headers["access-control-allow-headers"].lower()
            assert exchange(server.url, "POST", ours)[:2] == ((200, allowed) if origins else (403, None))
            assert exchange(server.url, "POST", ours, key="x")[:2] == (
                (401, allowed) if origins else (403, None)
            )
            assert exchange(server.url, "POST", theirs)[:2] == ((200, "*") if other else (403, None))
            assert exchange(server.url, "POST", f"http://{urlsplit(server.url).netloc}")[0] == 200
    for wrong in ("example.com", "https://a.example/page", "", 3):
        with pytest.raises(InputError, match="cors_origins"):
            Server(Service(ScriptedEngine(target), ["mine"]), port=0, cors_origins=[wrong])  # type: ignore[arg-type, list-item]


# ── Refusals

PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}
OTHER = {"type": "function", "function": {"name": "other"}}
PREDICTION = {"type": "content", "content": "a"}
BAD_VALUES: dict[tuple[str, str], list[Any]] = {
    (CHAT, "temprature"): [1], (CHAT, "guided_json"): [{}], (RESPONSES, "guided_json"): [{}],
    (CHAT, "temperature"): ["hot", True, -1], (CHAT, "n"): [9, 1.5], (CHAT, "max_tokens"): [0, 51],
    (CHAT, "seed"): [2**64], (CHAT, "stop"): [["a"] * 5, "", [3], 3], (CHAT, "min_tokens"): [-1],
    (CHAT, "logit_bias"): [{str(i): 1 for i in range(4)}, {"x": 1}, [5]], (CHAT, "logit_bias.5"): [101],
    (CHAT, "bad_words"): [3, [[]], {"a": 1}], (CHAT, "top_logprobs"): [2], (CHAT, "messages"): [[], None],
    (CHAT, "stream_options"): [{"include_usage": True}], (CHAT, "audio"): [{"voice": "x"}],
    (CHAT, "modalities"): [["text", "audio"]], (CHAT, "functions"): [[{}]], (CHAT, "store"): [True],
    (CHAT, "reasoning_effort"): ["low"], (CHAT, "service_tier"): ["flex"],
    (CHAT, "tools"): [TOOLS * 2, TOOLS * 3], (CHAT, "tool_choice"): ["required"],
    (CHAT, "speculative.draft"): ["large"],
    (CHAT, "speculative.gamma"): [-1], (CHAT, "speculative.num_speculative_tokens"): [-1],
    (CHAT, "speculative.model"): ["large"], (CHAT, "skip_special_tokens"): [False],
    (CHAT, "use_beam_search"): [True, 0], (TEXTS, "length_penalty"): [0.5], (CHAT, "xtc_probability"): [0.1],
    (CHAT, "dry_multiplier"): [-1], (CHAT, "dry_base"): [0.5], (CHAT, "dry_penalty_last_n"): [-2],
    (CHAT, "dry_sequence_breakers"): ["a", [[]], ["x" * 41]], (TEXTS, "skip_special_tokens"): [0],
    (CHAT, "include_stop_str_in_output"): ["yes"], (CHAT, "add_special_tokens"): [True],
    (CHAT, "speculative.verify"): ["hope"],
    (CHAT, "speculative.lenience"): [0.5], (CHAT, "response_format.type"): ["xml"],
    (CHAT, "structured_outputs"): [{"json": {}, "regex": "a"}], (CHAT, "structured_outputs.choice"): [[]],
    (CHAT, "chat_template_kwargs"): [{"chat_template": "{{ 1 }}"}],
    (TEXTS, "prompt"): [None, [], [[1, "a"]], [1, 4096], ["a"] * 9], (TEXTS, "suffix"): ["end"],
    (TEXTS, "best_of"): [3], (TEXTS, "max_tokens"): [0], (RESPONSES, "input"): [[], 3],
    (RESPONSES, "previous_response_id"): ["resp_1"], (RESPONSES, "include"): [["file_search_call.results"]],
    (RESPONSES, "background"): [True], (RESPONSES, "truncation"): ["auto"], (RESPONSES, "n"): [2],
}  # fmt: skip
BAD: list[tuple[str, str, dict[str, Any]]] = [
    (CHAT, "max_completion_tokens", {"max_tokens": 5, "max_completion_tokens": 6}),
    (CHAT, "top_logprobs", {"logprobs": True, "top_logprobs": 6}),
    (CHAT, "stream_options.include", {"stream": True, "stream_options": {"include": 1}}),
    (CHAT, "messages[0].role", {"messages": [{"role": "wizard", "content": ""}]}),
    (CHAT, "messages[0].content", {"messages": [{"role": "user"}]}),
    (CHAT, "messages[0].mood", {"messages": [{"role": "user", "content": "a", "mood": 1}]}),
    (CHAT, "messages[0].content[0].type", {"messages": [PICTURE]}),
    (CHAT, "tools[0].type", {"tools": [{"type": "web_search"}]}),
    (CHAT, "tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    (CHAT, "tool_choice", {"tools": TOOLS, "tool_choice": "never"}),
    (CHAT, "tool_choice", {"tools": TOOLS, "tool_choice": OTHER}),
    (CHAT, "prediction.content", {"prediction": {"type": "content"}}),
    (CHAT, "prediction", {"prediction": PREDICTION, "speculative": {"draft": False}}),
    (CHAT, "response_format.json_schema", {"response_format": {"type": "json_schema"}}),
    (CHAT, "response_format.json_schema.schema",
     {"response_format": {"type": "json_schema", "json_schema": LARGE}}),
    (CHAT, "structured_outputs",
     {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}),
    (TEXTS, "n", {"prompt": ["a"] * 3, "n": 3}),
    (TEXTS, "return_rounds", {"return_rounds": 1}), (RESPONSES, "return_rounds", {"return_rounds": True}),
    (TEXTS, "suffix", {"echo": True, "suffix": "a"}),
    (CHAT, "speculative.model", {"speculative": {"draft": True, "model": True}}),
    (CHAT, "speculative.num_speculative_tokens", {"speculative": {"gamma": 1, "num_speculative_tokens": 2}}),
    (RESPONSES, "input[0].type", {"input": [{"type": "web_search_call"}]}),
]  # fmt: skip


def nested(param: str, value: Any) -> Any:
    for name in reversed(param.split(".")):
        value = {name: value}
    return value


BAD += [(*at, nested(at[1], value)) for at, values in BAD_VALUES.items() for value in values]


@pytest.mark.parametrize(("path", "param", "changes"), BAD)
def test_what_is_not_carried_out_is_refused_by_name(
    url: str, engine: ScriptedEngine, path: str, param: str, changes: dict[str, Any]
) -> None:
    status, answer = post(url, path, **changes)
    error = answer["error"]
    assert status == 400 and error["type"] == "invalid_request_error" and error["param"] == param, error
    assert "expected" in error["message"] or error["code"] == "unknown_parameter"
    assert not engine.asked and engine.n_open == 0


MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"temprature": 1}, "temprature is not a known field; did you mean temperature?"),
    ({"guided_json": {}}, "did you mean structured_outputs?"), ({"stop": [3]}, "stop[0] is 3; expected a "),
    ({"messages": [{"role": "wizard"}]}, "messages[0].role is 'wizard'; expected 'system' or"),
    ({"store": True}, "store is True, which this server does not support; expected False: nothing is"),
    ({"messages": None}, "messages is missing; expected a list of messages"),
]  # fmt: skip


def test_a_refusal_says_what_was_expected(url: str) -> None:
    for changes, message in MESSAGES:
        assert message in refused(post(url, CHAT, **changes))
    foreign = post(url, RESPONSES, include=["file_search_call.results"])
    assert "'message.output_text.logprobs'" in refused(foreign, code="unsupported_parameter")


FAULTS: dict[str, tuple[str, bytes, str]] = {
    **{repr(body): (CHAT, body, message) for body, message in (
        (b"", "not UTF-8"), (b"{", "not UTF-8"), (b"[]", "expected an object"), (b"\xff{}", "not UTF-8"),
        (b'{"model": "mine", "model": "other"}', "'model' twice"), (b'{"temperature": NaN}', "NaN"),
        (b'{"temperature": 1e999}', "finite"),
    )},
    "escapes": (CHAT, b"[" * 200 + b'"' + b'\\"' * 200_000, "not UTF-8 JSON"),
    "digits": (CHAT, b'{"seed": ' + b"9" * 5000 + b"}", "of 5000 digits; expected at most 1000"),
    "depth": (CHAT, b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested more than 128 deep"),
    "values": (CHAT, b'{"a": [' + b"1," * 700_000 + b"1]}", "has 700002 commas and brackets"),
    "twice": (
        CHAT, b"{" + b"".join(b'"%d": 0, ' % i for i in range(100_000)) + b'"a": 0, "a": 0}', "'a' twice",
    ),
    "messages": (CHAT, b'{"messages": [3' + b", 3" * 500_000 + b"]}", "messages[0]"),
    "stops": (CHAT, b'{"stop": [3' + b", 3" * 500_000 + b"]}", "stop has 500001 items"),
    "names": (CHAT, b"{" + b", ".join(b'"x%d": 1' % i for i in range(300_000)) + b"}", "messages is missing"),
    "ids": (TEXTS, b'{"prompt": [[' + b"0, " * 500_000 + b"-1]]}", "prompt[0][500000] is -1"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_body_is_refused_for_its_first_fault(target: specdec.Model, fault: str) -> None:
    """In linear time: quadratic time, or a report of each fault, would take far longer."""
    path, body, message = FAULTS[fault]
    with serving(target) as (_, server):
        begun = time.process_time()
        found = refused(ask(server.url, path, body))
        assert message in found and len(found) < 500
        assert time.process_time() - begun < 1.5


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    (CHAT, {"body": {"model": "gpt-5", "messages": USER}}, 404, "'gpt-5'"),
    ("/v1/nothing", {}, 404, "there is no path /v1/nothing"),
    ("/chat/completions", {"body": {}}, 404, "did you mean /v1/chat/completions?"),
    ("/v1/completions/", {"method": "GET"}, 404, "did you mean /v1/completions?"),  # no redirect
    ("/v1/completions/", {"body": {}}, 404, "did you mean /v1/completions?"),
    (CHAT, {"method": "GET"}, 405, "POST"), (CHAT, {"body": b" " * 100_001}, 413, "at most 100000 bytes"),
    (CHAT, {"body": b"{}", "headers": {"Content-Type": "text/plain"}}, 415, "application/json"),
    ("/v1/models", {"headers": {"Host": "evil.example:80"}}, 403, "evil.example"),
    (CHAT, {"body": {}, "headers": {"Origin": "http://evil.example"}}, 403, "expected this server"),
    ("/tokenize", {"body": {"prompt": "\ud800"}}, 400, "surrogate"),
]  # fmt: skip


def test_other_refusals(url: str) -> None:
    for path, how, status, message in REFUSED:
        assert message in refused(ask(url, path, **how), status)


SCHEMA = {"name": "a", "schema": {}}
FORMAT = {"type": "json_schema", "json_schema": SCHEMA}
FIELDS: list[tuple[str, dict[str, Any], SpecdecError, str, str]] = [
    (TEXTS, {}, InputError("max_new_tokens is 7; expected 5"), "max_tokens", " is 7; expected 5"),
    (RESPONSES, {}, InputError("max_new_tokens is 7"), "max_output_tokens", " is 7"),
    (TEXTS, {}, ContextLengthError("prompt: 9 ids"), "prompt", ": 9 ids"),
    (CHAT, {}, ContextLengthError("prompt: 9 ids"), "messages", ": 9 ids"),
    (RESPONSES, {}, ContextLengthError("prompt has 9 ids"), "input", " has 9 ids"),
    (CHAT, {"response_format": FORMAT}, InputError("schema: wrong"), "response_format", ": wrong"),
    (RESPONSES, {"text": {"format": {"type": "json_schema", **SCHEMA}}}, InputError("schema: wrong"),
     "text.format", ": wrong"),
    (TEXTS, {"structured_outputs": {"regex": "a"}}, InputError("regex: wrong"),
     "structured_outputs", ": wrong"),
    (CHAT, {"tools": TOOLS, "tool_choice": "required"}, InputError("schema: wrong"), "tools", ": wrong"),
    (TEXTS, {}, InputError.of("speculative.gamma", 5, "3"), "speculative", ".gamma is 5; expected 3"),
    (TEXTS, {}, InputError.of("logit_bias[5]", 101, "100"), "logit_bias", "[5] is 101; expected 100"),
    (CHAT, {}, InputError.about("logit_bias", "the biases forbid it"), "logit_bias", "the biases forbid it"),
    (TEXTS, {}, InputError("top_k is 5"), "top_k", " is 5"),
    (CHAT, {}, InputError("the chat template: refuses"), "messages", "the chat template: refuses"),
    (TEXTS, {}, InputError("text has a lone surrogate"), "prompt", "text has a lone surrogate"),
]  # fmt: skip


def test_errors_of_the_engine_name_fields_of_the_request(
    url: str, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, changes, error, param, message in FIELDS:
        monkeypatch.setattr(engine, "refusal", error)
        found = refused(post(url, path, **changes), param=param)
        assert found == (message if message[0] in "lt" else param + message)


def test_errors_do_not_say_where_the_model_lies(target: specdec.Model) -> None:
    service = Service(ScriptedEngine(target), ["mine"])
    for path, shown in ((".", "."), ("model", "model"), ("/srv/a", "the model"), ("models/a", "the model")):
        service.target = SimpleNamespace(path=Path(path))
        error = InputError(f"top_k is 1.5: {path} has no such model")
        assert str(service.refusal(error)) == f"top_k is 1.5: {shown} has no such model"


@pytest.mark.parametrize("path", [CHAT, TEXTS, RESPONSES])
def test_a_stream_that_fails_half_way_ends_with_the_error(
    url: str, engine: ScriptedEngine, path: str
) -> None:
    engine.error, engine.n_before_error = NotFiniteError("layer 3 of a secret place"), 3
    status, events = post(url, path, stream=True)
    assert status == 200 and len(events) > 3
    error = events[-1] if path == RESPONSES else events[-1]["error"]
    assert error["code"] == "not_finite" and "secret" not in error["message"]
    assert path != RESPONSES or (error["type"], error["sequence_number"]) == ("error", len(events) - 1)


# ── Clients that wait, leave, or read slowly


def sent(url: str, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection with a request sent."""
    connection = connected(url)
    send(connection, path, body)
    return connection


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_texts(
    url: str, engine: ScriptedEngine, stream: bool, ahead: bool
) -> None:
    engine.held.set()
    n_gone = clients_gone(url)
    connection = raw(url, GET * 2 * ahead, 0)
    send(connection, CHAT, body_of(CHAT, stream=stream, n=2))
    connection.sendall(GET * 3 * ahead)
    wait_for(lambda: bool(engine.asked))
    connection.close()
    wait_for(lambda: engine.generations[-1].cancelled.is_set() and engine.n_open == 0)
    engine.held.clear()
    wait_for(lambda: clients_gone(url) == n_gone + 1)


def test_a_request_that_is_cancelled_while_its_texts_begin_ends_them(target: specdec.Model) -> None:
    engine = ScriptedEngine(target, REPLY)
    begun, go_on, submit = threading.Event(), threading.Event(), engine.submit

    def slow(**options: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return submit(**options)

    engine.submit = slow
    service = Service(engine, ["mine"])
    app: Any = Server(service, port=0).config.app
    scope = {
        "type": "http", "method": "POST", "path": CHAT, "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body_of(CHAT)).encode()}

    async def cancelled() -> None:
        request = asyncio.ensure_future(app(scope, receive, None))
        assert await asyncio.to_thread(begun.wait, 60)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        go_on.set()
        await asyncio.to_thread(wait_for, lambda: bool(engine.generations) and engine.n_open == 0)

    asyncio.run(cancelled())
    assert engine.generations[0].cancelled.is_set() and service.n_active == 0


def clients_gone(url: str) -> float:
    ((_, found),) = samples_of(url)["specdec:clients_gone_total"]
    return float(found)


def test_too_many_texts_wait(url: str, engine: ScriptedEngine) -> None:
    engine.held.set()
    first = [sent(url, CHAT, body_of(CHAT, n=5)) for _ in range(2)]
    wait_for(lambda: engine.n_open == 10)
    refused(post(url, CHAT), 429, type="rate_limit_error")
    first[0].close()
    wait_for(lambda: engine.n_open == 5)
    # of several prompts all begin or none
    status, _ = post(url, TEXTS, prompt=["a", "b", "c"], n=2)
    assert status == 429
    wait_for(lambda: engine.n_open == 5)
    first[1].close()
    wait_for(lambda: engine.n_open == 0)


def test_prompts_are_scored_one_after_the_other(target: specdec.Model) -> None:
    """Others are served meanwhile, waiting requests are bounded, and clients that left are not scored."""
    engine = ScriptedEngine(target, REPLY)
    n_scored = 0

    def score(*args: Any) -> Any:
        nonlocal n_scored
        n_scored += 1
        return ScriptedEngine.score(engine, *args)

    engine.score = score
    body = body_of(TEXTS, prompt=[5, 6, 7], max_tokens=0, echo=True, logprobs=0)
    service = Service(engine, ["mine"], limits=ServerLimits(n_waiting=9))
    with Server(service, port=0) as server:
        engine.held.set()
        waiting = [sent(server.url, TEXTS, body) for _ in range(11)]
        (refused,), _, _ = select(waiting, [], [], 10)
        waiting.remove(refused)
        assert answered(refused) == 429
        refused.close()
        assert ask(server.url, "/tokenize", {"prompt": "a"})[0] == 200 and n_scored == 1
        waiting.pop().close()
        engine.held.clear()
        for connection in waiting:
            assert answered(connection) == 200
            connection.close()
        assert ask(server.url, TEXTS, body)[0] == 200
    assert n_scored == 10


def test_a_slow_reader_holds_nobody_up(url: str, engine: ScriptedEngine) -> None:
    """Responses that are not read in time end; others are served meanwhile."""
    engine.text, engine.step = [5] * 60_000, 1
    host, port = urlsplit(url).netloc.split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    send(connection, CHAT, body_of(CHAT, stream=True, logprobs=True))
    wait_for(lambda: bool(engine.asked))
    slow = engine.generations[-1]
    engine.text, engine.step = REPLY, 2
    assert post(url, CHAT)[1]["choices"][0]["message"]["content"] == REPLY
    wait_for(slow.cancelled.is_set)
    connection.close()


def test_bodies_that_do_not_come_or_do_not_end(url: str) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    raw(url, head + b"Content-Length: 10\r\n\r\n{", 408).close()
    raw(url, CHUNKED + in_chunks(b" " * 100_001, 50_000), 413).close()


def test_templates_without_a_place_for_tools() -> None:
    """Tools are refused by name, unless the request says that none is to be called."""
    target = small_pair()[0]
    with serving(target) as (_, server):
        for changes in ({}, {"tools": TOOLS, "tool_choice": "required"}):
            message = refused(post(server.url, CHAT, **changes), code="unsupported_model")
            assert "the model has no chat template" in message
    target = target.with_chat_template("tools{{ messages[0].content }}")
    with serving(target, CALL) as (engine, server):
        bodies = (
            (CHAT, body_of(CHAT, tools=TOOLS)), (CHAT, body_of(CHAT, tools=TOOLS, stream=True)),
            ("/tokenize", {"messages": USER, "tools": TOOLS}),
        )  # fmt: skip
        for path, body in bodies:
            assert "ignores it; expected no tools" in refused(ask(server.url, path, body), param="tools")
        _, answer = post(server.url, CHAT, tools=TOOLS, tool_choice="none")
        assert answer["choices"][0]["message"]["content"] == CALL and engine.asked[-1]["tools"] is None


def test_drafts_by_name(url: str, engine: ScriptedEngine) -> None:
    for draft, wanted in (("small", True), (True, True), (False, False), ("none", False)):
        assert post(url, CHAT, speculative={"draft": draft})[0] == 200
        assert engine.asked[-1]["speculative"] == specdec.Speculative(draft=wanted)
    named = ScriptedEngine(engine.target, REPLY)
    named.drafts = {"a": None, "b": None}
    with Server(Service(named, ["mine"]), port=0) as server:
        for draft, found in (("b", "b"), (True, True), (None, True), ("none", False)):
            assert post(server.url, CHAT, speculative={"draft": draft})[0] == 200
            assert named.asked[-1]["speculative"] == specdec.Speculative(draft=found)
        message = refused(post(server.url, CHAT, speculative={"draft": "c"}), param="speculative.draft")
        assert "expected true, false, 'none', 'a' or 'b'" in message
        assert ask(server.url, "/v1/models")[1]["data"][0]["specdec"]["drafts"] == ["a", "b"]
        assert ask(server.url, "/health")[1]["draft"] == "a"


# ── The rest


def test_models(url: str, engine: ScriptedEngine) -> None:
    _, listed = ask(url, "/v1/models", headers={"Origin": url})  # a page of this host
    assert [one["id"] for one in listed["data"]] == ["mine", "also-mine"]
    assert ask(url, "/v1/models/also-mine")[1]["root"] == "mine"
    assert ask(url, "/v1/models/a%2Fb")[0] == 404
    assert listed["data"][0]["max_model_len"] == engine.n_text


def test_tokens_and_texts(url: str, engine: ScriptedEngine) -> None:
    tokenizer = engine.target.tokenizer
    assert tokenizer is not None
    _, found = ask(url, "/tokenize", {"prompt": REPLY, "return_token_strs": True})
    assert found["tokens"] == tokenizer.encode(REPLY) and found["count"] == len(found["tokens"])
    assert found["token_strs"][0] == "<|endoftext|>" and found["max_model_len"] == engine.n_text
    _, plain = ask(url, "/tokenize", {"content": REPLY})
    assert plain["tokens"] == tokenizer.encode(REPLY, add_bos=False)
    _, text = ask(url, "/detokenize", {"tokens": plain["tokens"]})
    assert text == {"prompt": REPLY, "content": REPLY}
    _, chat = ask(url, "/tokenize", {"messages": USER, "tools": TOOLS})
    assert chat["tokens"] == engine.target.chat_ids(USER, tools=TOOLS)
    _, info = ask(url, "/tokenizer_info")
    assert info["eos_token"] == "<|endoftext|>" and info["chat_template"] == TEMPLATES["qwen2.5"][0]
    _, end = ask(url, "/tokenize", {"prompt": info["eos_token"], "add_special_tokens": False})
    assert end["tokens"] == [0]
    for body in ({}, {"prompt": "a", "messages": USER}, {"prompt": 3}, {"prompt": "a", "other": 1}):
        assert ask(url, "/tokenize", body)[0] == 400
    for tokens in ("a", [-1], [engine.target.config["n_vocab"]], [2**31], [True]):
        assert ask(url, "/detokenize", {"tokens": tokens})[0] == 400


def test_metrics_are_prometheus(url: str) -> None:
    post(url, CHAT)
    samples = samples_of(url)
    for name in ("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total",
                 "spec_decode_num_accepted_tokens_total", "num_requests_running"):  # fmt: skip
        assert samples[f"vllm:{name}"] == [({"model_name": "mine"}, 7)]
    places = samples["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
    assert [(labels["position"], value) for labels, value in places] == [("0", 3.0), ("1", 1.0)]
    assert samples["vllm:time_to_first_token_seconds_count"][0][1] >= 1


def test_the_key(target: specdec.Model) -> None:
    lines: list[str] = []
    with serving(target, REPLY, api_key="secret", log=lines.append) as (engine, server):
        assert ask(server.url, "/health", headers={"Host": "elsewhere"})[0] == 403
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"},
                        {"Authorization": "Bearer"}, {"Authorization": "Bearer secret2"}):  # fmt: skip
            refused(ask(server.url, "/v1/models", headers=headers), 401, code="invalid_api_key")
        headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
        assert ask(server.url, CHAT, body_of(CHAT), headers=headers)[0] == 200
        assert ask(server.url, "/health", headers={})[0] == 200
        assert ask(server.url, CHAT, {"mistake": "Hello"}, headers=headers)[0] == 400
        assert ask(server.url, "/v1/nowhere", headers=headers)[0] == 404
        raw(server.url, b"no HTTP\r\n\r\n", 400).close()
        answers = samples_of(server.url, headers)["specdec:http_requests_total"]
    # polled paths are counted, and logged only if refused
    assert [re.sub(r" \d+\.\d{3} s", " s", line) for line in lines] == [
        "/health 403 s", *["/v1/models 401 s"] * 5, f"{CHAT} 200 s, {n_prompt(engine)} prompt tokens",
        f"{CHAT} 400 s", "other 404 s", "other 400",
    ]  # fmt: skip
    assert {(labels["path"], labels["status"]): n for labels, n in answers} == {
        ("/health", "403"): 1, ("/health", "200"): 1, ("/v1/models", "401"): 5, (CHAT, "200"): 1,
        (CHAT, "400"): 1, ("other", "404"): 1, ("other", "400"): 1,
    }  # fmt: skip


def n_prompt(engine: ScriptedEngine) -> int:
    return len(engine.generations[-1].prompt_ids)


def samples_of(url: str, headers: dict[str, str] | None = None) -> dict[str, list[Any]]:
    """Labels and values in /metrics, by name, as Prometheus reads them."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(ask(url, "/metrics", headers=headers)[1]):
        for one in family.samples:
            found.setdefault(one.name, []).append((one.labels, one.value))
    return found


def raw(url: str, sent: bytes, status: int) -> socket.socket:
    """Send bytes on a connection and check the status of the answer."""
    connection = connected(url)
    connection.sendall(sent)
    if status:
        assert answered(connection) == status
    return connection


def answered(connection: socket.socket) -> int:
    """Status of an answer, read to its end because the body may arrive after the head."""
    with http.client.HTTPResponse(connection) as response:
        response.begin()
        response.read()
        return response.status


def rest_of(connection: socket.socket) -> bytes:
    """Read until the other side closes the connection."""
    received = b""
    with connection, suppress(ConnectionError):
        while piece := connection.recv(65536):
            received += piece
    return received


def is_closed(connection: socket.socket) -> bool:
    rest_of(connection)
    return True


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_bounds_on_connections(target: specdec.Model) -> None:
    with serving(target, REPLY, limits=ServerLimits(n_connections=3)) as (engine, server):
        first, second, silent = (raw(server.url, one, 200 * bool(one)) for one in (GET, GET, b""))
        wait_for(lambda: len(server.server_state.connections) == 3)
        first.sendall(GET)  # so that `second` is idle longest
        assert answered(first) == 200
        more = raw(server.url, GET, 200)
        assert is_closed(second)
        engine.held.set()
        busy = [sent(server.url, CHAT, body_of(CHAT)) for _ in range(3)]
        wait_for(lambda: len(engine.asked) == 3)
        assert all(map(is_closed, (first, silent, more)))
        raw(server.url, b"", 503).close()  # none of them is idle
        engine.held.clear()
        for connection in busy:
            assert answered(connection) == 200
            connection.close()


def tools_of(**changes: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {**FUNCTION, **changes}}]


def test_long_prompts_are_refused_before_they_are_encoded(
    target: specdec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound accepts any text with fewer tokens: the longest token, repeated, is accepted."""
    engine = ScriptedEngine(target, REPLY)
    service = Service(engine, ["mine"], sampling={"bad_words": [[1] * 100_000]})  # no part of a request
    tokenizer = target.tokenizer
    assert tokenizer is not None
    token = max(range(tokenizer.n_vocab), key=lambda one: len(service.texts.utf8(one)))
    text = service.texts.text(token) * engine.n_text
    assert len(text.encode()) == service.most_bytes
    with Server(service, port=0) as server:
        assert post(server.url, TEXTS, prompt=text)[0] == 200
        monkeypatch.setattr(type(tokenizer), "encode", None)
        long = text + "é"
        bodies: tuple[tuple[str, str, dict[str, Any]], ...] = (
            (TEXTS, "prompt", {"prompt": ["a", long]}), (RESPONSES, "input", {"input": long}),
            (TEXTS, "prediction", {"prediction": {"type": "content", "content": long}}),
            (TEXTS, "bad_words", {"bad_words": ["a", long]}),
            (CHAT, "tools", {"tools": tools_of(parameters={"properties": {long: {}}})}),
            (CHAT, "chat_template_kwargs", {"chat_template_kwargs": {"a": [10] * len(long)}}),
            (CHAT, "messages", {"messages": [{**USER[0], "content": text}], "tools": TOOLS}),
        )  # fmt: skip
        for path, param, changes in bodies:
            refused(post(server.url, path, **changes), param=param, code="context_length_exceeded")


def test_long_texts_that_are_tokenized(target: specdec.Model) -> None:
    """Up to a bound of their own, since programs split long documents by their ids; conversations too."""
    engine, n = ScriptedEngine(target, REPLY), 160_000  # more ids than are encoded at once
    service = Service(engine, ["mine"], limits=ServerLimits(n_tokenize_bytes=n))
    assert target.tokenizer is not None and service.most_bytes < n
    with Server(service, port=0) as server:
        for text, status in (("é" * (n // 2), 200), ("é" * (n // 2) + "a", 400)):
            found, answer = ask(server.url, "/tokenize", {"prompt": text, "add_special_tokens": False})
            assert found == status
            if status == 200:
                assert answer["tokens"] == target.tokenizer.encode(text, add_bos=False)
        for param, body in (
            ("content", {"content": "a" * n + "b"}),
            ("tools", {"messages": USER, "tools": tools_of(description="a" * n)}),
        ):
            refused(ask(server.url, "/tokenize", body), param=param, code="context_length_exceeded")
        assert ask(server.url, "/tokenize", {"messages": USER, "tools": TOOLS})[0] == 200


def test_texts_that_are_tokenized_hold_nobody_up(
    target: specdec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many long ones at once leave threads for requests of other kinds."""
    go_on = threading.Event()
    encode = type(target.tokenizer).encode

    def slow(tokenizer: Any, text: str, **options: Any) -> list[int]:
        assert text != "slow" or go_on.wait(60)
        return encode(tokenizer, text, **options)

    monkeypatch.setattr(type(target.tokenizer), "encode", slow)
    with serving(target, REPLY) as (_, server):
        waiting = [sent(server.url, "/tokenize", {"prompt": "slow"}) for _ in range(40)]
        assert ask(server.url, "/health")[0] == 200
        assert post(server.url, CHAT)[0] == 200
        go_on.set()
        for connection in waiting:
            assert answered(connection) == 200
            connection.close()


@pytest.mark.slow
def test_the_server_answers_while_a_long_text_is_encoded(target: specdec.Model) -> None:
    with serving(target, REPLY, limits=ServerLimits(n_tokenize_bytes=8 << 20)) as (_, server):
        text = 'if (a[0] == {"b": "c"}) return;\n' * 20_000
        waiting, n = sent(server.url, "/tokenize", {"prompt": text}), 0
        while not select([waiting], [], [], 0)[0]:
            assert ask(server.url, "/health")[0] == 200
            n += 1
        assert answered(waiting) == 200 and n > 50
        waiting.close()


def test_connections_that_are_idle_or_dawdle(target: specdec.Model) -> None:
    with serving(target, REPLY, limits=ServerLimits(idle_s=0.2)) as (engine, server):
        engine.held.set()
        busy = sent(server.url, CHAT, body_of(CHAT))
        idle = [raw(server.url, b"", 0), raw(server.url, GET, 200), raw(server.url, GET[:30], 0)]
        assert all(map(is_closed, idle))
        engine.held.clear()
        assert answered(busy) == 200  # it had not been idle
        assert is_closed(busy)


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
BODY = json.dumps({"prompt": "Once", "user": "x" * 20_000}).encode()


def in_chunks(body: bytes, size: int, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    """A chunked body."""
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    return chunks + b"0\r\n" + trailers + b"\r\n"


SENT = [
    (HEALTH + b"X: " + b"y" * 60_000 + b"\r\n\r\n", 200), (HEALTH + b"X: " + b"y" * 70_000, 431),
    (HEALTH + b"a: b\r\n" * 255 + b"\r\n", 200), (HEALTH + b"a: b\r\n" * 300, 431),
    (HEALTH[:11] + b"?" + b"y" * 70_000, 431), (b"\r\n" * 40_000, 431), (CHUNKED + in_chunks(BODY, 1), 200),
    (CHUNKED.replace(b"chunked", b"Chunked") + in_chunks(BODY, 1), 200),
    (CHUNKED + in_chunks(BODY, 1000, b";a=b", b"c: d\r\n" * 1000), 200),
    (CHUNKED + b"1;" + b"x" * 70_000, 431), (CHUNKED + in_chunks(BODY, 100, b";" + b"x" * 400)[:-5], 431),
    (CHUNKED + b"".join(b"%015x\r\n%c\r\n" % (1, byte) for byte in BODY), 431),
    (CHUNKED + in_chunks(BODY, 1000, trailers=b"c: d\r\n" * 12_000)[:-2], 431),
    (CHUNKED + in_chunks(BODY, 1000, trailers=b"c: " + b"d" * 70_000)[:-2], 431),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(SENT)))
def test_bounds_on_what_is_no_body(url: str, case: int) -> None:
    """Heads, chunk extensions and trailers; not how a body is cut into chunks."""
    sent, status = SENT[case]
    connection = raw(url, sent, status)
    if status == 200:
        connection.sendall(HEALTH + b"\r\n")
        assert answered(connection) == 200
        connection.close()
    else:
        assert is_closed(connection)


def test_trailers_are_no_headers(target: specdec.Model) -> None:
    """A key or host in a trailer does not count: a request is admitted before its body is read."""
    key = b"Authorization: Bearer secret\r\n"
    with serving(target, REPLY, api_key="secret") as (_, server):
        raw(server.url, CHUNKED + in_chunks(BODY, 1000, trailers=key), 401).close()
        head = CHUNKED.replace(b"\r\n", b"\r\n" + key, 1)
        raw(server.url, head + in_chunks(BODY, 1000, trailers=b"Host: evil\r\n"), 200).close()


def chat() -> bytes:
    """A request for a chat completion."""
    body = json.dumps(body_of(CHAT)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_requests_that_are_sent_ahead(url: str, engine: ScriptedEngine) -> None:
    """Some wait for their turn. After the answers to these the connection is closed; the rest is dropped."""
    engine.held.set()
    for n_ahead, n_answers in ((16, 17), (17, 17), (1000, 17)):
        n_asked = len(engine.asked)
        connection = raw(url, chat() + GET * n_ahead, 0)
        wait_for(lambda n_asked=n_asked: len(engine.asked) > n_asked)
        engine.held.clear()
        received = b""
        if n_ahead == 16:
            while received.count(b'"status":"ok"') < 16:
                received += connection.recv(65536)
            connection.sendall(GET)
            assert answered(connection) == 200
        else:
            while piece := connection.recv(65536):
                received += piece
        connection.close()
        assert received.count(b"HTTP/1.1 200") == n_answers
        assert received.index(b"by the sea") < received.index(b'"status":"ok"')
        assert received.count(b"connection: close") == (n_ahead > 16)
        engine.held.set()


@pytest.mark.parametrize(
    "ahead", [GET[:-2] + b"X: " + b"y" * 70_000, b"no HTTP\r\n\r\n", CHUNKED + b"2;" + b"x" * 70_000,
              GET + CHUNKED + in_chunks(b"x" * 2_000_000, 5000)]
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_what_comes_ahead_of_an_answer_does_not_end_it(
    url: str, engine: ScriptedEngine, ahead: bytes, stream: bool
) -> None:
    engine.held.set()
    connection = sent(url, CHAT, body_of(CHAT, stream=stream))
    wait_for(lambda: bool(engine.asked))
    connection.sendall(ahead)
    time.sleep(0.05)
    engine.held.clear()
    received = rest_of(connection)
    assert b"by the sea" in b"".join(re.findall(rb"[a-z ]+", received)) or stream
    assert received.count(b"HTTP/1.1 ") == 1 + ahead.startswith(GET)
    assert not stream or b"data: [DONE]" in received


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_of_a_request_is_printed(
    url: str, engine: ScriptedEngine, capfd: pytest.CaptureFixture[str], stream: bool
) -> None:
    """For faults of the server, and of drafts that raise anything, only the location in the program."""
    assert post(url, CHAT, stream=stream)[0] == 200 and capfd.readouterr() == ("", "")
    engine.refusal, engine.error = RuntimeError("a fault with Hello"), ZeroDivisionError("Hello")
    for where in ("RuntimeError in /v1/chat/completions", "ZeroDivisionError in the texts of chatcmpl-"):
        refused(post(url, CHAT, stream=stream), 500, code="internal_error")
        err = capfd.readouterr().err
        assert where in err and "scripted_engine.py" in err and "Hello" not in err
        engine.refusal = None


def test_a_gentle_stop(target: specdec.Model) -> None:
    """Texts that are being written end; new requests get status 503."""
    engine = ScriptedEngine(target, REPLY)
    service = Service(engine, ["mine"])
    server = Server(service, port=0)
    with server:
        engine.held.set()
        waiting = sent(server.url, CHAT, body_of(CHAT))
        wait_for(lambda: bool(engine.asked))
        url = server.url
        server.stop()
        wait_for(lambda: service.stopping)
        refused(post(url, CHAT), 503, code="server_stopping")
        assert ask(url, "/health") == (503, {"status": "stopping", "draft": None})
        engine.held.clear()
        assert answered(waiting) == 200
    waiting.close()
    with pytest.raises(OSError, match="refused"):
        ask(url, "/health")


def test_a_stop_at_once(target: specdec.Model) -> None:
    with serving(target, REPLY) as (engine, server):
        engine.held.set()
        streams = [sent(server.url, CHAT, body_of(CHAT, stream=stream)) for stream in (False, True)]
        wait_for(lambda: len(engine.asked) == 2)
        server.stop(now=True)
        assert all(rest_of(stream).startswith(b"HTTP/1.1 503") for stream in streams)
    assert engine.closed


def test_a_port_that_is_taken(target: specdec.Model) -> None:
    service = Service(ScriptedEngine(target), ["mine"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = Server(service, port=taken.getsockname()[1])
        with pytest.raises(OSError, match="is in use or not permitted"):
            server.run()
