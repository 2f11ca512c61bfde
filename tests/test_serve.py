"""The server with its engine: every text equals its request's alone, whatever other requests are served."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from http_talk import ask, connected, send
from processes import wait_for
from scripted_engine import serving
from scripted_models import write_scripted_model
from specdec import Engine
from specdec.serve import Server, Service
from worlds.adapters import llama_adapter

Pair = tuple[specdec.Model, specdec.Model]
PROMPTS = ["Once upon a time", "It was a dark", "The captain looked", "She opened the letter"]


@pytest.fixture(scope="module")
def engine(chatting_pair: Pair) -> Iterator[Engine]:
    with Engine(*chatting_pair, n_slots=8, n_threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with Server(Service(engine, ["mine"], draft_name="small"), port=0) as server:
        yield server.url


def request_of(number: int) -> dict[str, Any]:
    """A request whose text is determined: greedy, or with a seed under the coupled rule."""
    chosen = random.Random(number)
    body: dict[str, Any] = {
        "model": "mine", "prompt": chosen.choice(PROMPTS) + " " * (number % 3), "seed": number,
        "max_tokens": chosen.randint(1, 24), "stream": chosen.random() < 0.5,
        "temperature": chosen.choice([0, 0.8]),
        "speculative": {"verify": "coupled", "gamma": chosen.randint(0, 4)},
    }  # fmt: skip
    if chosen.random() < 0.3:
        body["stop"] = [chosen.choice([".", "the", "I"])]
    if chosen.random() < 0.3:
        body["repetition_penalty"] = 1.2
    return body


def alone(target: specdec.Model, body: dict[str, Any]) -> str | None:
    """The text of a request by plain decoding."""
    names = ("temperature", "seed", "stop", "repetition_penalty")
    options = {name: body[name] for name in names if name in body}
    return specdec.generate(
        target, None, body["prompt"], max_new_tokens=body["max_tokens"], verify="coupled", **options
    ).text


def text_of(answer: Any) -> str:
    if isinstance(answer, dict):
        return str(answer["choices"][0]["text"])
    return "".join(event["choices"][0]["text"] for event in answer[:-1])


def leave(url: str, body: dict[str, Any], after_s: float) -> None:
    """Send a request and disconnect."""
    with connected(url) as connection:
        send(connection, "/v1/completions", body)
        time.sleep(after_s)


def test_64_clients_at_once_get_their_own_texts(url: str, engine: Engine, chatting_pair: Pair) -> None:
    """While others disconnect: 64 clients, 72 requests, a third of them abandoned."""

    def one(number: int) -> tuple[int, str] | None:
        body = request_of(number)
        if number % 3 == 2:
            leave(url, {**body, "max_tokens": 200, "ignore_eos": True}, 0.02 * (number % 4))
            return None
        status, answer = ask(url, "/v1/completions", body)
        assert status == 200, answer
        return number, text_of(answer)

    with ThreadPoolExecutor(64) as clients:
        found = dict(answer for answer in clients.map(one, range(72)) if answer is not None)
    assert len(found) == 48
    for number, text in found.items():
        assert text == alone(chatting_pair[0], request_of(number)), number
    wait_for(lambda: not (metrics := engine.metrics()).n_running + metrics.n_waiting)


def test_scores_of_prompts(url: str, chatting_pair: Pair) -> None:
    """`echo` with log-probabilities, with new text and without."""
    target = chatting_pair[0]
    assert target.tokenizer is not None
    ids = target.tokenizer.encode(PROMPTS[0])
    (score,) = target.score([([ids[0]], ids[1:])])
    for n_new in (0, 3):
        body = {"prompt": ids, "max_tokens": n_new, "echo": True, "logprobs": 1, "temperature": 0}
        _, answer = ask(url, "/v1/completions", body)
        found = answer["choices"][0]["logprobs"]
        assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
        assert found["token_logprobs"][1 : len(ids)] == score.log_probs.tolist()
        assert len(found["tokens"]) == len(ids) + n_new
        assert answer["choices"][0]["text"].startswith(PROMPTS[0])
        assert answer["usage"]["completion_tokens"] == n_new
    _, events = ask(url, "/v1/completions", {**body, "stream": True})
    streamed = [value for event in events[:-1] for value in event["choices"][0]["logprobs"]["token_logprobs"]]
    assert streamed == found["token_logprobs"]
    assert text_of(events) == answer["choices"][0]["text"]


def spec_decode(url: str) -> Counter[str]:
    """The speculation counters as vLLM's benchmark client reads them: lines, not families."""
    lines = [line.split() for line in ask(url, "/metrics")[1].splitlines() if line.startswith("vllm:spec")]
    found: Counter[str] = Counter()
    for name, value in lines:
        found[name.partition("{")[0]] += float(value)  # type: ignore[assignment]
    return found


