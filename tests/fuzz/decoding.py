"""Comparison of runs with a draft with plain decoding and with repeated runs; the same for beam search."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import specdec
from fuzz.drafts import descriptions, is_adaptive, is_stateful, make_draft, may_branch
from fuzz.objects import ProposerError
from fuzz.running import Failure, check_result
from fuzz.settings import distribution_after, is_extreme, keywords, may_forbid_all, plain_keywords
from specdec.errors import InputError
from worlds.constraints import check_constraints
from worlds.described import (
    DEFAULTS,
    END_IDS,
    adapted_target,
    draft_description,
    make_model,
    models_of_texts,
    source_vocab,
)


def check_decoding(case: dict[str, Any]) -> str:
    """Compare a run with plain decoding or, if it depends on the draft, with a repeated run."""
    settings, target = case["settings"], adapted_target(case)
    options = keywords(settings)
    models = models_of_texts(case, target) or [target] * len(case["prompts"])
    try:
        draft = make_draft(case["draft"], case["target"], case["models"])
        results = _generate(target, draft, case, logprobs=_n_top(target), **options)
    except (InputError, ProposerError):
        if may_be_refused(case):
            return "refused"
        raise
    for result in results:
        check_result(result, settings, target.config["n_ctx"])
        if "structure" in settings and result.finish_reason == "stop" and result.stop in (None, *END_IDS):
            check_constraints(settings["structure"], result.text)
    _check_log_probs(models, results)
    if is_fixed(settings):
        for i, result in enumerate(results):
            options = plain_keywords(settings) | {"seed": [result.seed]}
            _compare(result, _alone(models[i], None, result, **options), f"plain decoding, prompt {i}")
    else:
        if not is_extreme(settings):
            _check_possible(case, models, results)
        _compare_again(case, target, models, results)
    if case.get("stream"):
        try:
            _compare_stream(case, target, results[0])
        except (InputError, ProposerError):
            if not may_be_refused(case):  # a draft that fails in some rounds, if gamma is measured times
                raise
    return "passed"


def is_fixed(settings: dict[str, Any]) -> bool:
    """Return whether target and seed determine the text."""
    coupled = not settings.get("temperature") or settings.get("verify") == "coupled"
    return coupled and settings.get("lenience", 1.0) == 1.0


def _changes(case: dict[str, Any]) -> bool:
    """Return whether draft tokens depend on the clock or on earlier texts."""
    return is_adaptive(case["draft"]) or is_stateful(case["draft"]) or case["settings"].get("gamma") == "auto"


def _n_top(target: specdec.Model) -> int:
    """Return how many most probable tokens are requested for each token."""
    return min(3, target.config.n_vocab)


def _prompts_apart(target: specdec.Model) -> bool:
    """Return whether prompts are computed with other bits than new tokens."""
    return target.prefill != "rows" and target.config.encoder is None


def _check_log_probs(models: list[specdec.Model], results: list[specdec.Result]) -> None:
    """Compare log-probabilities of all texts with one batched `Model.score` per model."""
    if _prompts_apart(models[0]):
        return
    for target in set(models):
        own = [one for one, model in zip(results, models, strict=True) if model is target]
        sources = None if own[0].source_ids is None else [result.source_ids for result in own]
        texts = [[*result.prompt_ids, *result.tokens] for result in own]
        scores = target.score(texts, sources=sources, top_logprobs=_n_top(target))
        for result, score in zip(own, scores, strict=True):
            n_given = len(result.prompt_ids) - 1
            if not np.array_equal(result.logprobs, score.log_probs[n_given:]):
                raise Failure("logprobs are not those of Model.score")
            if result.top_logprobs != score.top_logprobs[n_given:]:
                raise Failure("top_logprobs are not those of Model.score")


def _generate(
    target: specdec.Model, draft: Any, case: dict[str, Any], **options: Any
) -> list[specdec.Result]:
    """Generate texts for all prompts, which continue after the initial tokens of an encoder-decoder."""
    models = models_of_texts(case, target)
    if models is not None:
        options["adapter"] = [None if model is target else model for model in models]
    if "sources" not in case:
        return specdec.generate(target, draft, case["prompts"], **options)
    return specdec.generate(target, draft, case["sources"], decoder_prompt=case["prompts"], **options)


def _alone(target: specdec.Model, draft: Any, result: specdec.Result, **options: Any) -> specdec.Result:
    """Generate a result's text again, alone, from its prompt and its source if it has one."""
    prompt, source = result.prompt_ids, result.source_ids
    if source is None:
        return specdec.generate(target, draft, [prompt], **options)[0]
    begun = prompt[len(target.decoder_start) :]
    return specdec.generate(target, draft, [source], decoder_prompt=[begun], **options)[0]


