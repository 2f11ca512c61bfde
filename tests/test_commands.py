"""The command line: what it prints, and what it exits with."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

import click
import pytest

import specdec
from processes import ENDLESS, command_process
from specdec import Result, Speedup
from specdec.analysis import experiment
from specdec.analysis.experiment import Configuration
from specdec.commands import given_models, side_by_side
from specdec.commands.program import PROMPT_VERB, main, program
from specdec.commands.verb import OPTION_OF, VERBS, by_option
from specdec.display.rounds import visible
from specdec.errors import warn
from toy_pair import load_pair, notice_interrupts
from worlds.learned import random_heads

Pair = tuple[specdec.Model, specdec.Model]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test does not say otherwise: the models are too small for two to pay, and two pairs will do."""
    monkeypatch.setenv("SPECDEC_NUM_THREADS", "1")
    monkeypatch.setattr(side_by_side, "_MOST_PAIRS", 2)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return load_pair(tmp_path_factory.mktemp("pair"), amount=0.05)


@pytest.fixture
def embedded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The toy pair in the place of the trained one, which is slower."""
    monkeypatch.setattr(given_models, "embedded_pair", lambda *_: pair)
    return pair


def figure(output: str, name: str) -> str:
    found = re.search(rf"^{re.escape(name)} +(.*)$", output, re.MULTILINE)
    assert found, f"no {name!r} in:\n{output}"
    return found[1]


def test_greedy_run(embedded: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["abcab", "--max-new-tokens", "40", "--threads", "1", "--temperature", "0"]) == 0
    output, errors = capsys.readouterr()
    assert errors == ""
    wanted = specdec.generate(*embedded, "abcab", gamma=2, max_new_tokens=40, n_threads=1)
    assert isinstance(wanted, Result)
    rounds = [line for line in output.splitlines() if re.match(r" *\d+ +\d/\d ", line)]
    figure_1 = wanted.figure().splitlines()[2:-1]
    assert rounds == figure_1
    n = len(wanted.tokens)
    assert figure(output, "new tokens").split() == [str(n), str(n)]
    assert figure(output, "runs of the target").split() == [str(n), str(wanted.trace.n_calls)]
    assert figure(output, "tokens per run").split() == ["1.00", f"{wanted.trace.tokens_per_call:.2f}"]
    rates = [float(rate) for rate in figure(output, "tokens per second").split()]
    assert min(rates) > 0
    low, high = wanted.trace.acceptance_interval()
    alpha = wanted.trace.acceptance_rate
    assert (
        figure(output, "acceptance rate α")
        == f"{alpha:.3f} (95 %: {low:.3f} to {high:.3f}), per judged token"
    )
    assert float(figure(output, "cost coefficient c").split()[0]) > 0
    ideal = float(figure(output, "Theorem 3.8").split()[0])
    assert 0.0 < ideal < wanted.trace.tokens_per_call
    measured = figure(output, "measured speed-up")
    found = re.match(r"(\S+)( !)? \(median of 2 pairs of runs: (\S+) to (\S+)\)$", measured)
    assert found
    median, low, high = float(found[1]), float(found[3]), float(found[4])
    assert low <= median <= high
    assert (median > ideal) == bool(found[2]) or median == ideal  # as on a busy machine
    assert figure(output, "models") == "target embedded (f32), draft embedded (f32)"
    assert figure(output, "settings").startswith("gamma 2, 1 thread, kernels ")
    assert "2 pairs of runs in 60 s" in figure(output, "warning")
    assert figure(output, "outputs") == f"identical, all {n} tokens"
    assert "sampling" not in output


def test_by_default_it_samples_the_same_text_for_everybody(
    embedded: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    """Coupled, so that the plain run and any gamma give the same tokens, with a seed that is fixed."""
    assert main(["abcab", "--max-new-tokens", "40"]) == 0
    output = capsys.readouterr().out
    options: dict[str, Any] = {"temperature": 0.6, "repetition_penalty": 1.2, "verify": "coupled", "seed": 0}
    wanted = specdec.generate(*embedded, "abcab", gamma=2, max_new_tokens=40, **options)
    assert isinstance(wanted, Result)
    assert all(line in output for line in wanted.figure().splitlines()[2:-1])
    assert figure(output, "outputs") == f"identical, all {len(wanted.tokens)} tokens"
    assert wanted.text is not None
    text = output.split("\n\n")[1]
    assert "".join(text.split()) == "".join(visible("abcab" + wanted.text, keep_lines=True).split())
    assert max(map(len, text.splitlines())) <= 100
    assert figure(output, "sampling") == "temperature 0.6, repetition penalty 1.2, seed 0"
    assert figure(output, "rule").startswith("coupled: equal texts")
    assert figure(output, "greedy texts") == "specdec --temperature 0 --max-new-tokens 40 abcab"
    plain = specdec.generate(embedded[0], None, "abcab", max_new_tokens=40, **options)
    assert plain.tokens == wanted.tokens


def test_the_command_for_greedy_texts_keeps_the_other_options(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(given_models, "load", lambda name, dtype: {"big": pair[0]}[name])
    monkeypatch.setattr(given_models, "named", lambda name, target, dtype: {"small": pair[1]}[name])
    kept = ["--target", "big", "--draft", "small", "--dtype", "f32", "--draft-dtype", "bf16", "--gamma", "1"]
    kept += ["--max-new-tokens", "5", "--stop", "never", "--stop", "a b"]
    assert main([*kept, "--top-k", "3", "--seed", "2", "abc"]) == 0
    command = ["specdec", "--temperature", "0", *kept, "abc"]
    assert shlex.split(figure(capsys.readouterr().out, "greedy texts")) == command


def test_warnings_are_one_line(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def embedded_pair(*_: object) -> Pair:
        warn("ids are left out")
        return pair

    monkeypatch.setattr(given_models, "embedded_pair", embedded_pair)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["abc", "--max-new-tokens", "5"]) == 0
    assert capsys.readouterr().err == "specdec: warning: ids are left out\n"


def timed(*turns: tuple[float, float], n_tokens: int = 200, n_calls: int = 100, n_drafted: int = 200) -> Any:
    """Runs that took so many seconds, of which so many in the draft."""
    found: Any = Configuration.__new__(Configuration)
    found.seconds = [[seconds] for seconds, _ in turns]
    found.turns = [
        [
            types.SimpleNamespace(
                tokens=[1] * n_tokens,
                trace=types.SimpleNamespace(n_calls=n_calls, n_drafted=n_drafted, draft_s=draft_s),
            )
        ]
        for _, draft_s in turns
    ]
    return found


def test_the_measured_speed_up_is_at_most_that_of_theorem_3_8() -> None:
    """Whatever the overhead of a step, unless verification seems faster than a plain step."""
    plain = timed((2.0, 0.0), (2.1, 0.0), (4.0, 0.0), n_calls=200, n_drafted=0)
    spec = timed((1.4, 0.3), (1.5, 0.3), (1.6, 0.3))
    _, draft, verify = spec.costs(plain)
    ideal = 2.0 / (1.0 + draft)
    assert (draft, verify) == pytest.approx((0.003 / 0.0105, 0.011 / 0.01))
    assert spec.over(plain).median <= ideal
    assert side_by_side._measured(plain, spec, ideal) == "1.43 (median of 3 pairs of runs: 1.40 to 2.50)"
    wrong = timed((0.9, 0.3), (1.0, 0.3), (1.1, 0.3))
    _, draft, verify = wrong.costs(plain)
    assert verify < 1.0
    shown = side_by_side._measured(plain, wrong, 2.0 / (1.0 + draft))
    assert shown.startswith("2.22 ! (median of 3 pairs") and "\n! an error of measurement" in shown


@pytest.mark.parametrize(
    ("load", "ratios", "words"),
    [
        (0.3, (1.50, 1.51, 1.52, 1.53, 1.9), ""),
        (4.0, (1.5,) * 5, "load average 4.0 on 2 CPUs"),
        (0.3, (1.2, 1.3, 1.5, 1.7, 1.8), "speed-ups 27 %"),
        (float("nan"), (1.5,), "1 pair of runs"),
    ],
)
def test_a_busy_machine_is_noticed(
    load: float, ratios: tuple[float, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    said = side_by_side._busy(load, Speedup(ratios, (2.0,) * len(ratios)))
    assert words in said and bool(said) == bool(words)


def test_sampled_run_names_its_seed(embedded: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--temperature", "0.9", "--top-k", "20", "--top-p", "0.9", "--seed", "5", "--gamma", "2"]
    options += ["--verify", "rejection"]
    assert main(["abc", "--max-new-tokens", "12", *options]) == 0
    output = capsys.readouterr().out
    assert "one distribution" in figure(output, "outputs")
    assert (figure(output, "sampling"), figure(output, "rule")) == ("temperature 0.9, seed 5", "rejection")
    wanted = specdec.generate(
        *embedded, "abc", max_new_tokens=12, temperature=0.9, top_k=20, top_p=0.9, seed=5, gamma=2
    )
    assert isinstance(wanted, Result)
    assert all(line in output for line in wanted.figure().splitlines()[2:-1])


def test_coupled_samples_are_identical(embedded: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--temperature", "1", "--min-p", "0.01", "--verify", "coupled", "--seed", "4"]
    assert main(["abc", "--max-new-tokens", "30", *options]) == 0
    output = capsys.readouterr().out
    assert figure(output, "outputs").startswith("identical, all ")
    wanted = specdec.generate(
        embedded[0], None, "abc", max_new_tokens=30, temperature=1.0, min_p=0.01, verify="coupled", seed=4
    )
    assert figure(output, "new tokens").split() == [str(len(wanted.tokens))] * 2


def test_lenient_output_is_called_so(embedded: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["abc", "--max-new-tokens", "30", "--lenience", "0.2"]) == 0
    assert "not the target's own" in figure(capsys.readouterr().out, "outputs")


def test_stop_strings(embedded: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    free = specdec.generate(*embedded, "abc", max_new_tokens=40)
    assert isinstance(free, Result)
    assert free.text is not None
    stop = free.text[10:12]
    wanted = specdec.generate(*embedded, "abc", max_new_tokens=40, stop=[stop, "never"])
    assert isinstance(wanted, Result)
    options = ["--temperature", "0", "--stop", "never", "--stop", stop]
    assert main(["abc", "--max-new-tokens", "40", *options]) == 0
    assert figure(capsys.readouterr().out, "new tokens").split()[0] == str(len(wanted.tokens))


def test_other_models_and_no_draft_tokens(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(given_models, "load", lambda name, dtype: {"big": pair[0]}[name])
    monkeypatch.setattr(given_models, "named", lambda name, target, dtype: {"small": pair[1]}[name])
    options = ["--target", "big", "--draft", "small", "--max-new-tokens", "5", "--gamma", "0"]
    assert main(["abc", *options]) == 0
    output = capsys.readouterr().out
    assert figure(output, "measured speed-up") == "= plain (drafted nothing)"
    assert "acceptance rate" not in output


def test_colours(embedded: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(side_by_side, "use_colour", lambda: True)
    assert main(["abc", "--max-new-tokens", "9"]) == 0
    assert "\x1b[32m" in capsys.readouterr().out
    assert main(["abc", "--max-new-tokens", "9", "--no-color"]) == 0
    assert "\x1b[" not in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--temperature", "0"]], ids=["sampled", "greedy"])
def test_different_outputs_would_be_said_loudly(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """Plain decoding is made wrong from its third token on; the exit status says so."""

    def wrong(*arguments: object, **options: object) -> object:
        out = specdec.generate(*arguments, **options)  # type: ignore[arg-type]
        if arguments[1] is None and isinstance(out, Result):
            out.tokens[3:] = [token ^ 1 for token in out.tokens[3:]]
        return out

    monkeypatch.setattr(experiment, "generate", wrong)
    assert main(["abc", "--max-new-tokens", "9", *options]) == 1
    assert figure(capsys.readouterr().out, "outputs").startswith("DIFFERENT from token 3 on")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["abc", "--gamma", "-1"], "gamma is -1"),
        (["abc", "--max-new-tokens", "0"], "max_new_tokens is 0"),
        (["abc", "--temperature", "nan"], "temperature is nan"),
        (["abc", "--repetition-penalty", "0"], "repetition_penalty is 0"),
        (["abc", "--threads", "0"], "--threads is 0"),
        (["abc", "--regex", "["], "--regex: unclosed"),
        (["abc", "--regex", "a", "--schema", "b"], "--schema and --regex are given; expected one of them"),
        (["abc", "--schema", "/no/file"], "--schema: /no/file: no such file; expected a JSON schema"),
        (["abc", "--stop", ""], "empty string"),
        (["a" * 100], "context"),
        (["abc", "--target", "/no/such/model", "--draft", "/no/such/model"], "/no/such/model"),
    ],
)
def test_errors_are_one_line(
    embedded: Pair, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("specdec: error: ")
    assert errors.count("\n") == 1
    assert message in errors


def test_a_draft_alone_drafts_for_the_target_in_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    _, small = specdec.embedded_pair()
    run = ["--draft", str(small.path), "--max-new-tokens", "8", "--temperature", "0", "--no-color", "It was"]
    assert main(run) == 0
    output, errors = capsys.readouterr()
    assert "identical, all 8 tokens" in output
    assert errors == f"specdec: no --target, so {small.path} drafts for the one in the package\n"


def test_a_draft_that_is_larger_than_its_target_is_warned_of(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small, _ = pair
    large, _ = load_pair(tmp_path, num_hidden_layers=3)
    assert large.n_parameters > small.n_parameters
    specdec.generate(large, small, "abc", max_new_tokens=3)  # warnings are errors in tests
    with pytest.warns(
        UserWarning, match=f"{re.escape(str(large.path))} has {large.n_parameters:,} parameters"
    ):
        specdec.generate(small, large, "abc", max_new_tokens=3)
    monkeypatch.setattr(given_models, "load", lambda name, dtype: small)
    monkeypatch.setattr(given_models, "named", lambda name, of, dtype: large)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["--target", "a", "--draft", "b", "--max-new-tokens", "3", "abc"]) == 0
    assert capsys.readouterr().err.startswith(f"specdec: warning: the draft {large.path} has ")


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["a", "--gamma", "x"], ["a", "--verify", "x"]])
def test_usage_errors(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("specdec: error: ") and errors.endswith("specdec --help says what there is.\n")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["generat", "Once upon"], "specdec generate?"),
        (["evl", "--tasks", "a"], "specdec eval?"),
        (["mesure"], "specdec measure?"),
        (["comapre", "copy"], "specdec compare?"),
        (["help"], "specdec --help?"),
        (["help", "serve"], "specdec serve --help?"),
    ],
)
def test_a_first_word_that_is_nearly_a_verb_is_no_prompt(
    given: list[str], meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is decoded; two dashes make a prompt of the same words."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(side_by_side, "run_side_by_side", lambda prompt, *_: asked.append(prompt) or 0)
    assert main(given) == 2 and asked == []
    errors = capsys.readouterr().err
    assert f"there is no verb {given[0]!r}; did you mean {meant}" in errors
    assert f"specdec -- {shlex.join(given)}\n" in errors
    assert main(["--", *(word for word in given if word[0] != "-")]) == 0 and asked[0][0] == given[0]


@pytest.mark.parametrize(
    ("arguments", "is_prose"),
    [
        (["serve", "the", "king"], True),
        (["drafts", "of", "beer"], True),
        (["serve", "--king"], False),
        (["convert", "a", "b", "--type", "king"], False),
        (["recommend", "embedded", "copy", "copy"], False),
    ],
)
def test_words_behind_a_verb_may_be_a_prompt(
    capsys: pytest.CaptureFixture[str], arguments: list[str], is_prose: bool
) -> None:
    """They are taken for one where the verb has no place for them, and nowhere else."""
    assert main(arguments) == 2
    hint = f"goes behind two dashes: specdec -- {shlex.join(arguments)}\n"
    assert capsys.readouterr().err.endswith(hint) == is_prose


def test_options_have_their_own_names_in_errors() -> None:
    """Each option in the table is one of a verb, and is named where its argument is."""
    context = click.Context(program)
    commands = [program.get_command(context, name) for name in (*VERBS, PROMPT_VERB)]
    options = {name for one in commands if one is not None for option in one.params for name in option.opts}
    assert set(OPTION_OF.values()) <= options
    assert by_option("n_threads is 0; expected") == "--threads is 0; expected"
    assert by_option("schema: no type") == "--schema: no type"
    assert by_option("gamma is -1") == "gamma is -1"


def test_number_formats(pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of the pair in the package, and of models given by path."""
    asked = []

    def given(*formats: str | None) -> Pair:
        asked.append(formats)
        return pair

    monkeypatch.setattr(given_models, "embedded_pair", given)
    run = ["abc", "--max-new-tokens", "4"]
    assert main(run) == 0
    assert main([*run, "--dtype", "bf16", "--draft-dtype", "int4"]) == 0
    assert asked == [(None, None), ("bf16", "int4")]

    def load(path: str, dtype: str | None) -> specdec.Model:
        asked.append((path, dtype))
        return pair[0]

    def load_draft(path: str, target: specdec.Model, *, dtype: str | None) -> specdec.Model:
        asked.append((path, dtype))
        return pair[1]

    monkeypatch.setattr(given_models, "load", load)
    monkeypatch.setattr(given_models, "named", load_draft)
    assert main([*run, "--target", "target", "--draft", "draft", "--draft-dtype", "int8"]) == 0
    assert asked[2:] == [("target", None), ("draft", "int8")]
    assert main([*run, "--dtype", "f16"]) == 2


