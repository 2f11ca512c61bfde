"""The command line: one prompt, decoded speculatively and plainly, side by side."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from specdec import _core
from specdec.analysis.speedup import TimedRuns
from specdec.decoding.generate import generate
from specdec.decoding.options import DecodingOptions
from specdec.decoding.request import Request
from specdec.decoding.result import Result
from specdec.decoding.run import Run
from specdec.display.rounds import Figure, legend, line, paint, use_colour, visible
from specdec.drafts.draft import Draft
from specdec.drafts.model_draft import ModelDraft
from specdec.drafts.opening import load as load_draft
from specdec.errors import InputError, SpecdecError
from specdec.models.model import Model, embedded_pair, load
from specdec.trace import Trace
from specdec.verification.rules import DECODING_RULES

__all__ = ["main"]

_PROMPT = "It was a dark and stormy night, and"
_TEMPERATURE, _REPETITION_PENALTY = 0.6, 1.2  # with these the embedded target's text reads best
_PAIR_GAMMA = 2  # the fastest for the embedded pair, whose draft is right two times in three
_MAX_NEW_TOKENS = 200
_N_TIMED = 3
_TIMED_S = 20.0  # after so long one timed run of each kind is enough
_N_WARM_UP = 8  # tokens
_BUSY = "an error of measuring: the machine is busy"

EXIT_OK, EXIT_DIFFERENT, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_NO_READER = 0, 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments, by default those of the process.

    Returns
    -------
    int
        Exit status: 0; 1 if outputs differ that must be identical, which would be a fault of specdec; 2 on
        bad input; 130 on Ctrl-C; 141 if standard output was closed.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    program, work = _work(given)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shall not end the run
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return work()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader, such as head, has gone; nothing more may be flushed to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NO_READER
    except (SpecdecError, OSError) as error:
        message = " ".join(str(error).split())
    except MemoryError:
        message = "out of memory"
    print(f"{program}: error: {message}", file=sys.stderr)
    return EXIT_ERROR


def _work(given: list[str]) -> tuple[str, Callable[[], int]]:
    """(name of the program, what it is asked to do) for its arguments."""
    if given[:2] == ["train", "draft"]:
        from specdec.training.command import PROGRAM, train_command

        return PROGRAM, lambda: train_command(given[2:])
    parser = _parser()
    if given[:1] == ["train"] and (given[1:2] == [] or given[1].startswith(("-", "draft"))):
        parser.error("did you mean specdec train draft? (a prompt 'train' goes behind --: specdec -- train)")
    arguments = parser.parse_args(given)
    if arguments.target is not None and arguments.draft is None:
        parser.error("--target needs --draft; without --target the text is that of the target in the package")
    return parser.prog, lambda: _compare(arguments)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as a line of its own, without the place in the program."""
    print(f"specdec: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specdec",
        description="Continue a prompt by exact speculative decoding, show every round as in Figure 1 of "
        "arXiv 2211.17192, and compare with plain decoding.",
        epilog="Without --target and --draft the trained pair in the package is used; with --draft alone, "
        "its target. specdec train draft --help says how a draft is trained.",
    )
    add = parser.add_argument
    add("prompt", nargs="?", help=f"text to continue (default: {_PROMPT!r}; with --source: none)")
    add("--source", metavar="TEXT", help="what the encoder of an encoder-decoder reads, which needs it")
    add("--src-lang", metavar="CODE", help="language of the source, for models of several")
    add("--tgt-lang", metavar="CODE", help="language of the text, for models of several")
    add("--target", metavar="MODEL", help="path or hub name of the model whose text this is")
    add("--draft", metavar="DRAFT", help="the same of the model that guesses ahead, or of a learnt draft")
    formats: dict[str, Any] = {"choices": ("f32", "bf16", "int8", "int4"), "metavar": "FORMAT"}
    add("--dtype", **formats, help="f32, bf16, int8 or int4 (default: what the checkpoint holds)")
    add("--draft-dtype", **formats, help="the same for the draft")
    add(
        "--gamma", type=_gamma, metavar="N",
        help="drafted tokens a round, or 'auto': as many as pay "
        f"(default: {_PAIR_GAMMA} for the pair in the package, else as many as the draft asks for)",
    )  # fmt: skip
    add("--max-new-tokens", type=int, default=_MAX_NEW_TOKENS, metavar="N", help="(default: %(default)s)")
    add(
        "--temperature",
        type=float,
        metavar="T",
        help=f"0 is greedy (default: {_TEMPERATURE}, or 0 with --source)",
    )
    add(
        "--repetition-penalty",
        type=float,
        metavar="R",
        help="above 1, tokens that have occurred are less likely "
        f"(default: {_REPETITION_PENALTY}, or 1 where --temperature or --source is given)",
    )
    add("--top-k", type=int, metavar="K", help="sample from the K likeliest tokens only")
    add("--top-p", type=float, metavar="P", help="sample from the likeliest tokens that hold mass P only")
    add(
        "--min-p",
        type=float,
        metavar="P",
        help="sample from tokens at least P times as likely as the likeliest",
    )
    add(
        "--verify",
        choices=DECODING_RULES,
        help="rule (default: coupled, which samples the same text with and without a draft, so that the two "
        "can be compared; rejection where --lenience is given. rejection and block accept more)",
    )
    add(
        "--lenience", type=float, default=1.0, metavar="L", help="below 1 is not exact (default: %(default)s)"
    )
    add("--seed", type=int, default=0, metavar="S", help="of the random numbers (default: %(default)s)")
    add("--threads", type=int, metavar="N", help="(default: SPECDEC_NUM_THREADS, or the CPUs at hand)")
    add("--stop", action="append", metavar="TEXT", help="end before this text; may be given more than once")
    add("--no-color", action="store_true", help="marks instead of colours (as with NO_COLOR set)")
    version = f"%(prog)s {_core.__version__} (kernels: {_core.kernels()})"
    add("--version", action="version", version=version)
    return parser