def test_requests_of_vllm_bench_serve(url: str) -> None:
    """What `vllm bench serve` sends to two of its endpoints, with all sampling options; what it reads."""
    common = {
        "model": "mine", "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
        "temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "frequency_penalty": 0.0,
        "presence_penalty": 0.0, "repetition_penalty": 1.0,
    }  # fmt: skip
    messages = [{"role": "user", "content": [{"type": "text", "text": PROMPTS[0]}]}]
    payloads: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 20, "logprobs": None}),
        ("/v1/completions", {"prompt": [5, 6, 7, 8], "max_tokens": 20, "logprobs": 2}),
        ("/v1/chat/completions", {"messages": messages, "max_completion_tokens": 20}),
    )
    headers = {"Content-Type": "application/json", "Authorization": "Bearer any", "x-request-id": "bench-0"}
    for path, payload in payloads:
        before = spec_decode(url)
        status, events = ask(url, path, {**common, **payload}, headers=headers)
        assert status == 200 and events[-1] == "[DONE]"
        assert all(event["choices"] for event in events[:-2]) and events[-2]["choices"] == []
        assert events[-2]["usage"]["completion_tokens"] == 20 and events[-2]["usage"]["prompt_tokens"] > 3
        after = spec_decode(url)
        n_drafts, n_drafted, n_accepted, n_by_position = (
            after[name] - before[name]
            for kind in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
            for name in [f"vllm:spec_decode_num_{kind}_total"]
        )
        assert 0 < n_drafts <= 20 and n_by_position == n_accepted <= n_drafted
        assert n_drafts + n_accepted >= 17  # rounds without a draft give a token each


def test_figures_of_an_answer(url: str, engine: Engine) -> None:
    body = {"prompt": PROMPTS[1], "max_tokens": 30, "temperature": 0, "speculative": {"gamma": 3}}
    _, answer = ask(url, "/v1/completions", body)
    found, timings = answer["metrics"]["speculative_decoding"], answer["timings"]
    steps = found["num_spec_steps"]
    assert sum(found["acceptance_histogram"]) == steps > 0
    accepted = sum(j * n for j, n in enumerate(found["acceptance_histogram"]))
    assert accepted == found["num_accepted_draft_tokens"] == timings["draft_n_accepted"]
    assert found["num_draft_tokens"] == timings["draft_n"] >= accepted
    assert found["num_spec_tokens"] == 3
    details = answer["usage"]["completion_tokens_details"]
    assert details["accepted_draft_tokens"] == accepted == sum(details["accepted_draft_tokens_per_pos"])
    assert details["rejected_draft_tokens"] == found["num_draft_tokens"] - accepted
    histogram = found["acceptance_histogram"]
    at = [sum(histogram[position + 1 :]) for position in range(len(histogram) - 1)]
    assert details["accepted_draft_tokens_per_pos"] == [n for n in at if n]
    assert found["mean_acceptance_length"] == 1 + accepted / steps
    assert timings["predicted_n"] == 30 and timings["predicted_per_second"] > 0 and timings["prompt_ms"] > 0
    before = engine.metrics().n_accepted_tokens
    body["speculative"] = {"draft": False}
    _, answer = ask(url, "/v1/completions", body)
    assert answer["metrics"]["speculative_decoding"]["num_spec_steps"] == 0
    assert engine.metrics().n_accepted_tokens == before


