"""Default command: decode one prompt with and without a draft and compare both."""

from __future__ import annotations

import math
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from specdec import _core
from specdec.analysis.arguments import short_name
from specdec.analysis.experiment import EQUALS_PLAIN, Configuration, Speedup
from specdec.commands.decoding_options import READABLE, decoding_arguments, words_of
from specdec.commands.given_models import EMBEDDED, open_pair
from specdec.commands.given_texts import given_text, is_piped
from specdec.commands.verb import EXIT_OK, VERBS
from specdec.decoding.generate import generate, stream
from specdec.decoding.options import DecodingOptions
from specdec.decoding.request import Request
from specdec.decoding.result import Result
from specdec.decoding.scheduler import Scheduler, decode, sequences_of
from specdec.display.rounds import Figure, legend, line, paint, use_color, visible
from specdec.drafts.draft import Draft
from specdec.drafts.model_draft import ModelDraft
from specdec.errors import number_of
from specdec.models.model import Model
from specdec.threads import load_average
from specdec.time_limit import TimeLimit
from specdec.verification.sampling import TRUNCATIONS

_PROMPT = "It was a dark and stormy night, and"
_N_PAIRS, _MOST_PAIRS = 5, 15  # of a plain and a speculative run
_ENOUGH_S = 4.0  # seconds after which no pairs beyond _N_PAIRS start
_LONGEST_S = 60.0  # seconds after which no pair starts
_STEADY = 0.15  # largest interquartile range of speed-ups on an idle machine
_N_WARM_UP = 8  # tokens
_OF_SAMPLING = ("temperature", *TRUNCATIONS, "verify", "lenience", "seed")
_AUTO = "auto (each run chooses its own; the counts are those of the rounds above)"
_FIGURES = ("new tokens", "target forward passes", "tokens per pass", "tokens per second")

EXIT_DIFFERENT = 1


def run_side_by_side(prompt: tuple[str, ...], source: str | None, color: bool, given: dict[str, Any]) -> int:
    """Decode a prompt with and without a draft; print rounds, text and statistics; return the exit status."""
    load = load_average()
    target, draft = open_pair(given, optional=True)
    text, decoder_prompt = given_text(target, prompt, source)
    text = _PROMPT if text is None else text
    arguments = _arguments(given, source)
    color = color and use_color()
    if draft is None:
        _run_plainly(target, text, arguments | {"decoder_prompt": decoder_prompt})
        return EXIT_OK
    gamma = arguments.pop("gamma", None)
    settings = DecodingOptions(gamma=gamma, **arguments)
    request = Request(target, draft, text, settings, decoder_prompt=decoder_prompt)
    shown = _show(request, color)
    if shown.text is not None:
        before = text if target.config.encoder is None else decoder_prompt or ""
        print(f"\n{_wrapped(before + shown.text)}")
    arguments |= {"seed": [shown.seed], "decoder_prompt": decoder_prompt}
    plain, speculative = _time(target, draft, text, gamma, arguments)
    print()
    print(_table(shown, plain, speculative))
    verdict, same = _verdict(plain.results[-1], speculative.results[-1], request)
    print(f"{'outputs':<18} {verdict}")
    shown_gamma = request.drafting.gamma if request.policy is None else _AUTO
    print(f"{'models':<18} {_models(request, given)}")
    n_threads = number_of(request.options.threads, "thread")
    print(f"{'settings':<18} gamma {shown_gamma}, {n_threads}, kernels {_core.kernels()}")
    if busy := _busy(load, speculative.over(plain)):
        print(f"{'warning':<18} the machine may be busy and times unreliable: {busy}")
    if arguments["temperature"] > 0.0:
        for name, value in _settings(request, shown, given, source, prompt):
            print(f"{name:<18} {value}")
    return EXIT_OK if same else EXIT_DIFFERENT


def _arguments(given: dict[str, Any], source: str | None) -> dict[str, Any]:
    """Return the keyword arguments of `specdec.generate`."""
    greedy = {"temperature": 0.0}
    default = dict(READABLE) if source is None else greedy
    if given["temperature"] is not None:
        default = greedy  # the given temperature replaces it
    rule = "coupled" if given["lenience"] in (None, 1.0) else "rejection"
    return default | {"verify": rule, "seed": 0} | decoding_arguments(given)