def test_a_learnt_draft(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, _ = pair
    folder = random_heads(target).save(tmp_path / "heads")
    monkeypatch.setattr(given_models, "load", lambda *_: target)
    run = ["abc", "--max-new-tokens", "8", "--target", "target"]
    assert main([*run, "--draft", str(folder), "--draft-dtype", "int8"]) == 0
    assert "identical, all 8 tokens" in capsys.readouterr().out


def test_out_of_memory_is_an_error(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> object:
        raise MemoryError

    monkeypatch.setattr(specdec._core, "Session", fail)
    assert main(["abc"]) == 2
    assert capsys.readouterr().err == "specdec: error: out of memory\n"


# ------------------------------------------------------------------------------------------- as a process


@pytest.mark.parametrize("command", [[sys.executable, "-m", "specdec"], ["specdec"]])
def test_version(command: list[str]) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [*command, "--version"], env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout == f"specdec {specdec.__version__} (kernels: {specdec.kernels()})\n"


def test_ctrl_c(tmp_path: Path) -> None:
    with command_process(tmp_path, *ENDLESS, text=True, preexec_fn=notice_interrupts) as process:
        assert process.stdout is not None
        for _ in range(20):
            assert process.stdout.readline() != "", process.communicate()
        process.send_signal(signal.SIGINT)
        sent = time.perf_counter()
        _, errors = process.communicate(timeout=60)
        assert time.perf_counter() - sent < 20.0
    assert (process.returncode, "Traceback" in errors) == (130, False), errors


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    """As `specdec ... | head`: no traceback."""
    with command_process(tmp_path, *ENDLESS, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=60)
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE


def test_a_terminal_that_cannot_show_a_character(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    with command_process(tmp_path, "abc", "--max-new-tokens", "5", env=environment) as process:
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and shown.isascii()
    assert b"acceptance rate ?" in shown


def test_training_says_that_torch_is_missing(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["torch"] = None
from specdec import errors
from specdec.commands.program import main
assert main(["train", "draft", "--kind", "small", "--out", "nowhere"]) == 2
try:
    import specdec.drafts.learned.networks
except errors.MissingPackageError as error:
    print(error)
"""
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    message = "training needs torch, which is not installed: pip install torch\n"
    assert run.stdout == message and run.stderr == f"specdec train draft: error: {message}"


def test_a_prompt_may_begin_with_the_name_of_a_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def take(prompt: tuple[str, ...], *_: object) -> int:
        asked.append(prompt)
        return 0

    monkeypatch.setattr(side_by_side, "run_side_by_side", take)
    for given in (
        ["train draft"], ["--", "train"], ["--gamma", "2", "train", "it"],
        ["measured", "by", "--gamma", "2", "itself"], ["help", "me"], ["brain draft"], ["Once", "more"], [],
    ):  # fmt: skip
        assert main(given) == 0
    assert asked == [
        ("train draft",), ("train",), ("train", "it"), ("measured", "by", "itself"), ("help", "me"),
        ("brain draft",), ("Once", "more"), (),
    ]  # fmt: skip


@pytest.mark.parametrize("rest", [[], ["--kind", "small"], ["drafts", "--kind", "small"]])
def test_the_command_train_is_asked_for_by_its_whole_name(
    rest: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *rest]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("specdec train: error: ") and "specdec train --help says" in errors
    assert ("specdec -- train drafts --kind small" in errors) == (rest[:1] == ["drafts"])
