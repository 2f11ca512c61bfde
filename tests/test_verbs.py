"""The verbs of the command line: output, input and exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest

import specdec
from chat_templates import make_chat
from command_line import VERBS, fails, figure, parse, run, time_quickly, use_models
from processes import ENDLESS, PLAIN, command_process
from specdec.drafts import NAMES
from specdec.errors import InputError
from toy_pair import load_pair, notice_interrupts

TESTS = Path(__file__).parent
Pair = tuple[specdec.Model, specdec.Model]
Factory = Callable[..., Path]
BOTH = ("--target", "big", "--draft", "small")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    time_quickly(monkeypatch)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return load_pair(tmp_path_factory.mktemp("pair"), amount=0.05)


@pytest.fixture
def models(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The toy pair, as "big" and "small", and as the embedded pair."""
    use_models(monkeypatch, pair, targets={"big": pair[0]}, drafts={"small": pair[1]})
    return pair


def found(*arguments: str, **how: Any) -> Any:
    """Output of a command line, parsed as JSON."""
    done = run(*arguments, "--json", **how)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def as_read(value: Any) -> Any:
    """A result after a round trip through JSON."""
    return json.loads(json.dumps(value.to_dict()))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """A file with two prompts."""
    (tmp_path / "prompts.txt").write_text("abc\n\nba ab\n")
    return str(tmp_path / "prompts.txt")


def ended(result: specdec.Result) -> str:
    """The text of a result as printed, with a final newline."""
    assert result.text is not None
    return result.text if result.text.endswith("\n") else f"{result.text}\n"


@pytest.mark.parametrize("asked", [[], ["-h"], ["--gamma", "2"], *([verb] for verb in VERBS)])
def test_help_teaches_by_examples(asked: list[str]) -> None:
    done = run(*asked, "--help")
    assert done.exit_code == 0 and "Examples:" in done.output
    assert max(map(len, done.output.splitlines())) <= 110
    asked = asked or ["-h"]
    own = (*VERBS, "--source", "--no-color", "--lenience", "--version", "_SPECDEC_COMPLETE=bash_source")
    assert all(word in done.output for word in ([f"specdec {asked[0]}"] if asked[0] in VERBS else own))


