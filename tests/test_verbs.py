"""The verbs of the command line: what they print, read and exit with."""

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
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import specdec
from chat_templates import make_chat
from command_process import ENDLESS, PLAIN, command_process
from specdec.commands import chat_verb, given_models
from specdec.commands.chat_verb import Conversation
from specdec.commands.program import main, program
from specdec.commands.verb import VERBS, json_line
from specdec.display.rounds import visible
from specdec.drafts import NAMES
from specdec.errors import InputError
from toy_pair import load_pair, notice_interrupts

TESTS = Path(__file__).parent
Pair = tuple[specdec.Model, specdec.Model]
Factory = Callable[..., Path]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return load_pair(tmp_path_factory.mktemp("pair"), amount=0.05)


@pytest.fixture
def models(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The toy pair by the names "big" and "small", and in the place of the one in the package."""
    target, draft = pair
    monkeypatch.setattr(given_models, "embedded_pair", lambda *_: pair)
    monkeypatch.setattr(given_models, "load", lambda name, dtype: {"big": target}[name])
    named = given_models.named
    monkeypatch.setattr(
        given_models,
        "named",
        lambda text, target, dtype=None: draft if text == "small" else named(text, target, dtype=dtype),
    )
    return pair


def run(*arguments: str, sent: bytes | str | None = None) -> Result:
    return CliRunner().invoke(program, arguments, input=sent)


def ended(result: specdec.Result) -> str:
    """The text of a result as it is printed, with a line end."""
    assert result.text is not None
    return result.text if result.text.endswith("\n") else f"{result.text}\n"


def test_the_target_in_the_package_has_a_name(models: Pair) -> None:
    """As `specdec eval` has it; it samples as without --target."""
    asked = ["--max-new-tokens", "8", "--seed", "3", "abc"]
    named = run("generate", "--target", "embedded", *asked)
    assert named.exit_code == 0 and named.output
    assert named.output == run("generate", *asked).output


# ---------------------------------------------------------------------------------------------- help


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_teaches_by_examples(verb: str) -> None:
    done = run(verb, "--help")
    assert done.exit_code == 0
    assert f"specdec {verb}" in done.output and "Examples:" in done.output
    assert max(map(len, done.output.splitlines())) <= 110


def test_the_help_of_the_program() -> None:
    for asked in (["--help"], ["-h"], ["--gamma", "2", "--help"]):
        done = run(*asked)
        assert done.exit_code == 0
        for verb, meaning in VERBS.items():
            assert f"{verb} " in done.output and meaning.split(",")[0] in done.output
        for option in ("--source", "--no-color", "--lenience", "--version"):
            assert option in done.output
        assert "Examples:" in done.output and "_SPECDEC_COMPLETE=bash_source" in done.output


def examples_of(text: str) -> list[list[str]]:
    """The arguments of each call of specdec in a text, without what the shell does."""
    calls = re.findall(r"^ *(?:echo .* \| )?specdec (.*?)(?: {2,}.*| [|<>] .*)?$", text, re.MULTILINE)
    return [shlex.split(call) for call in calls]


def parse(arguments: list[str]) -> None:
    """Read a command line as the program does, without carrying it out."""
    command: Any = program
    context = program.make_context("specdec", list(arguments))
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


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


def test_help_needs_no_heavy_package(tmp_path: Path) -> None:
    script = """
import sys
from specdec.commands.program import main
assert main(["--help"]) == main(["--version"]) == 0
heavy = {"torch", "transformers", "matplotlib", "jinja2", "tokenizers", "pandas", "optuna", "scipy"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True)


def test_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(line: str) -> set[str]:
        words = line.split(" ")
        monkeypatch.setenv("_SPECDEC_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        return {entry.partition(",")[2] for entry in run().output.split()}

    assert completed("specdec ge") == {"generate"}
    assert completed("specdec ") == set(VERBS)
    assert completed("specdec generate --gam") == {"--gamma"}
    assert completed("specdec --no-c") == {"--no-color"}
    assert completed("specdec --dtype int") == {"int8", "int4"}


def test_the_list_of_drafts() -> None:
    lines = run("drafts").output.splitlines()
    assert [line.split(" ")[0] for line in lines] == [name.usage(word) for word, name in NAMES.items()]


# ------------------------------------------------------------------------------------------ generate


def test_generate_prints_the_text_alone(models: Pair) -> None:
    wanted = specdec.generate(models[0], None, "abc ab", max_new_tokens=30)
    for asked in (["--target", "big"], ["--target", "big", "--draft", "small"], ["--temperature", "0"]):
        done = run("generate", *asked, "--max-new-tokens", "30", "abc", "ab")
        assert done.exit_code == 0
        assert done.output == ended(wanted)


def test_generate_reads_standard_input(models: Pair) -> None:
    asked = ["generate", "--target", "big", "--draft", "copy", "--max-new-tokens", "20"]
    wanted = run(*asked, "abc").output
    assert run(*asked, "-", sent="abc\n").output == wanted
    assert run(*asked, "-", sent="abc").output == wanted
    assert run(*asked, "-", sent="abc\r\n").output == wanted
    assert run(*asked, "-", sent="abc\n\n").output != wanted  # one line end is the pipe's
    done = run(*asked, "-", sent=b"ab\xff\n")
    assert done.exit_code == 2
    assert "standard input is no UTF-8: invalid start byte at byte 2" in done.output
    assert "standard input is empty" in run(*asked, "-", sent="").output


def test_generate_as_json(models: Pair) -> None:
    target, draft = models
    asked = ["generate", "--target", "big", "--draft", "small", "--json", "--max-new-tokens", "12"]
    done = run(*asked, "--temperature", "0.9", "--seed", "4", "--stop", "never", "abc")
    (line,) = done.output.splitlines()
    found = json.loads(line)
    wanted = specdec.generate(target, draft, "abc", max_new_tokens=12, temperature=0.9, seed=4)
    assert (found["prompt"], found["text"], found["tokens"]) == ("abc", wanted.text, wanted.tokens)
    assert (found["finish_reason"], found["seed"]) == (wanted.finish_reason, [4, 0])
    assert found["n_calls"] == wanted.trace.n_calls
    assert found["acceptance_rate"] == pytest.approx(wanted.trace.acceptance_rate)
    plain = json.loads(run(*asked[:3], "--json", "--max-new-tokens", "3", "abc").output)
    assert plain["acceptance_rate"] is None and plain["n_drafted"] == 0


def test_generate_each_line(models: Pair) -> None:
    target, draft = models
    asked = ["generate", "--target", "big", "--draft", "small", "--max-new-tokens", "6"]
    done = run(*asked, "--json", "--lines", "--batch-size", "2", "-", sent="abc\n\nb a\r\nccc\n")
    found = [json.loads(line) for line in done.output.splitlines()]
    wanted = specdec.generate(target, draft, ["abc", "b a", "ccc"], max_new_tokens=6)
    assert [one["prompt"] for one in found] == ["abc", "b a", "ccc"]
    assert [one["tokens"] for one in found] == [one.tokens for one in wanted]
    assert run(*asked, "--lines", "-", sent="abc").exit_code == 2
    assert run(*asked, "--json", "--batch-size", "2", "abc").exit_code == 2
    assert "no line" in run(*asked, "--json", "--lines", "-", sent="\n \n").output


def test_generate_samples_with_log_probabilities(models: Pair) -> None:
    target, draft = models
    asked = ["generate", "--target", "big", "--draft", "small", "--max-new-tokens", "6", "--temperature", "1"]
    asked += ["--seed", "3"]
    done = run(*asked, "--json", "--samples", "2", "--logprobs", "2", "--lines", "-", sent="abc\nb a\n")
    found = [json.loads(line) for line in done.output.splitlines()]
    wanted = specdec.generate(
        target, draft, ["abc", "b a"], max_new_tokens=6, temperature=1.0, seed=3, n=2, logprobs=2
    )
    flat = [result for several in wanted for result in several]
    assert [one["tokens"] for one in found] == [one.tokens for one in flat]
    assert [one["logprobs"] for one in found] == [one.logprobs.tolist() for one in flat]
    assert found[0]["top_logprobs"] == [[list(pair) for pair in top] for top in flat[0].top_logprobs]
    for option in ("--samples", "--logprobs"):
        done = run(*asked, option, "2", "abc")
        assert done.exit_code == 2 and f"{option} needs --json" in done.output


def test_generate_without_a_prompt(models: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--target", "big"]) == 2
    assert "specdec generate: error: the prompt is missing" in capsys.readouterr().err


def test_a_format_without_a_draft(models: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--target", "big", "--draft-dtype", "int8", "abc"]) == 2
    assert "--draft-dtype is int8, but there is no draft" in capsys.readouterr().err


def test_generate_without_a_tokenizer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = specdec.load(pair[0].path, tokenizer=False)
    monkeypatch.setattr(given_models, "load", lambda *_: bare)
    assert main(["generate", "--target", "bare", "abc"]) == 2
    assert "specdec generate: error: " in capsys.readouterr().err


# --------------------------------------------------------------------------------- without a verb


def test_words_without_quotes(models: Pair) -> None:
    asked = ["--target", "big", "--draft", "small", "--temperature", "0", "--max-new-tokens", "8"]
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
    assert done.output.split("\n\n")[0] == visible(wanted.text or "", keep_lines=True).strip("\n")
    assert "plain decoding" in done.output and "tokens per second" in done.output
    assert f"{'runs of the target':<18} {len(wanted.tokens):>11}" in done.output


# ----------------------------------------------------------------------------------------------- chat


@pytest.fixture
def chat_model(make_llama: Factory, monkeypatch: pytest.MonkeyPatch) -> specdec.Model:
    model = make_chat(make_llama, "qwen2.5", seed=3)
    monkeypatch.setattr(given_models, "load", lambda *_: model)
    return model


def test_chat(chat_model: specdec.Model) -> None:
    """Each turn goes on with all turns before; a new conversation forgets them."""
    asked = ["chat", "--target", "m", "--draft", "copy", "--max-new-tokens", "12", "--system", "Be brief."]
    done = run(*asked, sent="Hello!\n\nAnd now?\n/new\nHello!\n/quit\nno more\n")
    assert done.exit_code == 0, done.output
    messages: list[dict[str, str]] = [{"role": "system", "content": "Be brief."}]
    said = []
    for question in ("Hello!", "And now?"):
        messages.append({"role": "user", "content": question})
        reply = specdec.generate(chat_model, None, messages=messages, max_new_tokens=12)
        assert isinstance(reply, specdec.Result) and reply.text is not None
        messages.append({"role": "assistant", "content": reply.text})
        said.append(ended(reply))
    assert done.stdout == "".join([*said, said[0]])


def test_chat_reads_what_is_new_alone(chat_model: specdec.Model, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"max_new_tokens": 8, "prompt_cache": specdec.PromptCache()}
    conversation = Conversation(chat_model, None, None, options)
    conversation.reply("Hello there!")
    conversation.reply("And now?")
    assert conversation.last is not None
    n_first = len(chat_model.chat_ids(conversation.messages[:1]))
    assert conversation.last.n_cached_tokens >= n_first
    assert conversation.obey("/figures")
    assert "8 tokens in 8 runs of the model" in capsys.readouterr().err
    assert conversation.obey("/what") and "/new forgets" in capsys.readouterr().err
    assert conversation.obey("/new") and conversation.messages == [] and conversation.last is None
    assert conversation.obey("/figures") and "no reply yet" in capsys.readouterr().err
    assert not conversation.obey("/quit")


def test_ctrl_c_ends_a_reply(
    chat_model: specdec.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a terminal what has come of it stays in the conversation; elsewhere it ends the program."""

    class Pieces:
        def __iter__(self) -> Iterator[str]:
            yield "half a"
            raise KeyboardInterrupt

        def close(self) -> None:
            pass

    monkeypatch.setattr(chat_verb, "stream", lambda *_, **__: Pieces())
    conversation = Conversation(chat_model, None, None, {})
    with pytest.raises(KeyboardInterrupt):
        conversation.reply("Hello!")
    assert conversation.messages == []
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(isatty=lambda: True))
    conversation.reply("Hello!")
    assert [message["content"] for message in conversation.messages] == ["Hello!", "half a"]
    assert capsys.readouterr().out.endswith("half a\n")


def test_chat_needs_a_template(models: Pair, chat_model: specdec.Model, tmp_path: Path) -> None:
    done = run("chat", sent="Hello\n")
    assert done.exit_code == 2
    assert f"{models[0].path} has no chat template" in done.output and "--chat-template FILE" in done.output
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    done = run("chat", "--chat-template", str(template), "--max-new-tokens", "6", sent="abc\n")
    assert done.exit_code == 0
    chatting = models[0].with_chat_template(template.read_text())
    said = [{"role": "user", "content": "abc"}]
    reply = specdec.generate(chatting, None, messages=said, max_new_tokens=6)
    assert isinstance(reply, specdec.Result) and done.output == f"{reply.text}\n"
    template.write_text("{% for")
    done = run("chat", "--chat-template", str(template), sent="abc\n")
    assert done.exit_code == 2 and str(template) in done.output
    done = run("chat", "--target", "m", sent=b"ab\xff\n")
    assert done.exit_code == 2 and "no UTF-8" in done.output


# ----------------------------------------------------------------------------------- measure and tune


def test_measure(models: Pair, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("abc\n\nba ab\n")
    asked = ["--target", "big", "--draft", "small", "--n-tokens", "40", "--temperatures", "0,1"]
    asked += ["--gammas", "1,3", "--leniences", "1", "--no-timing"]
    done = run("measure", *asked, "--prompts", str(prompts), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    wanted = specdec.measure(
        *models, ["abc", "ba ab"], gammas=[1, 3], temperatures=[0.0, 1.0], leniences=[1.0], n_tokens=40,
        timing=False,
    )  # fmt: skip
    assert found == json.loads(json_line(wanted.to_dict()))
    tables = run("measure", *asked, "--prompts", "-", sent="abc\nba ab\n")
    assert tables.stdout == f"{wanted}\n"
    assert run("measure", *asked, "--prompts", str(prompts), "abc").exit_code == 2
    assert "no line" in run("measure", *asked, "--prompts", "-", sent="\n\n").output
    assert (
        "none: no such file; expected a prompt a line"
        in run("measure", *asked, "--prompts", str(tmp_path / "none")).output
    )
    assert "--gammas" in run("measure", "--gammas", "1,x").output


def test_ctrl_c_prints_what_was_measured(models: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specdec.analysis.experiment.take_turns", interrupt)
    asked = ["measure", "--target", "big", "--draft", "small", "--n-tokens", "20", "--gammas", "1", "abc"]
    done = run(*asked)
    assert done.exit_code == 130
    assert "Table 3" in done.stdout and "interrupted" in done.stdout and "alpha" in done.stderr
    assert json.loads(run(*asked, "--json").stdout)["stopped"] == "interrupted"
    assert run(*asked, "--seconds", "0").exit_code == 2


def test_prompts_of_a_benchmark(models: Pair, tmp_path: Path) -> None:
    """The first turns of a file of questions."""
    (tmp_path / "questions.jsonl").write_text('{"turns": ["abc", "no"]}\n"ba ab"\n')
    (tmp_path / "prompts.txt").write_text("abc\nba ab\n")
    asked = ["measure", "--target", "big", "--draft", "small", "--n-tokens", "20", "--no-timing", "--json"]
    first, second = (
        run(*asked, "--prompts", str(tmp_path / name)).stdout for name in ("questions.jsonl", "prompts.txt")
    )
    assert first == second and json.loads(first)


def test_bench(models: Pair, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"turns": ["ab"], "category": "a"}\n{"prompt": "bb", "category": "b"}\n')
    asked = ["bench", str(questions), "--target", "big", "--draft", "small", "--max-new-tokens", "8"]
    asked += ["--repeats", "1"]
    done = run(*asked, "--json", "--gamma", "3", "--answers", str(tmp_path / "answers"))
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    wanted = specdec.bench(*models, questions, max_new_tokens=8, gamma=3, repeats=1).to_dict()
    for name in ("category", "n_tokens", "mean_acceptance_length", "draft_acceptance_rate"):
        assert [row[name] for row in found["rows"]] == [row[name] for row in wanted["rows"]]
    assert len((tmp_path / "answers" / "run_1" / "plain.jsonl").read_text().splitlines()) == 2
    only = json.loads(run(*asked, "--json", "--category", "b", "--limit", "1").output)
    assert [row["category"] for row in only["rows"]] == ["b"]
    assert "no_such" in run("bench", str(tmp_path / "no_such.jsonl")).output
    plain = run("bench", str(questions), "--target", "big", "--max-new-tokens", "4", "--repeats", "1")
    assert plain.exit_code == 0 and "plain" in plain.output


def test_bench_ends_texts_where_it_is_told(models: Pair, tmp_path: Path) -> None:
    """At the first of several stops, or at the end of texts and not before."""
    questions = tmp_path / "questions.jsonl"
    questions.write_text('"ab"\n"bb"\n')
    asked = ["bench", str(questions), "--target", "big", "--draft", "small", "--max-new-tokens", "12"]
    asked += ["--repeats", "1", "--no-plain", "--json"]
    whole = json.loads(run(*asked).output)
    assert (whole["settings"]["stop"], whole["settings"]["ignore_eos"]) == (None, False)
    text = specdec.generate(models[0], None, "ab", max_new_tokens=12).text
    stops = sorted({character for character in text or "" if "a" <= character <= "z"})[:2]
    assert len(stops) == 2
    done = run(*asked, "--stop", stops[0], "--stop", stops[1])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    wanted = specdec.bench(*models, questions, max_new_tokens=12, stop=stops, repeats=1, plain=False)
    assert [row["n_tokens"] for row in found["rows"]] == [row.n_tokens for row in wanted.rows]
    assert found["settings"]["stop"] == wanted.settings["stop"]
    assert found["rows"][-1]["n_tokens"] < whole["rows"][-1]["n_tokens"]
    assert json.loads(run(*asked, "--ignore-eos").output)["settings"]["ignore_eos"] is True


def test_tables_have_names_of_ones_own(models: Pair, tmp_path: Path) -> None:
    questions, prompts = tmp_path / "questions.jsonl", tmp_path / "prompts.txt"
    questions.write_text('"ab"\n')
    prompts.write_text("abc\n")
    asked = ["--target", "big", "--target-name", "the large one", "--json"]
    both = [*asked, "--draft", "small", "--name", "the small one"]
    for arguments, has_draft in (
        (["bench", str(questions), "--max-new-tokens", "2", "--repeats", "1", *both], True),
        (["measure", "abc", "--n-tokens", "4", "--no-timing", *both], True),
        (["tune", "abc", "--n-tokens", "4", "--max-gamma", "1", *both], True),
        (["compare", "copy", "--prompts", str(prompts), "--n-tokens", "4", "--no-timing", *asked], False),
    ):
        done = run(*arguments)
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert found["target"] == "the large one"
        assert not has_draft or found["draft"] == "the small one"


def test_compare(models: Pair, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("abc\nba ab\n")
    asked = ["compare", "--target", "big", "--prompts", str(prompts), "--n-tokens", "20", "--no-timing"]
    asked += ["--temperatures", "0", "--gammas", "1,3"]
    done = run(*asked, "mine=small", "copy", "random", "--json")
    assert done.exit_code == 0, done.output
    ways = {"mine": models[1], "copy": specdec.drafts.ContextCopy(), "random": specdec.drafts.Random()}
    wanted = specdec.compare(
        models[0], ways, ["abc", "ba ab"], temperatures=[0.0], gammas=[1, 3], n_tokens=20, timing=False
    )
    assert json.loads(done.output) == json.loads(json_line(wanted.to_dict()))
    assert run(*asked, "mine=small", "copy", "random").output == f"{wanted}\n"
    for wrong, message in (
        (["copy", "copy"], "two drafts are called 'copy'"),
        (["=copy"], "expected NAME=DRAFT or DRAFT"),
        (["x="], "expected NAME=DRAFT or DRAFT"),
        ([], "Missing argument"),
    ):
        done = run(*asked, *wrong)
        assert done.exit_code == 2 and message in done.output


def test_recommend(models: Pair, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("abc\nba ab\n")
    asked = ["recommend", "big", "mine=small", "copy", "--prompts", str(prompts), "--n-tokens", "20"]
    asked += ["--gamma", "1,3", "--repeats", "1", "--temperature", "0.7", "--target-name", "large"]
    done = run(*asked, "--json")
    assert done.exit_code == 0, done.output
    wanted = specdec.recommend_draft(
        {"large": models[0]}, {"mine": models[1], "copy": "copy"}, ["abc", "ba ab"], gammas=[1, 3],
        n_tokens=20, repeats=1, temperature=0.7,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["fits"] == wanted.to_dict()["fits"]
    assert [row["tokens_per_call"] for row in found["comparison"]["rows"]] == [
        row.tokens_per_call for row in wanted.comparison.rows
    ]
    done = run(*asked[:1], "big", *asked[4:])
    assert done.exit_code == 0 and "lookahead" in done.output and "Recommended: " in done.output
    done = run("recommend", "big", "exit:9", *asked[4:6])
    assert done.exit_code == 2 and "what could draft: " in done.output


@pytest.mark.slow
def test_tune(models: Pair) -> None:
    asked = ["tune", "--target", "big", "--draft", "small", "--n-tokens", "30", "--max-gamma", "2", "abc"]
    found = json.loads(run(*asked, "--json").output)
    assert [row["gamma"] for row in found["rows"]] == [0, 1, 2] and found["gamma"] in (0, 1, 2)
    assert "gamma" in run(*asked).output
    assert "--draft is missing" in run("tune", "--target", "big").output
    asked[4] = "exit"
    found = json.loads(run(*asked, "--json").output)
    n_exits = models[0].config["n_layer"] - 1
    names = {one["draft"] for one in (found, *found["others"])}
    assert names == {f"exit at layer {layer}" for layer in range(1, n_exits + 1)}


def test_an_exit_has_no_number_format_of_its_own(models: Pair) -> None:
    done = run("tune", "--target", "big", "--draft", "exit", "--draft-dtype", "int8")
    assert done.exit_code == 2
    assert "--draft-dtype is int8, but an exit has the weights of the target; expected --dtype" in done.output


# ----------------------------------------------------------------------------------------------- eval


def test_eval_hands_over(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What the harness is called with; what it ends with."""
    asked: list[list[str]] = []

    def evaluate(arguments: list[str]) -> None:
        asked.append(arguments)
        if "fail" in arguments:
            raise SystemExit("specdec: error: x") from InputError("no such model")
        if "usage" in arguments:
            raise SystemExit(2)

    fake = types.ModuleType("specdec.integrations.lm_eval")
    fake.main = evaluate  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "specdec.integrations.lm_eval", fake)
    words = [
        "eval",
        "--target",
        "big",
        "--tasks",
        "a,b",
        "--draft",
        "lookahead:4,3",
        "--limit=5",
        "-b",
        "auto",
    ]
    assert main([*words, "--gamma", "2"]) == 0
    model = '{"target": "big", "draft": "lookahead:4,3", "gamma": 2}'
    own = ["--tasks", "a,b", "--limit=5", "-b", "auto"]
    assert asked.pop() == ["run", "--model", "specdec", "--model_args", model, *own]
    assert main(["eval", "run", "--tasks", "a", "--model_args", "seed=3"]) == 0
    begun = ["run", "--model", "specdec", "--model_args", '{"target": "embedded"}']
    assert asked.pop() == [*begun, "--tasks", "a", "--model_args", "seed=3"]
    assert main(["eval", "ls", "tasks"]) == 0 and asked.pop() == ["ls", "tasks"]
    assert main(["eval", "--", "--help"]) == 0 and asked.pop() == ["run", "--help"]
    assert main(["eval", "--tasks", "usage"]) == 2
    assert capsys.readouterr() == ("", "")
    assert main(["eval", "--tasks", "fail"]) == 2
    assert capsys.readouterr().err == "specdec eval: error: no such model\n"


def test_eval_without_the_harness(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "specdec.integrations.lm_eval", raising=False)
    assert main(["eval", "--tasks", "a"]) == 2
    assert "pip install lm-eval jinja2" in capsys.readouterr().err


# ------------------------------------------------------------------------------------- as a process


def test_a_pipe_without_a_prompt(tmp_path: Path) -> None:
    with command_process(tmp_path, "generate", *PLAIN, "7", stdin=subprocess.PIPE) as piped:
        output, errors = piped.communicate(b"abc\n", timeout=60)
    assert (piped.returncode, errors) == (0, b"")
    wanted = specdec.generate(load_pair(tmp_path)[0], None, "abc", max_new_tokens=7)
    assert output.decode() == ended(wanted)


@pytest.mark.slow
def test_a_pipe_without_a_verb(tmp_path: Path) -> None:
    with command_process(tmp_path, *PLAIN, "7", stdin=subprocess.PIPE) as figure:
        assert b"\nabc" in figure.communicate(b"abc\n", timeout=60)[0]
    assert figure.returncode == 0


@pytest.mark.slow
def test_input_that_is_empty_or_closed(tmp_path: Path) -> None:
    with command_process(tmp_path, "generate", stdin=subprocess.PIPE) as empty:
        assert b"standard input is empty" in empty.communicate(b"", timeout=60)[1]
    with command_process(tmp_path, "generate", stdin=subprocess.DEVNULL) as device:
        assert b"the prompt is missing" in device.communicate(timeout=60)[1]
    with command_process(tmp_path, "generate", "-", preexec_fn=lambda: os.close(0)) as closed:
        assert b"standard input is closed" in closed.communicate(timeout=60)[1]
    assert empty.returncode == device.returncode == closed.returncode == 2


@pytest.mark.slow
def test_generate_and_a_reader_that_leaves(tmp_path: Path) -> None:
    with command_process(tmp_path, "generate", *ENDLESS, stdin=subprocess.DEVNULL) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.read(1)
        running.stdout.close()
        running.wait(timeout=60)
        assert running.stderr.read() == b""
    assert running.returncode == 128 + signal.SIGPIPE


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


@pytest.mark.slow
def test_a_terminal_of_ascii(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    arguments = ["generate", "--json", *PLAIN, "30", "é€"]
    with command_process(tmp_path, *arguments, env=environment) as running:
        output, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, b"")
    assert json.loads(output)["prompt"] == "é€"
