"""Engine requests that join and leave at random, compared with plain decoding of each."""

from __future__ import annotations

from typing import Any, TypeAlias

import specdec
from fuzz.decoding import is_fixed, may_be_refused
from fuzz.drafts import make_draft
from fuzz.objects import ProposerError
from fuzz.running import Failure, check_result
from fuzz.settings import keywords, may_forbid_all, plain_keywords
from specdec.errors import InputError
from worlds.described import adapted_model, adapted_target, make_model

LONGEST_S = 60.0

Expected: TypeAlias = list[specdec.Result] | None
"""Results of plain decoding for a request; None: its texts depend on the draft."""


def check_engine(case: dict[str, Any]) -> str:
    """Submit requests, some after others have returned pieces; cancel some; compare fixed texts."""
    target, options = adapted_target(case), {"n_threads": 1} | case["engine"]
    try:
        draft = make_draft(case["draft"], case["target"], case["models"])
        engine = specdec.Engine(target, draft, **options)
    except (InputError, ProposerError):
        if may_be_refused(case | {"settings": case["engine"]}):
            return "refused"
        raise
    n_refused = 0
    with engine:
        begun: list[tuple[dict[str, Any], specdec.Generation, Expected]] = []
        for request in case["requests"]:
            for _ in range(request["waits"] if begun else 0):
                _next(begun[-1][1])
            try:
                begun.append(_submit(engine, target, case, request))
            except InputError:
                if not _may_be_refused(case, request):
                    raise
                n_refused += 1
        for request, generation, _ in begun:
            if request["cancelled"]:
                generation.cancel()
        for request, generation, expected in begun:
            try:
                found = generation.results(LONGEST_S)
            except (InputError, ProposerError):
                if not _may_be_refused(case, request):  # a draft that fails for a text ends that text only
                    raise
                n_refused += 1
                continue
            _check(request, found, expected, target, options)
        metrics = engine.metrics()
        if metrics.n_running or metrics.n_reading or metrics.n_waiting:
            raise Failure(f"texts are left: {metrics}")
    return "refused" if n_refused == len(case["requests"]) else "passed"


def _next(generation: specdec.Generation) -> None:
    try:
        generation.next(LONGEST_S)
    except (InputError, ProposerError):
        pass  # `results` raises it again


def _submit(
    engine: specdec.Engine, target: specdec.Model, case: dict[str, Any], request: dict[str, Any]
) -> tuple[dict[str, Any], specdec.Generation, Expected]:
    settings = request["settings"]
    options = keywords(settings)
    del options["n_threads"]
    given: dict[str, Any] = {"prompt": request["prompt"]}
    if "source" in request:
        given = {"prompt": request["source"], "decoder_prompt": request["prompt"] or None}
    model = target
    if request.get("adapter") is not None:
        model = given["adapter"] = adapted_model(make_model(case["target"]), request["adapter"])
    expected: Expected = None
    if is_fixed(settings):
        plain = plain_keywords(settings) | {"seed": settings["seed"]}
        try:
            found = specdec.generate(model, None, **given, **plain)
        except InputError:
            if not may_forbid_all(settings):
                raise
        else:
            expected = found if isinstance(found, list) else [found]
    prediction = request["prediction"]
    if prediction == "right":
        prediction = None if expected is None else expected[0].tokens
    speculative = specdec.Speculative(**request["speculative"])
    generation = engine.submit(**given, prediction=prediction, speculative=speculative, **options)
    return request, generation, expected


def _may_be_refused(case: dict[str, Any], request: dict[str, Any]) -> bool:
    return may_be_refused(case | {"settings": request["settings"] | case["engine"]})


def _check(
    request: dict[str, Any], found: list[specdec.Result], expected: list[specdec.Result] | None,
    target: specdec.Model, options: dict[str, Any],
) -> None:  # fmt: skip
    for i, result in enumerate(found):
        if result.finish_reason != "cancelled":
            check_result(result, request["settings"], options["n_text"])
        if expected is None:
            continue
        plain = expected[i]
        n = len(result.tokens) if result.finish_reason == "cancelled" else len(plain.tokens)
        if result.tokens != plain.tokens[:n]:
            raise Failure(f"tokens {result.tokens}, and {plain.tokens} in plain decoding")
        if result.finish_reason != "cancelled" and result != plain:
            raise Failure(f"{result!r} is {plain!r} in plain decoding")