def test_help_loads_neither_decoding_nor_drafts_nor_heavy_packages() -> None:
    """Only the settings, which the help is made of; `specdec.drafts` alone loads no draft at all."""
    script = """
import sys, specdec.drafts
assert not any(name.startswith("specdec.drafts.") for name in sys.modules)
from specdec.commands.program import main
assert main(["--help"]) == main(["--version"]) == 0
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    heavy = {"torch", "transformers", "matplotlib", "jinja2", "tokenizers", "pandas", "optuna", "scipy"}
    heavy |= {f"specdec.decoding.{name}" for name in ("engine", "generate", "request", "scheduler")}
    assert not heavy & loaded and "specdec.decoding.options" in loaded
    assert {name for name in loaded if name.startswith("specdec.drafts.")} == {"specdec.drafts.draft"}


def examples_of(text: str) -> list[list[str]]:
    """Arguments of each specdec call in a text, without shell syntax."""
    calls = re.findall(r"^ *(?:echo .* \| )?specdec (.*?)(?: {2,}.*| [|<>] .*)?$", text, re.MULTILINE)
    return [shlex.split(call) for call in calls]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_examples_can_be_read() -> None:
    """Those of help pages and of the page on the command line."""
    page = (TESTS.parent / "docs" / "COMMAND_LINE.md").read_text(encoding="utf-8")
    texts = [run(*verb, "--help").output.partition("Examples:")[2] for verb in ([], *([v] for v in VERBS))]
    texts += re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    calls = [call for text in texts for call in examples_of(text)]
    assert len(calls) > 30 and {call[0] for call in calls} > set(VERBS)
    for call in calls:
        if "--help" not in call:
            parse(call)
    with pytest.raises(click.UsageError):
        parse(["generate", "--no-such-option"])


def test_lists_of_drafts_and_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(line: str) -> set[str]:
        words = line.split(" ")
        monkeypatch.setenv("_SPECDEC_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        return {entry.partition(",")[2] for entry in run().output.split()}

    lines = run("drafts").output.splitlines()
    assert [line.split(" ")[0] for line in lines] == [name.usage(word) for word, name in NAMES.items()]
    assert completed("specdec ge") == {"generate"}
    assert completed("specdec ") == set(VERBS)
    assert completed("specdec generate --gam") == {"--gamma"}
    assert completed("specdec --no-c") == {"--no-color"}
    assert completed("specdec --dtype int") == {"int8", "int4"}


def test_generate_prints_the_text_alone(models: Pair) -> None:
    """As words or from standard input; the bundled target has a name, and samples as without one."""
    wanted = specdec.generate(models[0], None, "abc ab", max_new_tokens=30)
    for asked in (["--target", "big"], BOTH, ["--temperature", "0"]):
        done = run("generate", *asked, "--max-new-tokens", "30", "abc", "ab")
        assert (done.exit_code, done.output) == (0, ended(wanted))
    sampled = ["--max-new-tokens", "8", "--seed", "3", "abc"]
    named = run("generate", "--target", "embedded", *sampled)
    assert named.exit_code == 0 and named.output and named.output == run("generate", *sampled).output
    asked = ["generate", "--target", "big", "--draft", "prompt-lookup", "--max-new-tokens", "20"]
    wanted = run(*asked, "abc").output
    for sent in ("abc\n", "abc", "abc\r\n"):
        assert run(*asked, "-", sent=sent).output == wanted
    assert run(*asked, "-", sent="abc\n\n").output != wanted  # one line end is the pipe's


@pytest.mark.parametrize(
    ("words", "sent", "options"),
    [
        ("--temperature 0.9 --seed 4 --stop never -", "abc", {"temperature": 0.9, "seed": 4}),
        ("--gamma 0 --seed 1 -", "abc", {"gamma": 0, "seed": 1}),
        ("--lines --batch-size 2 -", "abc\n\nb a\r\nccc\n", {}),
        ("--temperature 1 --seed 3 --samples 2 --logprobs 2 --lines -", "abc\nb a\n",
         {"temperature": 1.0, "seed": 3, "n": 2, "logprobs": 2}),
    ],
)  # fmt: skip
def test_generate_as_json(models: Pair, words: str, sent: str, options: dict[str, Any]) -> None:
    """A line for each text of each prompt."""
    done = run("generate", *BOTH, "--json", "--max-new-tokens", "6", *words.split(), sent=sent)
    prompts = [line for line in sent.splitlines() if line]
    wanted: Any = specdec.generate(*models, prompts, max_new_tokens=6, **options)
    texts = [(prompt, one) for prompt, several in zip(prompts, wanted, strict=True)
             for one in (several if "n" in options else [several])]  # fmt: skip
    for line, (prompt, result) in zip(map(json.loads, done.output.splitlines()), texts, strict=True):
        trace = result.trace
        assert (line["prompt"], line["text"], line["tokens"]) == (prompt, result.text, result.tokens)
        assert line["seed"] == list(result.seed) or not options  # which is a fresh one
        assert (line["finish_reason"], line["n_calls"]) == (result.finish_reason, trace.n_calls)
        rate = trace.acceptance_rate if trace.n_drafted else None
        assert line["acceptance_rate"] == (rate and pytest.approx(rate))
        if "logprobs" in options:
            assert line["logprobs"] == result.logprobs.tolist()
            assert line["top_logprobs"] == [[list(pair) for pair in top] for top in result.top_logprobs]


@pytest.mark.parametrize(
    ("words", "sent", "message"),
    [
        ("", None, "the prompt is missing"), ("-", "", "standard input is empty"),
        ("--draft-dtype int8 abc", None, "--draft-dtype is int8, but there is no draft"),
        ("-", b"ab\xff\n", "standard input is not UTF-8: invalid start byte at byte 2"),
        ("--json --lines -", "\n \n", "no nonempty line"), ("--target bare abc", None, ""),
        ("--lines -", "abc", "--lines needs --json"), ("--samples 2 abc", None, "--samples needs --json"),
        ("--logprobs 2 abc", None, "--logprobs needs --json"),
        ("--json --batch-size 2 abc", None, "--batch-size needs --lines or --samples"),
    ],
)  # fmt: skip
def test_what_generate_refuses(models: Pair, monkeypatch: Any, words: str, sent: Any, message: str) -> None:
    bare = specdec.load(models[0].path, tokenizer=False)
    use_models(monkeypatch, targets={"big": models[0], "bare": bare})
    done = run("generate", "--target", "big", *words.split(), sent=sent)
    assert (done.exit_code, done.stdout) == (2, "") and done.stderr.startswith("specdec generate: error: ")
    assert message in done.stderr


def test_words_without_quotes(models: Pair) -> None:
    asked = [*BOTH, "--temperature", "0", "--max-new-tokens", "8"]
    quoted, words = run(*asked, "abc ab a"), run("abc", "ab", *asked, "a")
    assert quoted.exit_code == words.exit_code == 0

    def rounds(output: str) -> list[str]:
        return output.split("new tokens")[0].splitlines()

    assert rounds(quoted.output) == rounds(words.output)
    assert rounds(run(*asked, "-", sent="abc ab a\n").output) == rounds(quoted.output)


def test_a_target_alone_decodes_plainly(models: Pair) -> None:
    done = run("--target", "big", "--temperature", "0", "--max-new-tokens", "9", "abc")
    assert done.exit_code == 0
    wanted = specdec.generate(models[0], None, "abc", max_new_tokens=9)
    assert done.output.split("\n\n")[0] == (wanted.text or "").strip("\n").replace("\x1b", "\\x1b")
    assert "plain decoding" in done.output and "tokens per second" in done.output
    assert figure(done.output, "target forward passes") == str(len(wanted.tokens))


@pytest.fixture
def chat_model(make_llama: Factory, monkeypatch: pytest.MonkeyPatch) -> specdec.Model:
    model = make_chat(make_llama, "qwen2.5", seed=3)
    use_models(monkeypatch, targets=lambda *_, **__: model)
    return model


def test_chat(chat_model: specdec.Model) -> None:
    """Each turn continues all earlier ones and reads only new tokens; commands begin with a slash."""
    asked = [
        "chat",
        "--target",
        "m",
        "--draft",
        "prompt-lookup",
        "--max-new-tokens",
        "12",
        "--system",
        "Be brief.",
    ]
    done = run(*asked, sent="Hello!\n\nAnd now?\n/figures\n/what\n/new\n/figures\nHello!\n/quit\nno more\n")
    assert done.exit_code == 0, done.output
    messages: list[dict[str, str]] = [{"role": "system", "content": "Be brief."}]
    said = []
    for question in ("Hello!", "And now?"):
        messages.append({"role": "user", "content": question})
        n_before = len(chat_model.chat_ids(messages[:2]))
        reply = specdec.generate(chat_model, None, messages=messages, max_new_tokens=12)
        assert isinstance(reply, specdec.Result) and reply.text is not None
        messages.append({"role": "assistant", "content": reply.text})
        said.append(ended(reply))
    assert done.stdout == "".join([*said, said[0]])
    figures, what, none = done.stderr.splitlines()
    n_cached = re.search(r"^12 tokens in .* (\d+) of \d+ prompt tokens cached", figures)
    assert n_cached and int(n_cached[1]) >= n_before
    assert "/new starts over" in what and "no reply yet" in none


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_ends_a_reply(
    chat_model: specdec.Model, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """In a terminal the partial reply stays in the conversation; elsewhere the program ends."""
    asked: list[Any] = []

    class Pieces:
        def __iter__(self) -> Iterator[str]:
            yield "half a"
            raise KeyboardInterrupt

        def close(self) -> None:
            pass

    def stream(*_: Any, messages: Any, **options: Any) -> Pieces:
        asked.append([message["content"] for message in messages])
        return Pieces()

    monkeypatch.setattr("specdec.commands.chat_verb.stream", stream)
    done = run("chat", "--target", "m", sent="Hello!\nAnd?\n/quit\n", terminal=terminal)
    assert done.exit_code == (0 if terminal else 130)
    assert asked == [["Hello!"], ["Hello!", "half a", "And?"]][: 1 + terminal]
    assert done.stdout.count("half a") == len(asked)


def test_chat_needs_a_template(models: Pair, chat_model: specdec.Model, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    own = ["chat", "--chat-template", str(template), "--max-new-tokens", "6"]
    template.write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    chatting = models[0].with_chat_template(template.read_text())
    reply = specdec.generate(chatting, None, messages=[{"role": "user", "content": "abc"}], max_new_tokens=6)
    done = run(*own, sent="abc\n")
    assert isinstance(reply, specdec.Result) and (done.exit_code, done.output) == (0, f"{reply.text}\n")
    template.write_text("{% for")
    for asked, sent, messages in (
        (["chat"], "Hello\n", [f"{models[0].path} has no chat template", "--chat-template FILE"]),
        (own, "abc\n", [str(template)]), (["chat", "--target", "m"], b"ab\xff\n", ["not UTF-8"]),
    ):  # fmt: skip
        done = run(*asked, sent=sent)
        assert done.exit_code == 2 and all(message in done.output for message in messages)


def test_reasoning_of_chats_is_bounded(chat_model: specdec.Model, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for one in messages %}{{ one.content }}{% endfor %}<think>{% if closed %}</think>{% endif %}"
    )
    options = ["--max-new-tokens", "12", "--max-reasoning-tokens", "2"]
    done = run("chat", "--target", "m", "--chat-template", str(template), *options, sent="abc\n")
    chatting = chat_model.with_chat_template(template.read_text())
    messages = [{"role": "user", "content": "abc"}]
    reply = specdec.generate(chatting, None, messages=messages, max_new_tokens=12, max_reasoning_tokens=2)
    assert isinstance(reply, specdec.Result) and "</think>" in str(reply.text)
    assert (done.exit_code, done.output) == (0, f"{reply.text}\n")
    assert (
        "No such option '--max-reasoning-tokens'" in run("generate", *options, "abc").output
    )  # a text, no chat


def test_measure(models: Pair, prompts: str) -> None:
    asked = ["measure", *BOTH, "--n-tokens", "40", "--temperatures", "0,1"]
    asked += ["--gammas", "1,3", "--leniences", "1", "--no-timing"]
    wanted = specdec.measure(
        *models, ["abc", "ba ab"], gammas=[1, 3], temperatures=[0.0, 1.0], leniences=[1.0], n_tokens=40,
        timing=False,
    )  # fmt: skip
    questions = Path(prompts).with_suffix(".jsonl")  # of a benchmark, whose first turns are prompts
    questions.write_text('{"turns": ["abc", "no"]}\n"ba ab"\n')
    for file in (prompts, str(questions)):
        assert found(*asked, "--prompts", file) == as_read(wanted)
    assert run(*asked, "--prompts", "-", sent="abc\nba ab\n").stdout == f"{wanted}\n"
    assert run(*asked, "--prompts", prompts, "abc").exit_code == 2
    assert "no nonempty line" in fails(*asked, "--prompts", "-", sent="\n\n")
    assert "none: no such file; expected one prompt per line" in fails(*asked, "--prompts", f"{prompts}.none")
    assert "--gammas" in run("measure", "--gammas", "1,x").output


def test_ctrl_c_prints_what_was_measured(models: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specdec.analysis.experiment.take_turns", interrupt)
    asked = ["measure", *BOTH, "--n-tokens", "20", "--gammas", "1", "abc"]
    done = run(*asked)
    assert done.exit_code == 130
    assert "Table 3" in done.stdout and "interrupted" in done.stdout and "alpha" in done.stderr
    assert json.loads(run(*asked, "--json").stdout)["stopped"] == "interrupted"
    assert run(*asked, "--seconds", "0").exit_code == 2


def test_bench(models: Pair, tmp_path: Path) -> None:
    """Answers are kept; texts end at the first of several stops, or at the end of texts and not before."""
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"turns": ["ab"], "category": "a"}\n{"prompt": "bb", "category": "b"}\n')
    asked = ["bench", str(questions), *BOTH, "--max-new-tokens", "12", "--repeats", "1"]
    whole = found(*asked, "--gamma", "3", "--answers", str(tmp_path / "answers"))
    wanted = specdec.bench(*models, questions, max_new_tokens=12, gamma=3, repeats=1).to_dict()
    for name in ("category", "n_tokens", "mean_acceptance_length", "draft_acceptance_rate"):
        assert [row[name] for row in whole["rows"]] == [row[name] for row in wanted["rows"]]
    assert len((tmp_path / "answers" / "run_1" / "plain.jsonl").read_text().splitlines()) == 2
    only = found(*asked, "--category", "b", "--limit", "1")
    assert [row["category"] for row in only["rows"]] == ["b"]
    assert "no_such" in fails("bench", str(tmp_path / "no_such.jsonl"))
    plain = run("bench", str(questions), "--target", "big", "--max-new-tokens", "4", "--repeats", "1")
    assert plain.exit_code == 0 and "plain" in plain.output
    assert (whole["settings"]["stop"], whole["settings"]["ignore_eos"]) == (None, False)
    text = specdec.generate(models[0], None, "ab", max_new_tokens=12).text
    stops = sorted({character for character in text or "" if "a" <= character <= "z"})[:2]
    assert len(stops) == 2
    ended = found(*asked, "--no-plain", "--stop", stops[0], "--stop", stops[1])
    stopped = specdec.bench(*models, questions, max_new_tokens=12, stop=stops, repeats=1, plain=False)
    assert [row["n_tokens"] for row in ended["rows"]] == [row.n_tokens for row in stopped.rows]
    assert ended["settings"]["stop"] == stopped.settings["stop"]
    assert ended["rows"][-1]["n_tokens"] < whole["rows"][-1]["n_tokens"]
    assert found(*asked, "--no-plain", "--ignore-eos")["settings"]["ignore_eos"] is True


def test_tables_have_names_of_ones_own(models: Pair, prompts: str, tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text('"ab"\n')
    asked = ["--target", "big", "--target-name", "the large one"]
    both = [*asked, "--draft", "small", "--name", "the small one"]
    for arguments in (
        ["bench", str(tmp_path / "questions.jsonl"), "--max-new-tokens", "2", "--repeats", "1", *both],
        ["measure", "abc", "--n-tokens", "4", "--no-timing", *both],
        ["tune", "abc", "--n-tokens", "4", "--max-gamma", "1", *both],
        ["compare", "prompt-lookup", "--prompts", prompts, "--n-tokens", "4", "--no-timing", *asked],
    ):
        names = found(*arguments)
        assert names["target"] == "the large one"
        assert names.get("draft", "the small one") == "the small one"


def test_compare_and_recommend(models: Pair, prompts: str) -> None:
    asked = ["compare", "--target", "big", "--prompts", prompts, "--n-tokens", "20", "--no-timing"]
    asked += ["--temperatures", "0", "--gammas", "1,3"]
    lookup, random = specdec.drafts.PromptLookup(), specdec.drafts.RandomDraft()
    ways = {"mine": models[1], "prompt-lookup": lookup, "random": random}
    options: dict[str, Any] = {"gammas": [1, 3], "n_tokens": 20}
    wanted = specdec.compare(models[0], ways, ["abc", "ba ab"], temperatures=[0.0], timing=False, **options)
    assert found(*asked, "mine=small", "prompt-lookup", "random") == as_read(wanted)
    assert run(*asked, "mine=small", "prompt-lookup", "random").output == f"{wanted}\n"
    for wrong, message in (
        (["random", "random"], "two drafts are named 'random'"),
        (["=random"], "expected NAME=DRAFT or DRAFT"),
        (["x="], "expected NAME=DRAFT or DRAFT"), ([], "Missing argument"),
    ):  # fmt: skip
        done = run(*asked, *wrong)
        assert done.exit_code == 2 and message in done.output
    asked = ["--prompts", prompts, "--n-tokens", "20", "--gamma", "1,3", "--repeats", "1"]
    asked += ["--temperature", "0.7", "--target-name", "large"]
    ways = {"mine": models[1], "prompt-lookup": "prompt-lookup"}
    best = specdec.recommend_draft(
        {"large": models[0]}, ways, ["abc", "ba ab"], repeats=1, temperature=0.7, **options
    )
    said = found("recommend", "big", "mine=small", "prompt-lookup", *asked)
    assert said["fits"] == best.to_dict()["fits"]
    tokens = [row.tokens_per_call for row in best.comparison.rows]
    assert [row["tokens_per_call"] for row in said["comparison"]["rows"]] == tokens
    done = run("recommend", "big", *asked)
    assert done.exit_code == 0 and "lookahead" in done.output and "Recommended: " in done.output
    assert "drafts that fit: " in fails("recommend", "big", "early-exit:9", *asked)


@pytest.mark.slow
def test_tune(models: Pair) -> None:
    asked = ["tune", "--n-tokens", "30", "--max-gamma", "2", "abc", "--target", "big", "--draft"]
    tuned = found(*asked, "small")
    assert [row["gamma"] for row in tuned["rows"]] == [0, 1, 2] and tuned["gamma"] in (0, 1, 2)
    assert "gamma" in run(*asked, "small").output
    assert "--draft is missing" in fails("tune", "--target", "big")
    message = "--draft-dtype is int8, but an early exit uses the target's weights; expected --dtype"
    assert message in fails("tune", "--target", "big", "--draft", "early-exit", "--draft-dtype", "int8")
    tuned = found(*asked, "early-exit")
    names = {one["draft"] for one in (tuned, *tuned["others"])}
    assert names == {f"exit at layer {layer}" for layer in range(1, models[0].config["n_layer"])}


def test_eval_hands_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the harness is called with; what it ends with."""
    asked: list[list[str]] = []

    def evaluate(arguments: list[str]) -> None:
        asked.append(arguments)
        if "fail" in arguments:
            raise SystemExit("specdec: error: x") from InputError("no such model")
        if "usage" in arguments:
            raise SystemExit(2)

    fake = types.SimpleNamespace(main=evaluate)
    for module in ("specdec.integrations.lm_eval", "specdec.integrations.lm_eval.__main__"):
        monkeypatch.setitem(sys.modules, module, fake)
    words = "eval --target big --tasks a,b --draft lookahead:4,3 --limit=5 -b auto --gamma 2".split()
    model = '{"target": "big", "draft": "lookahead:4,3", "gamma": 2}'
    begun = ["run", "--model", "specdec", "--model_args"]
    own = ["--tasks", "a", "--model_args", "seed=3"]
    for given, wanted in (
        (words, [*begun, model, "--tasks", "a,b", "--limit=5", "-b", "auto"]),
        (["eval", "run", *own], [*begun, '{"target": "embedded"}', *own]),
        (["eval", "ls", "tasks"], ["ls", "tasks"]), (["eval", "--", "--help"], ["run", "--help"]),
    ):  # fmt: skip
        assert run(*given).exit_code == 0 and asked.pop() == wanted
    done = run("eval", "--tasks", "usage")
    assert (done.exit_code, done.output) == (2, "")
    assert fails("eval", "--tasks", "fail") == "specdec eval: error: no such model\n"