PERSON = {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [3, 17]}}
CLOSED = {"type": "object", "additionalProperties": False}
SCHEMA = CLOSED | {"properties": PERSON, "required": [*PERSON]}


def test_structured_outputs(url: str, engine: Engine, chatting_pair: Pair) -> None:
    """As written by plain decoding; unreadable ones are refused."""
    asked = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    body = {"prompt": PROMPTS[0], "max_tokens": 40, "temperature": 0, "response_format": asked}
    _, answer = ask(url, "/v1/completions", body)
    choice = answer["choices"][0]
    wanted = specdec.generate(chatting_pair[0], None, PROMPTS[0], schema=SCHEMA, max_new_tokens=40)
    assert choice["text"] == wanted.text and choice["finish_reason"] == "stop"
    assert set(json.loads(choice["text"])) == {"name", "age"}
    for outputs, texts in (
        ({"choice": ["yes (.)", "no"]}, {"yes (.)", "no"}),
        ({"regex": "[ab]{2}"}, {"aa", "ab", "ba", "bb"}),
        ({"grammar": 'start: "x" | "y"'}, {"x", "y"}),
        ({"json": {"const": 7}}, {"7"}),
    ):
        body = {"prompt": "a", "structured_outputs": outputs}
        assert ask(url, "/v1/completions", body)[1]["choices"][0]["text"] in texts
    for outputs in ({"regex": "["}, {"grammar": "start: ("}, {"json": {"type": "nothing"}}, {"json": False}):
        status, answer = ask(url, "/v1/completions", {"prompt": "a", "structured_outputs": outputs})
        assert status == 400 and answer["error"]["param"], outputs


def test_calls_that_are_asked_for(chatting_pair: Pair) -> None:
    """The reply is a call, whatever the model would write."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}<tool_call>"
    parameters = CLOSED | {"properties": {"place": {"enum": ["Köln", "Bonn"]}}, "required": ["place"]}
    functions = ({"name": name, "parameters": parameters} for name in ("w", "v"))
    tools = [{"type": "function", "function": function} for function in functions]
    body = {"messages": [{"role": "user", "content": "Weather?"}], "tools": tools, "temperature": 0}
    named = {"type": "function", "function": {"name": "v"}}
    with (
        Engine(chatting_pair[0].with_chat_template(template), chatting_pair[1], n_threads=1) as engine,
        Server(Service(engine, ["mine"]), port=0) as server,
    ):
        for choice, names in ((named, {"v"}), ("required", {"v", "w"})):
            asked = {**body, "tool_choice": choice, "parallel_tool_calls": False}
            _, answer = ask(server.url, "/v1/chat/completions", asked)
            found = answer["choices"][0]
            (call,) = found["message"]["tool_calls"]
            assert call["function"]["name"] in names and found["finish_reason"] == "tool_calls"
            assert json.loads(call["function"]["arguments"])["place"] in ("Köln", "Bonn")


HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>", "<|constrain|>")
HARMONY_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}"
    "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}"
    "{% if loop.last and m.role == 'assistant' %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
    "{% if tools %}{% endif %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
ANSWER = (
    "<|channel|>analysis<|message|>2 and 2.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Four, not <|en.<|return|>"
)
CALL = (
    "<|channel|>analysis<|message|>I add.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
    '<|constrain|>json<|message|>{"a":\n1}<|call|>'
)
ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def parts_of(events: list[Any]) -> dict[str, Any]:
    """The deltas of a chat's stream, joined."""
    found: dict[str, Any] = {}
    for event in events[:-1]:
        for name, value in event["choices"][0]["delta"].items():
            found[name] = value if name in ("role", "tool_calls") else found.get(name, "") + value
    return found


