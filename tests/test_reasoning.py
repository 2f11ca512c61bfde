"""Reasoning in replies: separated from the answer, bounded, and free of the answer's constraint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specdec
from chat_templates import TEMPLATES
from http_talk import ask
from refusals import refuses
from scripted_engine import ScriptedEngine, serving
from scripted_models import write_scripted_model
from specdec import Engine, drafts
from specdec.serve import Server, Service
from trained import small_pair

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "2+2?"}]
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SWITCH = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
EFFORT = "{% if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}"
START = "{% if add_generation_prompt %}<|im_start|>assistant\n"
TEMPLATE = f"{TURNS}{START}{SWITCH}{{% endif %}}"
OPENED = f"{TURNS}{START}<think>\n{{% endif %}}{{# </think> #}}"
QWEN = ["<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>"]
QUESTION = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
REPLY = "<think>\n2 and 2 is\n</think>\n\nFour."
HARMONY = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>", "<|constrain|>"]
CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}"
    "<|message|>{{ m.content }}<|end|>{% endfor %}{% if tools %}{% endif %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
HARMONY_QUESTION = "<|start|>user<|message|>2+2?<|end|><|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"
HARMONY_REPLY = f"{ANALYSIS.format('2 and 2.')}<|channel|>final<|message|>Four.<|return|>"
ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"enum": [1, 23]}},
       "required": ["a"], "additionalProperties": False}}  # fmt: skip
TOOLS = [{"type": "function", "function": ADD}]


def model(
    folder: Path, reply: str = REPLY, template: str = TEMPLATE, specials: list[str] = QWEN,
    question: str = QUESTION,
) -> specdec.Model:  # fmt: skip
    """A model that writes a reply to "2+2?" wherever nothing else is forced."""
    end = "<|return|>" if specials is HARMONY else "<|im_end|>"
    write_scripted_model(folder, question, reply, specials, end, n_ctx=192, chat_template=template)
    return specdec.load(folder, "f32")


def harmony(folder: Path, reply: str = HARMONY_REPLY) -> specdec.Model:
    return model(folder, reply, CHANNELS, HARMONY, HARMONY_QUESTION)


def reply_to(target: specdec.Model, **options: Any) -> specdec.Result:
    """The greedy reply, which a draft does not change."""
    found = specdec.generate(target, None, messages=ASKED, **options)
    assert specdec.generate(target, drafts.PromptLookup(min_match=1), messages=ASKED, **options) == found
    return found


# ------------------------------------------------------------------------------- answers and constraints


@pytest.mark.parametrize("specials", [QWEN, QWEN + TAGS])
def test_the_answer_comes_after_the_reasoning(specials: list[str], tmp_path: Path) -> None:
    """Whether the tags are special tokens or written in bytes, and wherever the prompt has got to."""
    target = model(tmp_path / "a", specials=specials)
    found = reply_to(target)
    assert (found.answer, found.n_reasoning_tokens, found.finish_reason) == ("Four.", 12, "stop")
    assert specdec.Result.from_dict(json.loads(json.dumps(found.to_dict()))).answer == "Four."
    switched_off = {"chat_template_kwargs": {"enable_thinking": False}}
    found = reply_to(target, **switched_off, max_new_tokens=6)
    assert (found.answer, found.n_reasoning_tokens) == (found.text, 0)
    opened = model(tmp_path / "b", REPLY.removeprefix("<think>\n"), OPENED, specials, f"{QUESTION}<think>\n")
    assert (reply_to(opened).answer, reply_to(opened).n_reasoning_tokens) == ("Four.", 11)
    assert reply_to(opened, max_new_tokens=5).answer == ""
    plain = model(tmp_path / "c", " <thin> Four.", specials=specials)
    assert (reply_to(plain).answer, reply_to(plain).n_reasoning_tokens) == (" <thin> Four.", 0)


@pytest.mark.parametrize(
    ("begin", "end"),
    [("<|channel>thought\n", "<channel|>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"),
     ("<|START_THINKING|>", "<|END_THINKING|>"), ("<mm:think>", "</mm:think>")],
)  # fmt: skip
def test_tags_of_other_families(begin: str, end: str, tmp_path: Path) -> None:
    """Special tokens, in part (Gemma 4), or texts."""
    names = [begin.removesuffix("thought\n"), end]
    template = f"{TURNS}{START}{{% endif %}}{{# {begin.strip()} {end} #}}"
    for i, specials in enumerate((QWEN, QWEN + names)):
        target = model(tmp_path / str(i), f"{begin}Hm.{end}Four.", template, specials)
        assert (reply_to(target).answer, reply_to(target).n_reasoning_tokens) == ("Four.", 3)
        found = reply_to(target, max_reasoning_tokens=2, regex="[0-9]{3}")
        assert re.fullmatch("[0-9]{3}", str(found.answer)) and found.n_reasoning_tokens == 2
        wanted = target.tokenizer.encode(f"{begin}Hm{end}", add_bos=False)  # type: ignore[union-attr]
        assert found.tokens[: len(wanted)] == wanted


def test_a_message_that_is_continued(tmp_path: Path) -> None:
    """Its text decides, and tags in a question do not count."""
    target = model(tmp_path)
    for text, inside in (("<think>\nHm", True), ("<think>a</think>b", False), ("It is", False)):
        asked = [{"role": "user", "content": "<think>"}, {"role": "assistant", "content": text}]
        how: Any = {"messages": asked, "max_new_tokens": 12, "ignore_eos": True}
        found = specdec.generate(target, None, **how, max_reasoning_tokens=2)
        assert ("</think>" in str(found.text)) == inside
        assert (specdec.generate(target, None, **how, regex="[a-c]+").text or "")[0] in "abc" or inside
    found = specdec.generate(
        target, None, messages=[{"role": "user", "content": "<think>"}], max_new_tokens=9
    )
    assert found.n_reasoning_tokens == 0


@pytest.mark.parametrize("specials", [QWEN, QWEN + TAGS])
def test_a_constraint_begins_after_the_reasoning(specials: list[str], tmp_path: Path) -> None:
    target = model(tmp_path / "a", specials=specials)
    for asked in ({"regex": "[0-9]{3}"}, {"schema": {"const": [1]}}, {"grammar": 'start: "Two"'}):
        found = reply_to(target, **asked)
        assert found.finish_reason == "stop" and found.n_reasoning_tokens == 12
        assert found.answer in ("Two", "[1]") or re.fullmatch("[0-9]{3}", str(found.answer))
    assert reply_to(target, regex="[0-9]{3}", max_reasoning_tokens=4).n_reasoning_tokens == 4
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert re.fullmatch("[0-9]{3}", str(reply_to(target, regex="[0-9]{3}", **off).text))
    plain = model(tmp_path / "b", "Four.", specials=specials)  # does not reason this time
    assert reply_to(plain, regex="Fo[a-u]{2}").text == "Four"
    early = model(tmp_path / "c", "<think>a<|im_end|>", specials=specials)  # would end without an answer
    assert reply_to(early, regex="[0-9]{3}", max_new_tokens=20).finish_reason == "length"


def test_a_constraint_of_the_caller_sees_the_answer_only(tmp_path: Path) -> None:
    class Two:
        """Two tokens of their own, as truth values and as words; the second repeats the first."""

        def __init__(self, new: tuple[int, ...] = ()) -> None:
            self.new = new

        def start(self, tokens: Any) -> Two:
            assert list(tokens) == target.chat_ids(ASKED)
            return Two()

        def fork(self) -> Two:
            return Two(self.new)

        def advance(self, token: int) -> None:
            self.new += (token,)

        def mask(self) -> Any:
            if len(self.new) == 2:
                return None
            allowed = np.zeros(target.config.n_vocab, bool)
            allowed[[65, 66] if not self.new else [self.new[0]]] = True
            padded = np.concatenate([allowed, np.zeros(-len(allowed) % 32, bool)])
            return allowed if not self.new else np.packbits(padded, bitorder="little").view(np.uint32)

    for reply in (REPLY, "bbb"):
        target = model(tmp_path / reply[1:3], reply)
        found = specdec.generate(target, None, messages=ASKED, constraint=Two())
        first, second = found.tokens[-2:]
        assert first == second and first in (65, 66) and found.finish_reason == "stop"
        assert found.n_reasoning_tokens == (12 if reply is REPLY else 0)


# --------------------------------------------------------------------------------------------- the bound

DRAFTS: dict[str, Any] = {
    "model": lambda draft: draft,
    "tree": lambda draft: drafts.ModelDraft(draft, tree=drafts.DynamicTree(8, width=3, steps=4)),
    "copying": lambda draft: drafts.PromptLookup(min_match=1),
    "early exit": lambda draft: drafts.EarlyExit(1),
    "ensemble": lambda draft: drafts.Ensemble(drafts.PromptLookup(min_match=1), draft),
}


@pytest.mark.grid
@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize("limit", [0, 1, 6])
@pytest.mark.parametrize(
    "how", [{}, {"temperature": 0.9, "verify": "coupled", "seed": 7}], ids=["greedy", "coupled"]
)
def test_the_bound_is_exact_under_speculation(kind: str, limit: int, how: dict[str, Any]) -> None:
    """Equal to plain decoding along trees and in batches, with a constraint and without."""
    target, draft = small_pair()
    target = target.with_chat_template(OPENED)
    asked = [[{"role": "user", "content": text}] for text in ("Once", "Why is the sea so deep?", "She said")]
    for constraint in ({}, {"regex": "[A-Z][a-z]{2,5}"}):
        options: Any = {"max_reasoning_tokens": limit, "max_new_tokens": 24, **constraint, **how}
        plain = specdec.generate(target, None, messages=asked, **options)
        found = specdec.generate(target, DRAFTS[kind](draft), messages=asked, **options)
        for i, (one, wanted) in enumerate(zip(found, plain, strict=True)):
            assert np.array_equal(one.tokens, wanted.tokens)
            own = {"seed": [(7, i)]} if "seed" in how else {}
            alone = specdec.generate(target, DRAFTS[kind](draft), messages=asked[i], **{**options, **own})
            assert np.array_equal(alone.tokens, wanted.tokens)
            assert wanted.n_reasoning_tokens == limit  # these models never close it themselves
            before, _, after = str(wanted.text).partition("</think>")
            assert target.tokenizer is not None
            assert before.encode() == b"".join(map(target.tokenizer.text_bytes, wanted.tokens[:limit]))  # type: ignore[attr-defined]
            assert not constraint or re.fullmatch("[A-Z][a-z]{2,5}", after)


def test_a_bound_is_not_reached(tmp_path: Path) -> None:
    target = model(tmp_path)
    assert reply_to(target, max_reasoning_tokens=12) == reply_to(target)
    found = reply_to(target, max_reasoning_tokens=11)
    assert str(found.text).startswith("<think>\n2 and 2 is</think>") and found.n_reasoning_tokens == 11
    with Engine(target, None, n_threads=1) as engine:
        assert engine.submit(messages=ASKED, max_reasoning_tokens=11).result() == found


def test_the_bound_completes_a_tag_that_has_begun(tmp_path: Path) -> None:
    target = model(tmp_path, "<think>ab</thi")
    found = reply_to(target, max_reasoning_tokens=5)
    assert str(found.text).startswith("<think>ab</think>") and found.n_reasoning_tokens == 2


def test_channels(tmp_path: Path) -> None:
    """Of gpt-oss: the analysis is bounded, other channels are not, a constraint begins in the final one."""
    target = harmony(tmp_path / "a")
    assert (reply_to(target).answer, reply_to(target).n_reasoning_tokens) == ("Four.", 8)
    names = {token: name for name, token in target.tokenizer.special_tokens().items()}  # type: ignore[union-attr]

    def written(found: specdec.Result) -> str:
        assert target.tokenizer is not None
        return "".join(names.get(token) or target.tokenizer.decode([token]) for token in found.tokens)

    begun = "<|channel|>analysis<|message|>2 a<|end|><|start|>assistant<|channel|>"
    assert written(reply_to(target, max_reasoning_tokens=3)).startswith((f"{begun}f", f"{begun}c"))
    for asked in ({}, {"max_reasoning_tokens": 3}, {"max_reasoning_tokens": 0}):
        found = reply_to(target, regex="[0-9]{3}", **asked)
        n = asked.get("max_reasoning_tokens", 8)
        reasoning = ANALYSIS.format("2 and 2."[:n])
        wanted = f"{reasoning * (n > 0)}<|channel|>final<|message|>"  # no analysis is begun for nothing
        assert re.fullmatch(re.escape(wanted) + "[0-9]{3}<.return.>", written(found))
        assert re.fullmatch("[0-9]{3}", str(found.answer)) and found.n_reasoning_tokens == n
    assert reply_to(harmony(tmp_path / "b", "Four.<|return|>")).answer == "Four."


def test_what_cannot_be_bounded_is_refused(tmp_path: Path) -> None:
    target = model(tmp_path)
    bare: Any = {"messages": ASKED, "chat_template_kwargs": {"chat_template": "{{ 1 }}"}}
    for options in ({"prompt": "a"}, bare):
        with refuses("max_reasoning_tokens", 3):
            specdec.generate(target, None, max_reasoning_tokens=3, **options)
    with pytest.raises(specdec.InputError, match="enable_thinkin is given, but the chat template of"):
        specdec.generate(target, None, messages=ASKED, chat_template_kwargs={"enable_thinkin": False})
    qwen = target.with_chat_template(TEMPLATES["qwen3"][0])
    found = specdec.generate(
        qwen, None, messages=ASKED, chat_template_kwargs={"enable_thinking": False}, regex="[a-z]{3}"
    )
    assert re.fullmatch("[a-z]{3}", str(found.text))


# ------------------------------------------------------------------------------------------- the server


def parts(answer: Any) -> tuple[str, str]:
    """(reasoning, content) of a chat's answer, whole or streamed."""
    if isinstance(answer, dict):
        message = answer["choices"][0]["message"]
        return message.get("reasoning_content", ""), message["content"] or ""
    deltas = [event["choices"][0]["delta"] for event in answer[:-1] if event["choices"]]
    reasoning = "".join(delta.get("reasoning_content", "") for delta in deltas)
    return reasoning, "".join(delta.get("content", "") for delta in deltas)


