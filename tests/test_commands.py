"""The command line without a verb: output and exit codes."""

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
from command_line import VERBS, fails, figure, run, time_quickly, use_models
from processes import ENDLESS, command_process
from specdec import Result, Round, Speedup, Trace
from specdec.analysis.experiment import Configuration
from specdec.commands import side_by_side
from specdec.commands.program import PROMPT_VERB, program
from specdec.commands.verb import OPTION_OF, by_option
from specdec.display.rounds import visible
from toy_pair import load_pair, notice_interrupts
from trained import small_pair

Pair = tuple[specdec.Model, specdec.Model]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    time_quickly(monkeypatch)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return load_pair(tmp_path_factory.mktemp("pair"), amount=0.05)


@pytest.fixture
def embedded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Replace the embedded pair, which is slower, by the toy pair, also available as "big" and "small"."""
    use_models(monkeypatch, pair, targets={"big": pair[0]}, drafts={"small": pair[1]})
    return pair


def printed(*arguments: str) -> str:
    """Run a command line, which must succeed; return its output."""
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def rounds_of(result: Any) -> list[str]:
    """Format Figure 1 of a result, one line per round."""
    return result.figure().splitlines()[2:-1]


def test_greedy_run(embedded: Pair) -> None:
    done = run("abcab", "--max-new-tokens", "40", "--threads", "1", "--temperature", "0")
    output = done.stdout
    assert (done.exit_code, done.stderr) == (0, "")
    wanted = specdec.generate(*embedded, "abcab", max_new_tokens=40, n_threads=1)
    assert [line for line in output.splitlines() if re.match(r" *\d+ +\d/\d ", line)] == rounds_of(wanted)
    n, trace = len(wanted.tokens), wanted.trace
    low, high = trace.acceptance_interval()
    for name, value in {
        "new tokens": f"{n} {n}", "target forward passes": f"{n} {trace.n_calls}",
        "tokens per pass": f"1.00 {trace.tokens_per_call:.2f}",
        "acceptance rate α": f"{trace.acceptance_rate:.3f} (95 %: {low:.3f} to {high:.3f}), per judged token",
        "models": "target embedded (f32), draft embedded (f32)", "outputs": f"identical, all {n} tokens",
    }.items():  # fmt: skip
        assert " ".join(figure(output, name).split()) == value
    assert min(float(rate) for rate in figure(output, "tokens per second").split()) > 0
    assert float(figure(output, "cost coefficient c").split()[0]) > 0
    ideal = float(figure(output, "ideal speed-up").split()[0])
    assert 0.0 < ideal < trace.tokens_per_call
    measured = figure(output, "measured speed-up")
    found = re.match(r"(\S+)( !)? \(median of 2 pairs of runs: (\S+) to (\S+)\)$", measured)
    assert found
    median, low, high = float(found[1]), float(found[3]), float(found[4])
    assert low <= median <= high
    assert (median > ideal) == bool(found[2]) or median == ideal  # as on a busy machine
    assert figure(output, "settings").startswith("gamma 4, 1 thread, kernels ")
    assert "2 pairs of runs in 60 s" in figure(output, "warning") and "sampling" not in output


def test_by_default_it_samples_the_same_text_for_everybody(embedded: Pair) -> None:
    """Coupled with a fixed seed, so that the plain run and any gamma give the same tokens."""
    output = printed("abcab", "--max-new-tokens", "40")
    options: dict[str, Any] = {"temperature": 0.6, "repetition_penalty": 1.1, "verify": "coupled", "seed": 0}
    wanted = specdec.generate(*embedded, "abcab", max_new_tokens=40, **options)
    assert all(line in output for line in rounds_of(wanted))
    assert figure(output, "outputs") == f"identical, all {len(wanted.tokens)} tokens"
    text = output.split("\n\n")[1]
    assert "".join(text.split()) == "".join(visible("abcab" + wanted.text, keep_lines=True).split())
    assert max(map(len, text.splitlines())) <= 100
    assert figure(output, "sampling") == "temperature 0.6, repetition penalty 1.1, seed 0"
    assert figure(output, "rule").startswith("coupled: equal texts")
    greedy = "specdec --temperature 0 --prefill rows --max-new-tokens 40 abcab"
    assert figure(output, "greedy texts") == greedy
    plain = specdec.generate(embedded[0], None, "abcab", max_new_tokens=40, **options)
    assert plain.tokens == wanted.tokens


def test_the_command_for_greedy_texts_keeps_the_other_options(embedded: Pair) -> None:
    kept = ["--target", "big", "--draft", "small", "--dtype", "f32", "--draft-dtype", "bf16"]
    kept += "--cache-dtype int8 --prefill rows --gamma 1 --max-new-tokens 5 --stop never --stop".split()
    kept.append("a b")
    output = printed(*kept, "--top-k", "3", "--seed", "2", "abc")
    command = ["specdec", "--temperature", "0", *kept, "abc"]
    assert shlex.split(figure(output, "greedy texts")) == command


def timed(*turns: tuple[float, float], n_calls: int = 100, n_drafted: int = 200) -> Any:
    """Make runs of 200 tokens with these total and drafting seconds."""
    found = Configuration("target", None)
    found.seconds = [[seconds] for seconds, _ in turns]
    kept, n = 200 // n_calls, n_drafted // n_calls
    for _, draft_s in turns:
        one = Round(
            index=0, drafted=(1,) * n, parents=tuple(range(n)), path=tuple(range(1, kept)), kept=kept,
            tokens=(1,) * kept, betas=(1.0,) * n, draft_s=draft_s / n_calls, verify_s=0.0, other_s=0.0,
        )  # fmt: skip
        found.turns.append([types.SimpleNamespace(trace=Trace([one] * n_calls))])
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
    shown = side_by_side._measured(plain, wrong, 2.0 / (1.0 + draft))
    assert verify < 1.0 and shown.startswith("2.22 ! (median of 3 pairs") and "\n! measurement error" in shown


@pytest.mark.parametrize(
    ("load", "ratios", "words"),
    [
        (0.3, (1.50, 1.51, 1.52, 1.53, 1.9), ""), (4.0, (1.5,) * 5, "load average 4.0 on 2 CPUs"),
        (0.3, (1.2, 1.3, 1.5, 1.7, 1.8), "speed-ups 27 %"), (float("nan"), (1.5,), "1 pair of runs"),
    ],
)  # fmt: skip
def test_a_busy_machine_is_noticed(load: Any, ratios: Any, words: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    said = side_by_side._busy(load, Speedup(ratios, (2.0,) * len(ratios)))
    assert words in said and bool(said) == bool(words)


@pytest.mark.parametrize(
    ("words", "figures", "options"),
    [
        ("--temperature 0.9 --top-k 20 --top-p 0.9 --seed 5 --verify rejection",
         {"outputs": "two samples of the target's", "sampling": "temperature 0.9, seed 5", "rule": "rej"},
         {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "seed": 5}),
        ("--temperature 1 --min-p 0.01 --verify coupled --seed 4", {"outputs": "identical, all "},
         {"temperature": 1.0, "min_p": 0.01, "verify": "coupled", "seed": 4}),
        ("--lenience 0.2", {"outputs": "lenient: not the target's distribution"}, None),
        ("--target big --draft small", {"measured speed-up": "= plain (drafted nothing)"}, None),
    ],
    ids=["rejection", "coupled", "lenient", "nothing drafted"],
)  # fmt: skip
def test_what_is_said_of_a_run(embedded: Pair, words: str, figures: Any, options: Any) -> None:
    gamma = 0 if "big" in words else 2
    output = printed("abc", "--max-new-tokens", "12", "--gamma", str(gamma), *words.split())
    assert all(figure(output, name).startswith(value) for name, value in figures.items())
    assert ("acceptance rate" in output) == bool(gamma)
    if options is not None:
        wanted = specdec.generate(*embedded, "abc", max_new_tokens=12, gamma=gamma, **options)
        assert all(line in output for line in rounds_of(wanted))


def test_stop_strings(embedded: Pair) -> None:
    stop = specdec.generate(*embedded, "abc", max_new_tokens=40).text[10:12]
    wanted = specdec.generate(*embedded, "abc", max_new_tokens=40, stop=[stop, "never"])
    output = printed("abc", "--max-new-tokens", "40", "--temperature", "0", "--stop", "never", "--stop", stop)
    assert figure(output, "new tokens").split()[0] == str(len(wanted.tokens))


def test_colors(embedded: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "use_color", lambda: True)
    assert "\x1b[32m" in run("abc", "--max-new-tokens", "9", color=True).stdout
    assert "\x1b[" not in run("abc", "--max-new-tokens", "9", "--no-color", color=True).stdout


@pytest.mark.parametrize("options", [[], ["--temperature", "0"]], ids=["sampled", "greedy"])
def test_different_outputs_would_be_said_loudly(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """Plain decoding is falsified from its third token on; the exit status reports it."""

    def wrong(*arguments: Any, **options: Any) -> Any:
        out = specdec.generate(*arguments, **options)
        if arguments[1] is None and isinstance(out, Result):
            out.tokens[3:] = [token ^ 1 for token in out.tokens[3:]]
        return out

    monkeypatch.setattr("specdec.analysis.experiment.generate", wrong)
    done = run("abc", "--max-new-tokens", "9", *options)
    assert done.exit_code == 1 and figure(done.stdout, "outputs").startswith("DIFFERENT from token 3 on")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gamma", "-1"], "gamma is -1"), (["--max-new-tokens", "0"], "max_new_tokens is 0"),
        (["--temperature", "nan"], "temperature is nan"), (["--threads", "0"], "--threads is 0"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0"), (["--regex", "["], "--regex: unclosed"),
        (["--regex", "a", "--schema", "b"], "--schema and --regex are given; expected one of them"),
        (["--schema", "/no/file"], "--schema: /no/file: no such file; expected a JSON schema"),
        (["--stop", ""], "empty string"), (["a" * 100], "context"),
        (["--target", "/no/such/model", "--draft", "/no/such/model"], "/no/such/model"),
    ],
)  # fmt: skip
def test_errors_are_one_line(pair: Pair, monkeypatch: Any, arguments: list[str], message: str) -> None:
    use_models(monkeypatch, pair)
    errors = fails("abc", *arguments)
    assert errors.startswith("specdec: error: ") and message in errors


def test_a_draft_alone_drafts_for_the_target_in_the_package() -> None:
    _, small = small_pair()
    done = run("--draft", str(small.path), "--max-new-tokens", "8", "--temperature", "0", "It was")
    assert "identical, all 8 tokens" in done.stdout
    assert done.stderr == f"specdec: no --target, so {small.path} drafts for the bundled target\n"
    failed = run("--draft", "nosuch", "It was")
    assert failed.exit_code == 2 and "specdec drafts lists the names of drafts" in failed.stderr


def test_a_draft_that_is_larger_than_its_target_is_warned_of(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, _ = pair
    large, _ = load_pair(tmp_path, num_hidden_layers=3)
    specdec.generate(large, small, "abc", max_new_tokens=3)  # warnings are errors in tests
    message = f"{re.escape(str(large.path))} has {large.n_parameters:,} parameters"
    with pytest.warns(UserWarning, match=message):
        specdec.generate(small, large, "abc", max_new_tokens=3)
    use_models(monkeypatch, targets={"a": small}, drafts={"b": large})
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        done = run("--target", "a", "--draft", "b", "--max-new-tokens", "3", "abc")
    assert done.exit_code == 0 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"specdec: warning: the draft {large.path} has ")


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["a", "--gamma", "x"], ["a", "--verify", "x"]])
def test_usage_errors(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "") and done.stderr.startswith("specdec: error: ")
    assert done.stderr.endswith("Try specdec --help.\n")


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Record the prompts of runs without a verb instead of decoding them."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(side_by_side, "run_side_by_side", lambda prompt, *_: asked.append(prompt) or 0)
    return asked


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["generat", "Once upon"], "generate"), (["evl", "--tasks", "a"], "eval"), (["mesure"], "measure"),
        (["comapre", "prompt-lookup"], "compare"), (["help"], "--help"), (["help", "serve"], "serve --help"),
    ],
)  # fmt: skip
def test_a_first_word_that_is_nearly_a_verb_is_no_prompt(given: Any, meant: str, prompts: list[Any]) -> None:
    """Nothing is decoded; two dashes make a prompt of the same words."""
    done = run(*given)
    assert done.exit_code == 2 and prompts == []
    assert f"there is no verb {given[0]!r}; did you mean specdec {meant}?" in done.stderr
    assert f"specdec -- {shlex.join(given)}\n" in done.stderr
    assert run("--", *(word for word in given if word[0] != "-")).exit_code == 0 and prompts[0][0] == given[0]


@pytest.mark.parametrize(
    ("arguments", "is_prose"),
    [
        (["serve", "the", "king"], True), (["drafts", "of", "beer"], True), (["serve", "--king"], False),
        (["convert", "a", "b", "--type", "king"], False), (["recommend", "x", "random", "random"], False),
    ],
)  # fmt: skip
def test_words_after_a_verb_may_be_a_prompt(arguments: list[str], is_prose: bool) -> None:
    """They count as a prompt only where the verb takes no such words."""
    done = run(*arguments)
    hint = f"put two dashes first: specdec -- {shlex.join(arguments)}\n"
    assert done.exit_code == 2 and done.stderr.endswith(hint) == is_prose


def test_a_prompt_may_begin_with_the_name_of_a_verb(prompts: list[tuple[str, ...]]) -> None:
    for given, wanted in (
        (["train draft"], "train draft"), (["--", "train"], "train"), (["brain draft"], "brain draft"),
        ([], ""), (["--gamma", "2", "train", "it"], "train it"), (["help", "me"], "help me"),
        (["measured", "by", "--gamma", "2", "itself"], "measured by itself"), (["Once", "more"], "Once more"),
    ):  # fmt: skip
        assert run(*given).exit_code == 0 and " ".join(prompts.pop()) == wanted


@pytest.mark.parametrize("rest", [[], ["--method", "small"], ["drafts", "--method", "small"]])
def test_the_command_train_is_asked_for_by_its_whole_name(rest: list[str]) -> None:
    done = run("train", *rest)
    assert done.exit_code == 2 and done.stderr.startswith("specdec train: error: ")
    assert "Try specdec train --help." in done.stderr
    assert ("specdec -- train drafts --method small" in done.stderr) == (rest[:1] == ["drafts"])


def test_options_have_their_own_names_in_errors() -> None:
    """Each option in the table is one of a verb, and is named where its argument is."""
    context = click.Context(program)
    commands = [program.get_command(context, name) for name in (*VERBS, PROMPT_VERB)]
    options = {name for one in commands if one is not None for option in one.params for name in option.opts}
    assert set(OPTION_OF.values()) <= options
    assert by_option("n_threads is 0; expected") == "--threads is 0; expected"
    assert by_option("schema: no type") == "--schema: no type"
    assert by_option("gamma is -1") == "gamma is -1"


def test_number_formats_and_prefill(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the bundled pair, and of models given by path."""
    asked: list[Any] = []
    use_models(
        monkeypatch, lambda *formats, **how: asked.append((*formats, *how.values())) or pair,
        targets=lambda path, dtype, *, adapter, **how: asked.append((path, dtype, *how.values())) or pair[0],
        drafts=lambda path, target, *, dtype: asked.append((path, dtype)) or pair[1],
    )  # fmt: skip
    short = ["abc", "--max-new-tokens", "4"]
    given = "--dtype bf16 --draft-dtype int4 --cache-dtype int8 --prefill rows".split()
    for more in ([], given):
        printed(*short, *more)
    printed(*short, "--target", "target", "--draft", "draft", "--draft-dtype", "int8")
    assert run("chat").exit_code == 2  # the pair has no chat template
    unset = (None, None, "rows", None)
    asked_of_pair = [unset, ("bf16", "int4", "rows", "int8")]
    assert asked == [*asked_of_pair, ("target", None, "rows", None), ("draft", "int8"), unset]
    assert run(*short, "--dtype", "f16").exit_code == 2