def harmony_model(folder: Path, text: str) -> tuple[specdec.Model, str]:
    """A model that replies with a text to "2+2?", and its prompt."""
    prompt = "<|start|>user<|message|>2+2?<|end|><|start|>assistant"
    end = "<|return|>" if text == ANSWER else "<|call|>"
    write_scripted_model(folder, prompt, text, HARMONY, end, chat_template=HARMONY_TEMPLATE)
    return specdec.load(folder, "f32"), prompt


@pytest.mark.parametrize("text", [ANSWER, CALL])
def test_channels_of_a_reply(text: str, tmp_path: Path) -> None:
    """Special tokens separate reasoning, text and calls: in chats and responses, whole and streamed."""
    target, prompt = harmony_model(tmp_path, text)
    asked: list[dict[str, Any]] = [{"role": "user", "content": "2+2?"}]
    tools = [{"type": "function", "function": ADD}]
    reasoning = "2 and 2." if text == ANSWER else "I add."
    content = "Four, not <|en." if text == ANSWER else None
    with (
        Engine(target, None, n_threads=1) as engine,
        Server(Service(engine, ["mine"]), port=0) as server,
    ):
        body = {"messages": asked, "tools": tools, "temperature": 0}
        _, answer = ask(server.url, "/v1/chat/completions", body)
        message, reason = answer["choices"][0]["message"], answer["choices"][0]["finish_reason"]
        assert (message["reasoning_content"], message["content"]) == (reasoning, content)
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(reasoning)
        _, events = ask(server.url, "/v1/chat/completions", {**body, "stream": True})
        streamed = parts_of(events)
        assert streamed["reasoning_content"] == reasoning and (streamed["content"] or None) == content
        if text == CALL:
            assert reason == "tool_calls"
            for (call,) in (message["tool_calls"], streamed["tool_calls"]):
                assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
        else:
            assert reason == "stop" and "tool_calls" not in message
        # Without tools, and with a stop string that is a special token.
        stopping = {"messages": asked, "stop": ["<|end|>"], "temperature": 0}
        _, answer = ask(server.url, "/v1/chat/completions", stopping)
        choice = answer["choices"][0]
        assert choice["message"]["reasoning_content"] == reasoning and choice["message"]["content"] == ""
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "<|end|>")
        # A completion is the text as it is.
        _, answer = ask(server.url, "/v1/completions", {"prompt": prompt, "max_tokens": 60, "temperature": 0})
        assert answer["choices"][0]["text"].startswith(f"analysis{reasoning}assistant")
        # A reply is sent back with its reasoning.
        sent_back = {"role": "assistant", "content": content or ""}
        _, count = ask(server.url, "/tokenize", {"messages": [*asked, {**message, **sent_back}, *asked]})
        _, plain = ask(server.url, "/tokenize", {"messages": [*asked, sent_back, *asked]})
        n_more = len("analysis" + reasoning + "assistant") + 4
        assert count["count"] == plain["count"] + n_more

        body = {"input": asked, "tools": [{"type": "function", **ADD}], "temperature": 0}
        _, answer = ask(server.url, "/v1/responses", body)
        first, second = answer["output"]
        assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == len(reasoning)
        assert first["type"] == "reasoning"
        assert first["content"] == [{"type": "reasoning_text", "text": reasoning}]
        assert second["type"] == ("message" if text == ANSWER else "function_call")
        _, events = ask(server.url, "/v1/responses", {**body, "stream": True})
        deltas = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
        assert "".join(deltas) == reasoning
        kinds = [[item["type"] for item in one["output"]] for one in (events[-1]["response"], answer)]
        assert kinds[0] == kinds[1]
        if text == ANSWER:
            _, again = ask(server.url, "/v1/responses", {"input": [*asked, first, second, *asked]})
            assert again["usage"]["input_tokens"] == count["count"]


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("text", [ANSWER, CALL])
def test_scored_reasoning_comes_before_its_message(text: str, step: int, tmp_path: Path) -> None:
    """However a reply is cut into pieces; all of its tokens are scored in the message."""
    target, asked = harmony_model(tmp_path, text)[0], [{"role": "user", "content": "2+2?"}]
    tokens = specdec.generate(target, None, messages=asked).tokens
    body = {
        "input": asked, "tools": [{"type": "function", **ADD}], "stream": True,
        "include": ["message.output_text.logprobs"],
    }  # fmt: skip
    with serving(target, tokens) as (engine, server):
        engine.step = step
        _, events = ask(server.url, "/v1/responses", body)
    output, kinds = events[-1]["response"]["output"], ["reasoning", "message", "function_call"]
    assert [item["type"] for item in output] == kinds[: 2 + (text == CALL)]
    assert len(output[1]["content"][0]["logprobs"]) == len(tokens) - 1