def _run_plainly(target: Model, text: str, arguments: dict[str, Any]) -> None:
    """Stream the text without a draft, then print its speed."""
    arguments.pop("gamma", None)
    if target.tokenizer is None:
        result = generate(target, None, text, **arguments)
        print(*result.tokens)
    else:
        with stream(target, None, text, **arguments) as pieces:
            for piece in pieces:
                sys.stdout.write(visible(piece, keep_lines=True))
                sys.stdout.flush()
        result = pieces.result
    trace = result.trace
    values = (trace.n_tokens, trace.n_calls, f"{trace.tokens_per_call:.2f}", f"{trace.tokens_per_s:.1f}")
    print("\n")
    print("\n".join(f"{name:<18} {value:>11}" for name, value in zip(_FIGURES, values, strict=True)))
    print(f"{'draft':<18} none (plain decoding); add --draft DRAFT to compare")


def _show(request: Request, color: bool) -> Result:
    """Run the request and print each round as it completes."""
    prompt = request.prompts[0]
    figure = Figure(request.target.tokenizer, prompt.ids, prompt.source_text(request.target))
    print(legend(color=color))
    print(paint(figure.prompt, "prompt", color), flush=True)
    sequences = sequences_of(request)
    for _, round_ in decode(Scheduler.of(request, sequences), sequences):
        print(line(round_, figure.pieces(round_), color=color), flush=True)
    return sequences[0].result()


def _time(
    target: Model, draft: Model | Draft, prompt: str, gamma: int | str | None, options: dict[str, Any]
) -> tuple[Configuration, Configuration]:
    """Time (plain, speculative) in interleaved pairs of runs, under equal machine load."""
    configurations = Configuration(target, None, **options), Configuration(target, draft, gamma, **options)
    limit = TimeLimit(_LONGEST_S)
    with _status_line() as say:
        say("measuring: warming up")
        generate(target, None, prompt, **{**options, "max_new_tokens": _N_WARM_UP})
        for pair in range(_MOST_PAIRS):
            if limit.is_over or (pair >= _N_PAIRS and limit.spent_s > _ENOUGH_S):
                break
            say(f"measuring plain and speculative decoding: pair {pair + 1} of at least {_N_PAIRS}")
            for configuration in configurations if pair % 2 == 0 else reversed(configurations):
                configuration.decode(pair, prompt)
    return configurations


@contextmanager
def _status_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that updates a status line on a terminal; clear the line at the end."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda text: None
        return
    try:
        yield lambda text: print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _table(shown: Result, plain: Configuration, speculative: Configuration) -> str:
    """Format the counts of the shown run next to plain decoding's, then the figures of the timed runs."""
    both = [plain.results[-1].trace, shown.trace]
    speeds = [median(timed.tokens_per_s) for timed in (plain, speculative)]
    columns = [
        ("", "plain", "speculative"),
        (_FIGURES[0], *(f"{trace.n_tokens}" for trace in both)),
        (_FIGURES[1], *(f"{trace.n_calls}" for trace in both)),
        (_FIGURES[2], *(f"{trace.tokens_per_call:.2f}" for trace in both)),
        (_FIGURES[3], *(f"{speed:.1f}" for speed in speeds)),
    ]
    lines = [f"{name:<18} {one:>11} {two:>11}" for name, one, two in columns]
    if not both[1].n_drafted:
        return "\n".join([*lines, "", f"{'measured speed-up':<18} {EQUALS_PLAIN}"])
    low, high = both[1].acceptance_interval()
    c, draft_ratio, verify_ratio = speculative.costs(plain)
    ideal = median(result.trace.tokens_per_call for result in speculative.results) / (1.0 + draft_ratio)
    rate = f"{_number(both[1].acceptance_rate)} (95 %: {_number(low)} to {_number(high)}), per judged token"
    figures = [
        ("acceptance rate α", rate),
        ("cost coefficient c", f"{_number(math.nan if c is None else c)} (draft step / plain step)"),
        ("verification", f"{_number(verify_ratio, 2)} times as long as a plain step"),
        ("ideal speed-up", f"{_number(ideal, 2)} (Theorem 3.8: if verification took only one plain step)"),
        ("measured speed-up", _measured(plain, speculative, ideal)),
    ]
    return "\n".join([*lines, "", *(f"{name:<18} {value}" for name, value in figures)])