def _gamma(text: str) -> int | str:
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number and not 'auto'") from None


def _compare(arguments: argparse.Namespace) -> int:
    target, draft = _models(arguments)
    temperature, penalty, rule = arguments.temperature, arguments.repetition_penalty, arguments.verify
    if temperature is None and arguments.source is not None:
        temperature = 0.0
    if penalty is None and temperature is None:
        penalty = _REPETITION_PENALTY
    if rule is None:
        rule = "coupled" if arguments.lenience == 1.0 else "rejection"
    options: dict[str, Any] = {
        "max_new_tokens": arguments.max_new_tokens,
        "temperature": _TEMPERATURE if temperature is None else temperature,
        "repetition_penalty": penalty,
        "top_k": arguments.top_k,
        "top_p": arguments.top_p,
        "min_p": arguments.min_p,
        "verify": rule,
        "lenience": arguments.lenience,
        "seed": arguments.seed,
        "stop": arguments.stop,
        "n_threads": arguments.threads,
    }
    colour = not arguments.no_color and use_colour()
    gamma = arguments.gamma
    if gamma is None and arguments.target is None and arguments.draft is None:
        gamma = _PAIR_GAMMA
    settings = DecodingOptions(gamma=gamma, **options)
    given, decoder_prompt = _given(arguments, target)
    request = Request.prepare(target, draft, given, settings, decoder_prompt=decoder_prompt)
    shown = _show(request, colour)
    if shown.text is not None:
        before = given if target.config.encoder is None else decoder_prompt or ""
        print(f"\n{_wrapped(before + shown.text)}")
    options |= {"seed": [shown.seed], "decoder_prompt": decoder_prompt}
    plain, speculative = _time(target, draft, given, gamma, options)
    print()
    print(_table(plain, speculative))
    verdict, same = _verdict(plain.results[-1], speculative.results[-1], request)
    print(f"{'outputs':<18} {verdict}")
    if options["temperature"] > 0.0:
        for name, value in _settings(request, shown, arguments):
            print(f"{name:<18} {value}")
    return EXIT_OK if same else EXIT_DIFFERENT