def test_a_packed_file_that_is_cut_short_while_it_is_served(chatting_pair: Pair, tmp_path: Path) -> None:
    """Requests are refused, without the path of the file; the server goes on."""
    path = specdec.convert(chatting_pair[1].path, tmp_path / "draft.specdec", "int8")
    with (
        Engine(chatting_pair[0], specdec.load(path), n_threads=1) as engine,
        Server(Service(engine, ["mine"]), port=0) as server,
    ):
        body = {"prompt": "Once", "max_tokens": 3}
        assert ask(server.url, "/v1/completions", body)[0] == 200
        os.truncate(path, 4096)
        for _ in range(2):
            status, answer = ask(server.url, "/v1/completions", body)
            assert status == 500 and "was changed" in answer["error"]["message"]
            assert str(tmp_path) not in json.dumps(answer)
        assert ask(server.url, "/health")[0] == 200


def test_adapters_by_name(chatting_pair: Pair, tmp_path: Path) -> None:
    """A request names an adapter as its model; requests with different ones share the engine's rounds."""
    target, draft = chatting_pair
    sizes = target.config
    config = {
        "hidden_size": sizes.d_model, "intermediate_size": sizes.d_ff, "num_hidden_layers": sizes.n_layer,
        "num_attention_heads": sizes.n_head, "num_key_value_heads": sizes.n_kv_head,
    }  # fmt: skip
    adapters = {
        name: target.with_adapter(llama_adapter(tmp_path / name, config, seed, r=8))
        for seed, name in enumerate(("first", "second"))
    }
    bodies = [
        {"model": name, "prompt": PROMPTS[0], "max_tokens": 12, "temperature": 0, "logprobs": 1}
        for name in (*adapters, "mine")
    ]
    with (
        Engine(target, draft, n_slots=4, n_threads=1, prompt_cache=specdec.PromptCache()) as engine,
        Server(Service(engine, ["mine"], adapters=adapters), port=0) as server,
        ThreadPoolExecutor(6) as threads,
    ):
        found = list(threads.map(lambda body: ask(server.url, "/v1/completions", body), bodies * 2))
        echo = {"model": "second", "prompt": "Once upon", "max_tokens": 0, "echo": True, "logprobs": 0}
        _, scored = ask(server.url, "/v1/completions", echo)
        _, listed = ask(server.url, "/v1/models")
        status, unknown = ask(server.url, "/v1/completions", bodies[0] | {"model": "third"})
    for (_, answer), body in zip(found, bodies * 2, strict=True):
        model = adapters.get(body["model"], target)
        text = specdec.generate(model, None, PROMPTS[0], max_new_tokens=12).text
        assert answer["choices"][0]["text"] == text and answer["model"] == body["model"]
    assert len({answer["choices"][0]["text"] for _, answer in found}) == 3
    log_probs = scored["choices"][0]["logprobs"]["token_logprobs"][1:]
    assert log_probs == pytest.approx(adapters["second"].score("Once upon").tolist())
    assert [(one["id"], one["parent"]) for one in listed["data"]] == [
        ("mine", None), ("first", "mine"), ("second", "mine"),
    ]  # fmt: skip
    assert status == 404 and "'first'" in unknown["error"]["message"]
    with pytest.raises(specdec.errors.InputError, match="adapters has"):
        Service(engine, ["mine"], adapters={"mine": adapters["first"]})