@pytest.mark.parametrize("specials", [QWEN, QWEN + TAGS])
def test_a_reply_is_taken_apart(specials: list[str], tmp_path: Path) -> None:
    """In chats and responses, whole and streamed; with a bound, a constraint and a forced call."""
    target = model(tmp_path, template=TEMPLATE + "{% if tools %}{% endif %}" + EFFORT, specials=specials)
    chats, reasoning = "/v1/chat/completions", "2 and 2 is"
    with Engine(target, None, n_threads=1) as engine, Server(Service(engine, ["m"]), port=0) as server:
        for more, wanted, n in (
            ({}, (reasoning, "Four."), 12), ({"max_reasoning_tokens": 5}, ("2 an", None), 5),
            ({"structured_outputs": {"choice": ["One"]}}, (reasoning, "One"), 12),
            ({"stop": ["is"]}, ("2 and 2", ""), 11), ({"max_tokens": 9}, (None, ""), 0),
        ):  # fmt: skip
            body = {"messages": ASKED, "temperature": 0, **more}
            status, answer = ask(server.url, chats, body)
            _, events = ask(server.url, chats, {**body, "stream": True})
            assert status == 200 and parts(answer) == parts(events)
            assert all(a in (None, b) for a, b in zip(wanted, parts(answer), strict=True))
            details = answer["usage"]["completion_tokens_details"]
            assert "max_tokens" in more or details["reasoning_tokens"] == n
        forced = {"messages": ASKED, "tools": TOOLS, "tool_choice": "required", "temperature": 0}
        forced["parallel_tool_calls"] = False
        _, answer = ask(server.url, chats, forced)
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"])["a"] in (1, 23) and parts(answer)[0] == reasoning
        _, answer = ask(server.url, "/v1/responses", {"input": "2+2?", "temperature": 0})
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
        assert answer["output"][0]["content"][0]["text"] == reasoning
        assert answer["output"][1]["content"][0]["text"] == "Four."
        assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == 12
        _, events = ask(server.url, "/v1/responses", {"input": "2+2?", "temperature": 0, "stream": True})
        texts = [one["delta"] for one in events if one["type"] == "response.reasoning_text.delta"]
        assert "".join(texts) == reasoning