def test_out_of_memory_is_an_error(embedded: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> object:
        raise MemoryError

    monkeypatch.setattr(specdec._core, "Session", fail)
    done = run("abc")
    assert (done.exit_code, done.stderr) == (2, "specdec: error: out of memory\n")


@pytest.mark.parametrize("command", [[sys.executable, "-m", "specdec"], ["specdec"]])
def test_version(command: list[str]) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [*command, "--version"], env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout == f"specdec {specdec.__version__} (kernels: {specdec.kernels()})\n"


def test_ctrl_c_and_a_reader_that_leaves(tmp_path: Path) -> None:
    """As `specdec ... | head`: no traceback."""
    with command_process(tmp_path, *ENDLESS, text=True, preexec_fn=notice_interrupts) as process:
        assert process.stdout is not None
        for _ in range(20):
            assert process.stdout.readline() != "", process.communicate()
        process.send_signal(signal.SIGINT)
        sent = time.perf_counter()
        _, errors = process.communicate(timeout=60)
        assert time.perf_counter() - sent < 20.0
    assert (process.returncode, "Traceback" in errors) == (130, False), errors
    with command_process(tmp_path, *ENDLESS, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=60)
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
from specdec.commands.program import main
assert main(["train", "draft", "--method", "small", "--out", "nowhere"]) == 2
import specdec.drafts.learned.networks
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    message = "training needs torch, which is not installed: pip install 'specdec-cpu[train]'\n"
    assert run.stderr.startswith(f"specdec train draft: error: {message}") and run.stdout == ""
    assert run.stderr.endswith(f"MissingPackageError: {message}")