def _given(arguments: argparse.Namespace, target: Model) -> tuple[str, str | None]:
    """(prompt and decoder_prompt as `specdec.generate` takes them)."""
    if target.config.encoder is not None:
        if arguments.source is None:
            raise InputError(f"--source is missing; expected what the encoder of {target.path} reads")
        return arguments.source, arguments.prompt
    if arguments.source is not None:
        raise InputError(f"--source is given, but {target.path} has no encoder; expected a prompt alone")
    return _prompt(arguments), None


def _prompt(arguments: argparse.Namespace) -> str:
    prompt: str | None = arguments.prompt
    return _PROMPT if prompt is None else prompt


def _models(arguments: argparse.Namespace) -> tuple[Model, Model | Draft]:
    draft: Model | Draft
    if arguments.target is None:
        target, draft = embedded_pair(arguments.dtype, arguments.draft_dtype)
    else:
        target = load(arguments.target, arguments.dtype)
    if arguments.draft is not None:
        draft = load_draft(arguments.draft, target, dtype=arguments.draft_dtype)
    languages = {"src_lang": arguments.src_lang, "tgt_lang": arguments.tgt_lang}
    if languages == dict.fromkeys(languages):
        return target, draft
    target = target.with_languages(**languages)
    if isinstance(draft, ModelDraft):
        draft = draft.model
    return target, draft.with_languages(**languages) if isinstance(draft, Model) else draft


def _show(request: Request, colour: bool) -> Result:
    """Carry the request out, printing each round when it is done."""
    beginning = request.beginnings[0]
    figure = Figure(request.target.tokenizer, beginning.ids, beginning.source_text(request.target))
    print(legend(colour=colour))
    print(paint(figure.prompt, "prompt", colour), flush=True)
    run = Run(request)
    try:
        for _, round_ in run.rounds():
            print(line(round_, figure.pieces(round_), colour=colour), flush=True)
    finally:
        run.close()
    return run.result(0)


def _time(
    target: Model, draft: Model | Draft, prompt: str, gamma: int | str | None, options: dict[str, Any]
) -> tuple[TimedRuns, TimedRuns]:
    """(plain, speculative) runs, timed in turns so that both see the same machine."""
    generate(target, None, prompt, **{**options, "max_new_tokens": _N_WARM_UP})
    ways = TimedRuns(target, None, **options), TimedRuns(target, draft, gamma=gamma, **options)
    begun = time.perf_counter()
    for turn in range(_N_TIMED):
        for way in ways:
            way.run(turn, prompt)
        if time.perf_counter() - begun > _TIMED_S:
            break
    return ways


def _call_s(timed: TimedRuns) -> float:
    """Median seconds of one run of the target."""
    return median(result.trace.verify_s / result.trace.n_calls for result in timed.results)


def _table(plain: TimedRuns, speculative: TimedRuns) -> str:
    """The figures of the two runs side by side, then those of the pair."""
    both = [timed.results[-1].trace for timed in (plain, speculative)]
    speeds = [median(timed.tokens_per_s) for timed in (plain, speculative)]
    columns = [
        ("", "plain", "speculative"),
        ("new tokens", *(f"{trace.n_tokens}" for trace in both)),
        ("runs of the target", *(f"{trace.n_calls}" for trace in both)),
        ("tokens per run", *(f"{trace.tokens_per_call:.2f}" for trace in both)),
        ("tokens per second", *(f"{speed:.1f}" for speed in speeds)),
    ]
    trace = both[1].against(both[0])
    low, high = trace.acceptance_interval()
    figures = [
        ("acceptance rate α", f"{_number(trace.acceptance_rate)} (95 %: {_number(low)} to {_number(high)})"),
        ("cost coefficient c", f"{_number(trace.cost_coefficient)} (a draft's step / a plain step)"),
        (
            "verification",
            f"{_number(_call_s(speculative) / _call_s(plain), 2)} times as long as a plain step",
        ),
        (
            "ideal speed-up",
            f"{_number(trace.ideal_speedup, 2)} (Theorem 3.8: if it were as long as a plain step)",
        ),
        ("predicted speed-up", _predicted(trace)),
        ("measured speed-up", _measured(plain, speculative)),
    ]
    lines = [f"{name:<18} {one:>11} {two:>11}" for name, one, two in columns]
    return "\n".join([*lines, "", *(f"{name:<18} {value}" for name, value in figures)])