@pytest.mark.oracle
def test_the_client_of_openai(tmp_path: Path) -> None:
    """Reads reasoning of chats and responses, whole and streamed, and sends it back."""
    import openai

    target = model(tmp_path, template=TEMPLATE + EFFORT)
    with (
        Engine(target, None, n_threads=1) as engine,
        Server(Service(engine, ["m"]), port=0) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        asked: Any = {"model": "m", "messages": ASKED, "temperature": 0}
        reply = client.chat.completions.create(**asked)
        message = reply.choices[0].message
        assert (message.reasoning_content, message.content) == ("2 and 2 is", "Four.")  # type: ignore[attr-defined]
        assert reply.usage.completion_tokens_details.reasoning_tokens == 12  # type: ignore[union-attr]
        chunks = client.chat.completions.create(**asked, stream=True)
        deltas = [chunk.choices[0].delta for chunk in chunks]
        assert "".join(getattr(one, "reasoning_content", None) or "" for one in deltas) == "2 and 2 is"
        assert "".join(one.content or "" for one in deltas) == "Four."
        bounded = client.chat.completions.create(**asked, extra_body={"max_reasoning_tokens": 3})
        assert bounded.usage.completion_tokens_details.reasoning_tokens == 3  # type: ignore[union-attr]
        with pytest.raises(openai.BadRequestError, match="reasoning_effort"):
            client.chat.completions.create(**asked, reasoning_effort="huge")  # type: ignore[call-overload]
        response = client.responses.create(model="m", input="2+2?", temperature=0)
        kinds = [item.type for item in response.output]
        assert kinds == ["reasoning", "message"] and response.output_text == "Four."
        assert response.output[0].content[0].text == "2 and 2 is"  # type: ignore[union-attr]
        assert response.usage.output_tokens_details.reasoning_tokens == 12  # type: ignore[union-attr]
        with client.responses.stream(model="m", input="2+2?", temperature=0) as stream:
            events = list(stream)
        texts = [one.delta for one in events if one.type == "response.reasoning_text.delta"]
        assert "".join(texts) == "2 and 2 is"
        again: Any = [*ASKED, *response.output, *ASKED]
        assert (
            client.responses.create(model="m", input=again, reasoning={"effort": "low"}).status == "completed"
        )


def test_fields_reach_the_template(tmp_path: Path) -> None:
    """And what it does not read is refused by name."""
    reads, switch = model(tmp_path / "a", template=TEMPLATE + EFFORT), model(tmp_path / "b")
    bare = model(tmp_path / "c", template=f"{TURNS}{START}{{% endif %}}")
    chats, responses = "/v1/chat/completions", "/v1/responses"
    for target in (reads, switch, bare):
        with Engine(target, None, n_threads=1) as engine, Server(Service(engine, ["m"]), port=0) as server:

            def count(**more: Any) -> int:
                _, answer = ask(server.url, "/tokenize", {"messages": ASKED, **more})
                return answer["count"] if "count" in answer else answer["error"]["param"]

            n = count()
            assert (
                count(reasoning_effort="none")
                == {reads: n + 4, switch: n + 19, bare: "reasoning_effort"}[target]
            )
            assert count(reasoning_effort="low") == (n + 3 if target is reads else "reasoning_effort")
            off = {"chat_template_kwargs": {"enable_thinking": False}}
            assert count(**off) == ("chat_template_kwargs" if target is bare else n + 19)
            effort = {"effort": "low", "summary": "auto"}
            for path, body, param in (
                (chats, {"messages": ASKED, "reasoning_effort": "low"}, "reasoning_effort"),
                (responses, {"input": "2+2?", "reasoning": effort}, "reasoning.effort"),
            ):  # fmt: skip
                status, answer = ask(server.url, path, {**body, "max_tokens": 2} if path is chats else body)
                assert status == (200 if target is reads else 400)
                assert status == 200 or answer["error"]["param"] == param
                assert status == 400 or path is chats or answer["reasoning"]["effort"] == "low"
            for body, param in (
                ({"reasoning_effort": "huge"}, "reasoning_effort"),
                ({"chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs"),
                ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"}},
                 "reasoning_effort"),
            ):  # fmt: skip
                status, answer = ask(server.url, chats, {"messages": ASKED, **body})
                assert (status, answer["error"]["param"]) == (400, param)
            status, answer = ask(server.url, chats, {"messages": ASKED, "max_reasoning_tokens": 2})
            assert status == (400 if target is bare else 200)
            assert status == 200 or answer["error"]["param"] == "max_reasoning_tokens"


def test_a_forced_call_after_channels(tmp_path: Path) -> None:
    with (
        Engine(harmony(tmp_path), None, n_threads=1) as engine,
        Server(Service(engine, ["m"]), port=0) as server,
    ):
        named = {"type": "function", "function": {"name": "add"}}
        single = {"parallel_tool_calls": False}
        for choice in ("required", named):
            body = {"messages": ASKED, "tools": TOOLS, "tool_choice": choice, "temperature": 0, **single}
            _, answer = ask(server.url, "/v1/chat/completions", body)
            (call,) = answer["choices"][0]["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"])["a"] in (1, 23)
            assert parts(answer)[0] == "2 and 2."


PIECES = st.lists(st.sampled_from([*TAGS, "<", "</", "think>", "a", " ", "\n", "b c", "</think"]), max_size=9)


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ScriptedEngine, str]]:
    """A server of a byte-level model whose replies tests write, and its URL."""
    with serving(model(tmp_path_factory.mktemp("model"))) as (engine, server):
        yield engine, server.url


@given(text=PIECES.map("".join), step=st.sampled_from([1, 3, 100]))
@settings(deadline=None, max_examples=100)
def test_any_text_is_read_as_a_whole(talking: tuple[ScriptedEngine, str], text: str, step: int) -> None:
    """In pieces of any size, as a regular expression reads the whole text."""
    found = re.fullmatch(r"\s*<think>(.*?)(?:</think>\s*(.*))?", text, re.DOTALL)
    wanted = ("", text) if found is None else (found[1].strip(), found[2] or "")
    engine, url = talking
    engine.text, engine.step = text, step
    _, events = ask(url, "/v1/chat/completions", {"messages": ASKED, "stream": True})
    assert parts(events) == wanted
