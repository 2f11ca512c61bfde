"""Inspect AI: texts equal those of `generate` under concurrency; fields of its outputs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import missing
import specdec
from chat_templates import WEATHER, make_chat
from processes import wait_for
from refusals import refuses
from scripted_models import write_scripted_model
from specdec.errors import InputError

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(sys.version_info < (3, 11), reason=missing.PYTHON_3_11),
    # Warnings that Inspect and its packages issue about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PROMPT = "It was a dark and stormy night, and"
PROMPTS = [PROMPT, "The rain had fallen", "She opened the letter", "The captain", "My dear sir,", "In the"]
Factory = Callable[..., Path]


@pytest.fixture(scope="module", autouse=True)
def packages() -> Iterator[None]:
    """Inspect, imported only when these tests run."""
    global model, tool, SpecdecAPI, messages
    from inspect_ai import model, tool

    from specdec.integrations.inspect import messages
    from specdec.integrations.inspect.api import SpecdecAPI

    yield


def ask(api: Any, *prompts: Any, tools: Any = (), choice: Any = "auto", **config: Any) -> list[Any]:
    """Outputs of concurrent requests."""

    def conversation(one: Any) -> Any:
        return [model.ChatMessageUser(content=one)] if isinstance(one, str) else one

    async def all_of_them() -> list[Any]:
        how = list(tools), choice, model.GenerateConfig(**config)
        return list(await asyncio.gather(*(api.generate(conversation(one), *how) for one in prompts)))

    try:
        return asyncio.run(all_of_them())
    finally:
        asyncio.run(api.aclose())


# ── Texts


def test_the_provider_is_found_and_texts_are_those_of_generate() -> None:
    (point,) = entry_points(group="inspect_ai", name="specdec")
    assert point.value == "specdec.integrations.inspect"
    target, draft = specdec.embedded_pair()
    wanted = specdec.generate(target, None, PROMPTS, max_new_tokens=20)
    for options in ({}, {"draft": "embedded", "gamma": 3}, {"draft": "prompt-lookup", "batch_size": 2}):
        api = model.get_model("specdec/embedded", memoize=False, **options).api
        assert isinstance(api, SpecdecAPI) and api.pair.target is target
        outputs = ask(api, *PROMPTS, max_tokens=20)
        assert [output.completion for output in outputs] == [result.text for result in wanted]
        for output, result in zip(outputs, wanted, strict=True):
            n_prompt, usage = len(result.prompt_ids), output.usage
            assert (usage.input_tokens, usage.output_tokens) == (n_prompt, 20)
            assert usage.total_tokens == n_prompt + 20
            assert output.stop_reason == "max_tokens" and output.time > 0
            figures = output.metadata["specdec"]
            assert figures["n_tokens"] == 20 and figures["draft"] == options.get("draft")
            assert (figures["n_accepted"] > 0) <= ("draft" in options)
    speculative = specdec.generate(target, draft, PROMPTS[0], max_new_tokens=20, gamma=3)
    (output,) = ask(SpecdecAPI("embedded", draft="embedded", gamma=3), PROMPTS[0], max_tokens=20)
    assert output.metadata["specdec"]["n_calls"] == speculative.trace.n_calls
    assert output.metadata["specdec"]["acceptance_rate"] == speculative.trace.acceptance_rate


def test_settings_of_each_request() -> None:
    target, _ = specdec.embedded_pair()
    api = SpecdecAPI("embedded", draft="embedded", verify="coupled")
    sampling: dict[str, Any] = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 5}
    (output,) = ask(api, PROMPT, max_tokens=20, num_choices=3, **sampling)
    sampling["seed"] = [(5, 0), (5, 1), (5, 2)]
    wanted = specdec.generate(target, None, [PROMPT] * 3, max_new_tokens=20, verify="coupled", **sampling)
    assert [choice.message.text for choice in output.choices] == [result.text for result in wanted]
    assert output.usage.output_tokens == sum(len(result.tokens) for result in wanted)
    both = ask(api, PROMPTS[1], PROMPT, max_tokens=20, num_choices=2, **{**sampling, "seed": 5})
    texts = [[choice.message.text for choice in output.choices] for output in both]
    assert texts[1] == [result.text for result in wanted[:2]] and texts[0] != texts[1]
    text = specdec.generate(target, None, PROMPT, max_new_tokens=30).text
    assert text is not None
    (output,) = ask(api, PROMPT, max_tokens=30, stop_seqs=[text[10:16]])
    assert output.stop_reason == "stop" and output.completion == text[: text.index(text[10:16])]
    first = specdec.generate(target, None, PROMPT, max_new_tokens=1).tokens[0]
    (output,) = ask(api, PROMPT, max_tokens=5, logit_bias={first: -100.0})
    assert output.completion != text[: len(output.completion)]
    outputs = ask(api, "the " * 1017, "the " * 1100)  # at the end of the context, and beyond
    assert [output.stop_reason for output in outputs] == ["model_length", "model_length"]
    assert outputs[0].usage is not None and outputs[1].usage is None
    (output,) = ask(api, PROMPT, max_tokens=30, frequency_penalty=2.0)
    wanted = specdec.generate(target, None, PROMPT, max_new_tokens=30, frequency_penalty=2.0)
    assert output.completion == wanted.text != text
    with refuses("best_of", 3):
        ask(api, PROMPT, best_of=3)


def test_log_probabilities() -> None:
    target, _ = specdec.embedded_pair()
    (output,) = ask(
        SpecdecAPI("embedded", draft="embedded"), PROMPT,
        max_tokens=12, logprobs=True, top_logprobs=21, prompt_logprobs=1,
    )  # fmt: skip
    result = specdec.generate(target, None, PROMPT, max_new_tokens=12, logprobs=21)
    content = output.choices[0].logprobs.content
    assert "".join(one.token for one in content) == result.text
    assert b"".join(bytes(one.bytes) for one in content) == (result.text or "").encode()
    assert result.logprobs is not None and result.top_logprobs is not None
    assert [one.logprob for one in content] == result.logprobs.tolist()
    for one, top in zip(content, result.top_logprobs, strict=True):
        assert [best.logprob for best in one.top_logprobs] == [value for _, value in top]
        assert one.top_logprobs[0].token == one.token  # greedy
    read = output.choices[0].prompt_logprobs.content
    assert "".join(one.token for one in read) == PROMPT
    assert [one.logprob for one in read] == pytest.approx(target.score(result.prompt_ids).tolist(), abs=1e-9)


# ── Conversations and tools


def test_prompts_by_the_chat_template(make_llama: Factory) -> None:
    target = make_chat(make_llama, "qwen2.5")
    api = SpecdecAPI(str(target.path), draft="prompt-lookup")
    function = WEATHER["function"]
    parameters = tool.ToolParams.model_validate(function["parameters"])
    info = tool.ToolInfo(name=function["name"], description=function["description"], parameters=parameters)
    call = tool.ToolCall(id="c", function=info.name, arguments={"city": "Paris"})
    conversation = [
        model.ChatMessageSystem(content="Be brief."),
        model.ChatMessageUser(content="Is it raining?"),
        model.ChatMessageAssistant(content="", tool_calls=[call]),
        model.ChatMessageTool(content="Yes.", tool_call_id="c", function=info.name),
    ]
    given = messages.template_messages(conversation)
    schemas = messages.template_tools([info])
    assert schemas[0]["function"]["name"] == function["name"]
    for tools in ([], [info]):
        (output,) = ask(api, conversation, tools=tools, max_tokens=8)
        wanted = specdec.generate(
            target, None, messages=given, tools=schemas if tools else None, max_new_tokens=8
        )
        assert output.completion == wanted.text
        assert output.usage.input_tokens == len(wanted.prompt_ids)
    assert '"Paris"' in target.chat_template.render(given) and "Yes." in target.chat_template.render(given)
    with pytest.raises(InputError, match="no tool can be forced"):
        ask(api, conversation, tools=[info], choice="any")
    with pytest.raises(InputError, match="no chat template"):
        ask(SpecdecAPI("embedded"), PROMPT, tools=[info])
    with pytest.raises(InputError, match="holds image"):
        ask(api, [model.ChatMessageUser(content=[model.ContentImage(image="data:image/png;base64,AA==")])])


CALLS: list[tuple[str, str, list[tuple[str, dict[str, Any]]]]] = [
    ("No call.", "No call.", []),
    ('So: <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "So:", [("f", {"a": 1})]),
    ('<function>{"name": "f", "parameters": {}}</function>', "", [("f", {})]),
    ('```json\n{"name": "f", "arguments": {}}\n```', "", [("f", {})]),
    ('[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]', "", [("f", {}), ("g", {})]),
    ('{"name": "f"}', '{"name": "f"}', []),
    ('{"name": "f", "arguments": null}', "", [("f", {})]),
    ('<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>', "", [("f", {"a": "x\ny"})]),
    ("<tool_call>{broken</tool_call>", "", [("unknown", {})]),
]


@pytest.mark.parametrize(("text", "answer", "calls"), CALLS)
def test_calls_in_replies(text: str, answer: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    info = tool.ToolInfo(name="f", description="f")
    reply = messages.reply_of(f"<think>\nHm.\n</think>\n\n{text}", "m", [info])
    assert reply.text == answer
    assert [(call.function, call.arguments) for call in reply.tool_calls or []] == calls
    assert all(bool(call.parse_error) == (call.function == "unknown") for call in reply.tool_calls or [])
    assert reply.content[0].reasoning == "Hm."
    assert messages.template_messages([reply])[0]["reasoning_content"] == "Hm."
    assert messages.reply_of(text, "m", []).text == text


@pytest.mark.parametrize("family", ["harmony", "hermes", "llama"])
def test_special_tokens_separate_the_parts_of_a_reply(family: str, tmp_path: Path) -> None:
    """Reasoning, calls and stops between special tokens, which have no text; a call as the whole text."""
    arguments = '{"a": "x\n</tool_call>"}'
    specials, template, text = {
        "harmony": (
            ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"],
            "{% if tools %}{# <|channel|> #}{% endif %}{{ messages[0].content }}<|start|>assistant",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f"
            f"<|message|>{arguments}<|call|>",
        ),
        "hermes": (
            ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"],
            "{% if tools %}{# <tool_call> #}{% endif %}{{ messages[0].content }}",
            f'<think>Hm.</think>\n<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call><|im_end|>',
        ),
        "llama": (
            ["<think>", "</think>", "<|python_tag|>", "<|eom_id|>"],
            '{% if tools %}{# "parameters": #}{% endif %}{{ messages[0].content }}',
            f'<think>Hm.</think><|python_tag|>{{"name": "f", "parameters": {arguments}}}<|eom_id|>',
        ),
    }[family]
    prompt = "Hi<|start|>assistant" if family == "harmony" else "Hi"
    folder = write_scripted_model(tmp_path, prompt, text, specials, specials[-1], chat_template=template)
    api, info = SpecdecAPI(str(folder)), tool.ToolInfo(name="f", description="f")
    (output,) = ask(api, "Hi", tools=[info])
    message = output.choices[0].message
    assert message.content[0].reasoning == "Hm." and message.text == ""
    assert [(one.function, one.arguments) for one in message.tool_calls] == [("f", {"a": "x\n</tool_call>"})]
    (output,) = ask(api, "Hi", stop_seqs=[specials[3]])
    assert output.stop_reason == "stop" and output.choices[0].message.tool_calls is None


def test_a_cancelled_request_ends_its_text() -> None:
    api = SpecdecAPI("embedded")

    async def run() -> None:
        long = api.generate([model.ChatMessageUser(content="a")], [], "auto", model.GenerateConfig())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(long, 0.02)
        wait_for(lambda: api._engine.metrics().n_finished == {"cancelled": 1})
        await api.aclose()

    asyncio.run(run())