def _predicted(trace: Trace) -> str:
    """The predicted speed-up, or why the times that it comes from cannot be."""
    if trace.invalid_prediction:
        return f"{trace.invalid_prediction}, {_BUSY}"
    return f"{_number(trace.predicted_speedup, 2)} (from α, c and the verification)"


def _measured(plain: TimedRuns, speculative: TimedRuns) -> str:
    """The speed-up and its spread; a round takes as long as a plain step at least, which bounds it."""
    speedup = speculative.over(plain)
    if speedup.invalid:
        return f"{speedup.invalid}, {_BUSY}"
    return f"{speedup.median:.2f} (repetitions: {speedup.low:.2f} to {speedup.high:.2f})"


def _settings(request: Request, shown: Result, arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """How the texts were sampled, and what to try next."""
    sampling = request.sampling
    penalty = sampling.repetition_penalty
    penalised = "" if penalty in (None, 1.0) else f", repetition penalty {penalty:g}"
    found = [("sampling", f"temperature {sampling.temperature:g}{penalised}, seed {shown.seed[0]}")]
    if request.rule == "coupled":
        found.append(("rule", "coupled: equal texts; --verify rejection accepts more, and gives two samples"))
    else:
        found.append(("rule", request.rule))
    found.append(("greedy texts", shlex.join(_greedy(arguments))))
    return found


def _greedy(arguments: argparse.Namespace) -> list[str]:
    """The command for the same run at temperature 0, without what is said of sampling alone."""
    command = ["specdec", "--temperature", "0"]
    given = {
        "--target": arguments.target,
        "--draft": arguments.draft,
        "--dtype": arguments.dtype,
        "--draft-dtype": arguments.draft_dtype,
        "--gamma": arguments.gamma,
        "--source": arguments.source,
        "--src-lang": arguments.src_lang,
        "--tgt-lang": arguments.tgt_lang,
        "--max-new-tokens": None if arguments.max_new_tokens == _MAX_NEW_TOKENS else arguments.max_new_tokens,
        "--repetition-penalty": arguments.repetition_penalty,
        "--threads": arguments.threads,
    }
    for name, value in given.items():
        if value is not None:
            command += [name, str(value)]
    for text in arguments.stop or ():
        command += ["--stop", text]
    if arguments.source is None or arguments.prompt is not None:
        command.append(_prompt(arguments))
    return command


def _wrapped(text: str, width: int = 100) -> str:
    """The text in lines of at most `width` columns; its own line ends stay, control characters are shown."""
    return "\n".join(textwrap.fill(visible(line), width) for line in text.split("\n"))


def _number(value: float, digits: int = 3) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _verdict(plain: Result, speculative: Result, request: Request) -> tuple[str, bool]:
    """(what to say of the two outputs, whether they are as they must be)."""
    if request.options.lenience < 1.0:
        return "lenient: not the target's own (appendix A.5)", True
    if not request.sampling.greedy and request.rule != "coupled":
        return "two samples of one distribution, the target's own", True
    if plain.tokens == speculative.tokens and plain.text == speculative.text:
        return f"identical, all {len(plain.tokens)} tokens", True
    pairs = zip(plain.tokens, speculative.tokens, strict=False)
    at = next(
        (i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain.tokens), len(speculative.tokens))
    )
    return f"DIFFERENT from token {at} on; this must not happen, please report it", False