# ── The client `openai`: every field that it sends is understood, every field that it reads exists

PROMPT = "It was a dark and stormy night"
ASKED: Any = [{"role": "user", "content": PROMPT}]
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOL: Any = {"name": "weather", "description": "The weather of a place.", "parameters": PLACE}
TOOL_CALL = 'I look. <tool_call>\n{"name": "weather", "arguments": {"place": "Köln"}}\n</tool_call>'


def openai_client(url: str) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Any]:
    with openai_client(url) as client:
        assert [model.id for model in client.models.list()] == ["mine"]
        yield client


@pytest.fixture(scope="module")
def calling(chatting_pair: Pair) -> Iterator[Any]:
    """A client of a model that always calls a tool."""
    with serving(chatting_pair[0], TOOL_CALL) as (_, server), openai_client(server.url) as client:
        yield client


@pytest.mark.oracle
def test_texts_of_all_paths_equal_generate(client: Any, chatting_pair: Pair) -> None:
    """And so do their log-probabilities; streams by the client's own accumulation."""
    how: Any = {"max_new_tokens": 25, "logprobs": 3}
    wanted = specdec.generate(chatting_pair[0], None, PROMPT, **how)
    assert wanted.logprobs is not None and wanted.top_logprobs is not None
    found = client.completions.create(model="mine", prompt=PROMPT, max_tokens=25, temperature=0, logprobs=3)
    (choice,) = found.choices
    assert choice.text == wanted.text and choice.finish_reason == "length"
    assert np.array_equal(choice.logprobs.token_logprobs, wanted.logprobs)
    best = [max(value for _, value in top) for top in wanted.top_logprobs]
    assert [max(top.values()) for top in choice.logprobs.top_logprobs] == best
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(wanted.prompt_ids), 25)

    wanted = specdec.generate(chatting_pair[0], None, messages=ASKED, **how)
    ended = specdec.generate(chatting_pair[0], None, messages=ASKED, stop=["."])
    assert wanted.logprobs is not None and wanted.top_logprobs is not None
    asked: Any = {"model": "mine", "messages": ASKED, "max_completion_tokens": 25, "temperature": 0}
    (choice,) = client.chat.completions.create(logprobs=True, top_logprobs=3, **asked).choices
    assert choice.message.role == "assistant" and choice.message.content == wanted.text
    assert np.array_equal([entry.logprob for entry in choice.logprobs.content], wanted.logprobs)
    for entry, top in zip(choice.logprobs.content, wanted.top_logprobs, strict=True):
        assert [one.logprob for one in entry.top_logprobs] == [value for _, value in top]
    with client.chat.completions.stream(**{**asked, "max_completion_tokens": 200}, stop=["."]) as stream:
        assert stream.get_final_completion().choices[0].message.content == ended.text

    asked = {"model": "mine", "input": PROMPT, "max_output_tokens": 25, "temperature": 0}
    found = client.responses.create(**asked)
    assert (found.output_text, found.status, found.usage.output_tokens) == (wanted.text, "incomplete", 25)
    with client.responses.stream(**asked) as stream:
        last = list(stream)[-1]
    assert (last.type, last.response.output_text) == ("response.incomplete", wanted.text)
    ended = client.responses.create(**{**asked, "max_output_tokens": 200}, extra_body={"stop": ["."]})
    assert ended.status == "completed" and "." not in ended.output_text