def may_be_refused(case: dict[str, Any]) -> bool:
    """Return whether the documentation says that something in a case is rejected."""
    settings, draft = case["settings"], case["draft"]
    found = list(descriptions(draft))
    rule = settings.get("verify", "auto")
    if rule in ("block", "k-sequential") and any(map(may_branch, found)):
        return True
    if settings.get("lenience", 1.0) < 1.0 and rule not in ("auto", "rejection"):
        return True
    if any(one.get("habit") in ("long", "raise") for one in found):
        return True
    if may_forbid_all(settings):
        return True
    if ("constraint" in settings or "structure" in settings) and (
        "logit_bias" in settings or "transform" in settings
    ):
        return True  # which may leave no token that the constraint allows
    if "encoder" in case["target"] and source_vocab(case["target"]) != case["target"].get("n_vocab", 11):
        if any(one["kind"] == "input" and one["source"] is None for one in found):
            return True
    look_ahead = [one for one in found if one["kind"] == "look_ahead"]
    if len(look_ahead) > 1 or (look_ahead and "node_budget" in settings):
        return True
    own_layers = ("exit", "skip", "eagle", "heads", "look_ahead")  # they cannot draft for a draft
    return any(part["kind"] in own_layers for one in found if "draft" in one for part in descriptions(one))


def _compare(found: specdec.Result, expected: specdec.Result, of: str) -> None:
    for name in ("tokens", "text", "finish_reason", "stop"):
        one, other = getattr(found, name), getattr(expected, name)
        if one != other:
            raise Failure(f"{name} not those of {of}: {one!r}, and there {other!r}")
    if found.logits is not None and not np.array_equal(found.logits, expected.logits):
        raise Failure(f"logits not those of {of}")


def _check_possible(case: dict[str, Any], models: list[specdec.Model], results: list[specdec.Result]) -> None:
    """Check that logits are the target's for the text, and that no token of probability 0 occurs."""
    settings = case["settings"]
    lenience = settings.get("lenience", 1.0)
    lenient_argmax = lenience < 1.0 and not settings.get("temperature")
    for at, (target, result) in enumerate(zip(models, results, strict=True)):
        if result.logits is None:
            continue
        text = [*result.prompt_ids, *result.tokens]
        first = len(result.prompt_ids)
        rows = target.logits(text[:-1], result.source_ids, n_threads=1)[first - 1 :]
        if _prompts_apart(target):
            if target.prefill == "blas":
                tolerance = 1e-4 * np.abs(rows).max()
            else:
                tolerance = 0.1 * np.abs(rows).max() + 4 * _rounding_error(case, at, text, first)
            alike = len(rows) == 0 or _distance(rows, result.logits) <= tolerance
            rows = result.logits
        else:
            alike = np.array_equal(rows, result.logits)
        if not alike:
            raise Failure("logits not those of the text's forward")
        for i, (row, token) in enumerate(zip(rows, result.tokens, strict=True)):
            probs = distribution_after(settings, row, text[: first + i], first, target)
            least = lenience * probs.max() * (1 - 1e-6) if lenient_argmax else 0.0
            if probs[token] < least or (not lenient_argmax and probs[token] == 0.0):
                raise Failure(f"token {token} came at {i}, of probability {probs[token]:.3g}")