def test_eval_without_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    for module in ("specdec.integrations.lm_eval", "specdec.integrations.lm_eval.__main__"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert "pip install 'specdec-cpu[lm-eval]'" in fails("eval", "--tasks", "a")


def test_a_pipe_without_a_prompt(tmp_path: Path) -> None:
    """To a verb, and without one."""
    outputs = []
    for verb in (["generate"], []):
        with command_process(tmp_path, *verb, *PLAIN, "7", stdin=subprocess.PIPE) as piped:
            outputs.append(piped.communicate(b"abc\n", timeout=60))
        assert piped.returncode == 0
    wanted = specdec.generate(load_pair(tmp_path)[0], None, "abc", max_new_tokens=7)
    assert outputs[0] == (ended(wanted).encode(), b"") and b"\nabc" in outputs[1][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "how", "message"),
    [
        ([], {"stdin": subprocess.PIPE}, b"standard input is empty"),
        ([], {"stdin": subprocess.DEVNULL}, b"the prompt is missing"),
        (["-"], {"preexec_fn": partial(os.close, 0)}, b"standard input is closed"),
    ],
)
def test_input_that_is_empty_or_closed(tmp_path: Path, words: list[str], how: Any, message: bytes) -> None:
    with command_process(tmp_path, "generate", *words, **how) as process:
        assert message in process.communicate(timeout=60)[1]
    assert process.returncode == 2


@pytest.mark.slow
def test_generate_and_ctrl_c(tmp_path: Path) -> None:
    with command_process(tmp_path, "generate", *ENDLESS, preexec_fn=notice_interrupts) as running:
        assert running.stdout is not None
        running.stdout.read(1)
        running.send_signal(signal.SIGINT)
        sent = time.perf_counter()
        _, errors = running.communicate(timeout=60)
        assert time.perf_counter() - sent < 20.0
    assert (running.returncode, errors) == (130, b"\n")