@pytest.mark.oracle
def test_fields_of_other_servers(client: Any, chatting_pair: Pair) -> None:
    """Sent as `extra_body`; each changes the text as it does in Python."""
    settings: tuple[dict[str, Any], ...] = (
        {"min_tokens": 20, "bad_words": ["the", "."]}, {"no_repeat_ngram_size": 2},
        {"dry_multiplier": 3.0, "dry_allowed_length": 1, "dry_sequence_breakers": ["\n"]},
        {"stop": ["."], "include_stop_str_in_output": True},
    )  # fmt: skip
    asked: Any = {"model": "mine", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    plain = client.completions.create(**asked).choices[0].text
    for more in settings:
        wanted = specdec.generate(chatting_pair[0], None, PROMPT, max_new_tokens=40, **more)
        for named in ({}, {"speculative": {"num_speculative_tokens": 2}}):
            found = client.completions.create(**asked, extra_body={**more, **named})
            assert found.choices[0].text == wanted.text != plain
            assert found.usage.completion_tokens_details.model_extra["accepted_draft_tokens"] >= 0
        with client.completions.create(**asked, stream=True, extra_body=more) as stream:
            assert "".join(event.choices[0].text for event in stream) == wanted.text


@pytest.mark.oracle
def test_calls_of_tools(calling: Any) -> None:
    tools: Any = [{"type": "function", "function": TOOL}]
    asked: Any = {"model": "mine", "messages": ASKED, "tools": tools}
    message = calling.chat.completions.create(**asked).choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"place": "Köln"}
    more = [*ASKED, message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    again = calling.chat.completions.create(**{**asked, "messages": more})
    assert again.choices[0].finish_reason == "tool_calls"
    with calling.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls" and final.message.content == "I look."
    assert final.message.tool_calls[0].function.arguments == call.function.arguments
    flat: Any = [{"type": "function", **TOOL}]
    response = calling.responses.create(model="mine", input=PROMPT, tools=flat)
    assert [item.type for item in response.output] == ["message", "function_call"]
    output = {"type": "function_call_output", "call_id": response.output[1].call_id, "output": "rain"}
    answer: Any = [*ASKED, *response.output, output]
    assert calling.responses.create(model="mine", input=answer, tools=flat).status == "completed"
    with calling.responses.stream(model="mine", input=PROMPT, tools=flat) as stream:
        assert stream.get_final_response().output[1].name == "weather"


@pytest.mark.oracle
def test_answers_satisfy_the_schemas_of_the_client(client: Any, calling: Any) -> None:
    """The client itself accepts any field; here its pydantic types check every field."""
    from openai.types import Completion, chat, responses
    from pydantic import TypeAdapter

    chats: Any = {"messages": ASKED, "logprobs": True, "top_logprobs": 1, "max_tokens": 5}
    texts: Any = {"input": PROMPT, "max_output_tokens": 5, "include": ["message.output_text.logprobs"]}
    tools = [{"type": "function", **TOOL}]
    bodies: tuple[tuple[Any, str, Any, Any, Any], ...] = (
        (client, "completions", {"prompt": PROMPT, "logprobs": 1}, Completion, None),
        (client, "chat/completions", chats, chat.ChatCompletion, chat.ChatCompletionChunk),
        (calling, "chat/completions", chats, chat.ChatCompletion, chat.ChatCompletionChunk),
        (client, "responses", texts, responses.Response, responses.ResponseStreamEvent),
        (calling, "responses", {**texts, "tools": tools}, responses.Response, responses.ResponseStreamEvent),
    )
    for one, path, body, whole, event in bodies:
        url = str(one.base_url).removesuffix("/v1/")
        _, answer = ask(url, f"/v1/{path}", body)
        TypeAdapter(whole).validate_python(answer)
        if event is not None:
            _, events = ask(url, f"/v1/{path}", {**body, "stream": True})
            for found in events:
                if found != "[DONE]":
                    TypeAdapter(event).validate_python(found)


@pytest.mark.oracle
def test_a_pydantic_model(client: Any) -> None:
    from typing import Literal

    from pydantic import BaseModel

    class Person(BaseModel):
        name: Literal["Ann", "Bob"]
        age: Literal[3, 17]

    asked: Any = {"model": "mine", "temperature": 0}
    reply = client.chat.completions.parse(messages=ASKED, response_format=Person, **asked)
    person = reply.choices[0].message.parsed
    assert person.name in ("Ann", "Bob") and person.age in (3, 17)
    assert client.responses.parse(input=PROMPT, text_format=Person, **asked).output_parsed == person