def _rounding_error(case: dict[str, Any], at: int, text: list[int], first: int) -> float:
    """Return how far rounding moves logits: of activations from f32, or of the weights of the format itself.

    The latter is large where a choice of experts is near a tie.
    """

    def rows(**changes: Any) -> NDArray[np.float32]:
        other = case | {"target": case["target"] | changes | {"prefill": "rows"}}
        target = adapted_target(other)
        model = (models_of_texts(other, target) or [target] * len(case["prompts"]))[at]
        return model.logits(text[:-1], n_threads=1)[first - 1 :]

    description = DEFAULTS | case["target"]
    rounded = rows(dtype="bf16" if description["dtype"] == "bf16" else "int8")
    blur = 2.0**-9 * description["spread"]
    blurred = [rows(noise=description["noise"] + change) for change in (blur, -blur)]
    pairs = [(rounded, rows(dtype="f32", cache_dtype="f32")), *((one, rows()) for one in blurred)]
    return max(_distance(*pair) for pair in pairs)


def _distance(rows: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    """Return the median of the rows' largest differences."""
    return float(np.median(np.abs(rows - others).max(axis=1)))


def _compare_again(
    case: dict[str, Any], target: specdec.Model, models: list[specdec.Model], results: list[specdec.Result]
) -> None:
    """Check that a repeated run, and each prompt alone, give equal output if the seed determines it."""
    settings = case["settings"]

    def draft() -> Any:
        return make_draft(case["draft"], case["target"], case["models"])

    if _changes(case):
        return
    if case.get("again") == "repeat":
        again = _generate(target, draft(), case, **keywords(settings | {"n_threads": 1}))
        for result, other in zip(results, again, strict=True):
            _compare(result, other, "the same run again")
    elif case.get("again") == "alone" and "node_budget" not in settings:
        for i, result in enumerate(results[:3]):
            options = keywords(settings) | {"seed": [result.seed], "batch_size": None}
            _compare(result, _alone(models[i], draft(), result, **options), f"prompt {i} alone")


def _compare_stream(case: dict[str, Any], target: specdec.Model, result: specdec.Result) -> None:
    """Check that a stream's pieces add up to its text, and to that of `generate` if a seed determines it."""
    settings = case["settings"]
    options = keywords({n: v for n, v in settings.items() if n not in ("batch_size", "node_budget")})
    made = make_draft(case["draft"], case["target"], case["models"])
    options["seed"] = [result.seed]
    if "sources" in case:
        options["decoder_prompt"] = case["prompts"][0] or ""
    if (models := models_of_texts(case, target)) is not None:
        options["adapter"] = models[0]
    stream = specdec.stream(target, made, case.get("sources", case["prompts"])[0], **options)
    text = "".join(stream)
    if text != stream.result.text:
        raise Failure(f"the pieces of a stream are {text!r}, its text {stream.result.text!r}")
    if "node_budget" not in settings and (is_fixed(settings) or not _changes(case)):
        _compare(stream.result, result, "generate")


def check_beams(case: dict[str, Any]) -> str:
    """Check that a search with a draft has the beams of one without, with bit-equal scores."""
    target, name = adapted_target(case), case["draft"]
    model = case["target"] if name == "target" else draft_description(case["target"], case["models"][name])
    options, given = {"n_threads": 1} | case["settings"], case["prompt"]
    if "source" in case:
        given, options["decoder_prompt"] = case["source"], given
    found = specdec.beam_search(target, make_model(model), given, **options)
    plain = {name: value for name, value in options.items() if name not in ("draft_width", "gamma")}
    expected = specdec.beam_search(target, None, given, **plain | {"n_threads": 1})
    for i, (one, other) in enumerate(zip(found.beams, expected.beams, strict=True)):
        if one != other:
            raise Failure(f"beam {i} is {one}, and {other} in plain beam search")
    return "passed"