def _measured(plain: Configuration, speculative: Configuration, ideal: float) -> str:
    """Format the speed-up and its spread; mark values above the ideal one."""
    speedup = speculative.over(plain)
    value = f"{speedup.median:.2f}{' !' if speedup.median > ideal else ''}"
    pairs = number_of(len(speedup.ratios), "pair")
    found = f"{value} (median of {pairs} of runs: {speedup.low:.2f} to {speedup.high:.2f})"
    if speedup.median > ideal:
        found += "\n! measurement error: verification cannot be faster than a plain step"
    return found


def _busy(load: float, speedup: Speedup) -> str:
    """Return why times may be unreliable; empty if the machine seems idle."""
    reasons = []
    if load >= (n_cpus := os.cpu_count() or 1):  # of the machine, not the container
        reasons.append(f"load average {load:.1f} on {number_of(n_cpus, 'CPU')} at the start")
    if speedup.spread > _STEADY:
        reasons.append(f"interquartile range of the speed-ups {100 * speedup.spread:.0f} %")
    if len(speedup.ratios) < _N_PAIRS:
        reasons.append(f"{number_of(len(speedup.ratios), 'pair')} of runs in {_LONGEST_S:.0f} s")
    return ", ".join(reasons)


def _models(request: Request, given: dict[str, Any]) -> str:
    """Name target and draft with their number formats."""
    names = {"target": given["target"] or EMBEDDED, "draft": given["draft"] or EMBEDDED}
    draft = request.drafting.draft.model if isinstance(request.drafting.draft, ModelDraft) else None
    formats = {"target": request.target.dtype, "draft": None if draft is None else draft.dtype}
    return ", ".join(
        f"{role} {short_name(name)}{f' ({formats[role]})' if formats[role] else ''}"
        for role, name in names.items()
    )


def _settings(
    request: Request, shown: Result, given: dict[str, Any], source: str | None, prompt: tuple[str, ...]
) -> list[tuple[str, str]]:
    """Return table rows with the sampling settings and the greedy command to try next."""
    sampling = request.sampling
    penalty = sampling.repetition_penalty
    penalized = "" if penalty in (None, 1.0) else f", repetition penalty {penalty:g}"
    found = [("sampling", f"temperature {sampling.temperature:g}{penalized}, seed {shown.seed[0]}")]
    if request.rule == "coupled":
        found.append(("rule", "coupled: equal texts; --verify auto accepts more but samples two texts"))
    else:
        found.append(("rule", shown.trace.rule or request.rule))
    found.append(("greedy texts", shlex.join(_greedy(given, source, prompt))))
    return found


def _greedy(given: dict[str, Any], source: str | None, prompt: tuple[str, ...]) -> list[str]:
    """Return the command for the same run at temperature 0, without sampling options."""
    command = ["specdec", "--temperature", "0"]
    names = (
        "target", "draft", "dtype", "draft_dtype", "cache_dtype", "prefill", "source", "src_lang", "tgt_lang",
    )  # fmt: skip
    command += words_of({**given, "source": source}, names, without=_OF_SAMPLING)
    if prompt:
        words = " ".join(prompt)
        command += ["--"] * (words in VERBS or (words.startswith("-") and words != "-")) + [words]
    elif source is None:
        command.append("-" if is_piped() else _PROMPT)
    return command


def _wrapped(text: str, width: int = 100) -> str:
    """Wrap a text at `width` columns; keep its line ends and make control characters visible."""
    return "\n".join(textwrap.fill(visible(line), width) for line in text.split("\n"))


def _number(value: float, digits: int = 3) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _verdict(plain: Result, speculative: Result, request: Request) -> tuple[str, bool]:
    """Return (description of how the outputs compare, whether that is correct)."""
    if request.options.lenience < 1.0:
        return "lenient: not the target's distribution (appendix A.5)", True
    if not request.sampling.greedy and request.rule != "coupled":
        return "two samples of the target's distribution", True
    if plain.tokens == speculative.tokens and plain.text == speculative.text:
        return f"identical, all {len(plain.tokens)} tokens", True
    pairs = zip(plain.tokens, speculative.tokens, strict=False)
    shorter = min(len(plain.tokens), len(speculative.tokens))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    return f"DIFFERENT from token {at} on; this is a bug, please report it", False
