"""Beam search: speculative search equals plain search, which equals the reference."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import allowing, fail_each_allocation, needs_hooks
from compiled import prompt_logits
from compiled import score as score_of
from refusals import refuses
from sessions import read_prompts
from specdec import _core, reference
from specdec.drafts import Unigram
from specdec.errors import InputError, VocabularyMismatchError
from toy_pair import EOS, N_CTX, N_VOCAB, greedy_tokens, load_pair
from worlds.canonical import FORMATS, LLAMA, VARIANTS, build, perturbed, random_tensors

PROMPT = [1, 5, 9, 30, 7, 12]
Tensors = dict[str, np.ndarray]
Beams = list[dict[str, Any]]


def search(
    target: _core.Model, draft: _core.Model | None, prompt: list[int] = PROMPT, *, width: int = 3,
    draft_width: int | None = None, gamma: int = 4, n: int = 20, **options: Any,
) -> tuple[Beams, list[Any]]:  # fmt: skip
    """Run a whole search; return its beams and records."""
    run = _core.BeamSearch(
        target, draft, prompt, width=width, draft_width=width if draft_width is None else draft_width,
        gamma=gamma, max_new_tokens=n, **options,
    )  # fmt: skip
    read_prompts(run)
    records = []
    while found := run.round():
        records += found
    beams = run.beams()
    run.close()
    return beams, records


def equal(one: Beams, two: Beams) -> bool:
    """Whether tokens, their order and the bits of scores are equal."""
    scores = [np.array([beam["score"] for beam in beams]) for beams in (one, two)]
    return [b["tokens"] for b in one] == [b["tokens"] for b in two] and np.array_equal(*scores)


def decoder_logits(model: _core.Model, ids: list[int]) -> np.ndarray:
    """Logits after a text, read as a prompt without tree or search."""
    return prompt_logits(model, ids)[-1]


def agrees(beams: Beams, expected: list[tuple[list[int], float, bool]], atol: float = 1e-5) -> bool:
    """Compare with the reference's beams: the core's ln p has f32 exponentials, accurate to some 1e-7."""
    scores = [np.array([score for _, score, _ in expected]), np.array([b["score"] for b in beams])]
    same = [(b["tokens"], b["ended"]) for b in beams] == [(tokens, ended) for tokens, _, ended in expected]
    return same and np.allclose(*scores, rtol=0, atol=atol)


pytestmark = pytest.mark.usefixtures("one_thread")
TENSORS = random_tensors(LLAMA)
TARGET = build(LLAMA, TENSORS)
SMALL = LLAMA | {"n_layer": 1, "n_head": 2, "n_kv_head": 1, "d_model": 16, "d_ff": 20}
DRAFTS = {
    "friend": build(LLAMA, perturbed(TENSORS, 0.01)), "acquaintance": build(LLAMA, perturbed(TENSORS, 0.05)),
    "stranger": build(SMALL, random_tensors(SMALL, seed=5)), "itself": TARGET,
}  # fmt: skip


# ------------------------------------------------------------------------- what plain beam search finds


@pytest.mark.parametrize("prompt", [PROMPT, [3]])
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_plain_beam_search_is_the_reference_on_the_same_logits(width: int, prompt: list[int]) -> None:
    for n in (1, 2, 12):
        expected = reference.beam_search(lambda ids: decoder_logits(TARGET, ids), prompt, width, n)
        beams, records = search(TARGET, None, prompt, width=width, n=n)
        assert agrees(beams, expected)
        assert [r["n_levels"] for r in records] == [1] * n
        assert [r["n_nodes"] for r in records] == [1] + [width] * (n - 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_plain_beam_search_is_the_reference_with_its_own_forward(variant: str) -> None:
    """Independent code: NumPy's forward pass in f64, and NumPy's search."""
    config, tensors = VARIANTS[variant], random_tensors(VARIANTS[variant], seed=2)

    def logits_of(ids: list[int]) -> np.ndarray:
        return reference.logits(config, tensors, ids)[-1]

    expected = reference.beam_search(logits_of, PROMPT, 3, 7, stop_ids=[11, 40])
    beams, _ = search(build(config, tensors), None, n=7, stop_ids=(11, 40))
    assert agrees(beams, expected, atol=1e-3)


TINY = LLAMA | {"n_vocab": 5}


def test_wide_enough_it_is_exhaustive_search() -> None:
    """All 5^4 continuations, best first, with the scores of reading each as a prompt."""
    model = build(TINY, random_tensors(TINY, seed=4))
    texts = list(itertools.product(range(5), repeat=4))
    scores = [float(score_of(model, [1, 4, *text])[1:].sum()) for text in texts]
    order = np.argsort(-np.array(scores), kind="stable")
    for draft, gamma in ((None, 0), (build(TINY, random_tensors(TINY, seed=5)), 3), (model, 2)):
        beams, _ = search(model, draft, [1, 4], width=5**4, gamma=gamma, n=4)
        assert [b["tokens"] for b in beams] == [list(texts[i]) for i in order]
        np.testing.assert_allclose([b["score"] for b in beams], np.array(scores)[order], rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_do_not_depend_on_what_is_pruned(variant: str) -> None:
    """A search that drops no node before the last step equals narrow ones, which drop some in each."""
    config = VARIANTS[variant] | {"n_vocab": 5}
    model = build(config, random_tensors(config, seed=4))
    everything, _ = search(model, None, [1, 4, 2], width=625, n=4)
    scores = {tuple(beam["tokens"]): beam["score"] for beam in everything}
    for width in (1, 2, 3, 7, 30):
        for gamma, draft in ((0, None), (2, model), (3, build(config, random_tensors(config, seed=7)))):
            beams, _ = search(model, draft, [1, 4, 2], width=width, gamma=gamma, n=4)
            assert len(beams) == width
            assert all(beam["score"] == scores[tuple(beam["tokens"])] for beam in beams)


def test_equal_scores_go_to_the_better_hypothesis_then_to_the_lower_token() -> None:
    """In this model every token has two duplicates with the same embedding and logits, bit for bit."""
    tensors = random_tensors(LLAMA, seed=6)
    for name in ("token_embedding", "head"):
        third = tensors[name][:33]
        tensors[name] = np.concatenate([third, third, third, tensors[name][99:]])
    model = build(LLAMA, tensors)
    row = decoder_logits(model, PROMPT)
    assert np.array_equal(row[:33], row[33:66])
    for width in (1, 2, 3, 5, 8):
        expected = reference.beam_search(lambda ids: decoder_logits(model, ids), PROMPT, width, 5)
        assert len({score for _, score, _ in expected}) < width or width == 1
        beams, _ = search(model, None, width=width, n=5)
        assert agrees(beams, expected)
        for draft, gamma in ((model, 3), (build(LLAMA, perturbed(tensors)), 2)):
            assert equal(search(model, draft, width=width, draft_width=width + 2, gamma=gamma, n=5)[0], beams)


# ------------------------------------------------------------------------------- speculation changes nothing


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_speculative_beams_are_the_plain_ones(width: int) -> None:
    """Tokens and scores, for every draft, gamma, draft width and number of threads."""
    plain, _ = search(TARGET, None, width=width)
    assert len(plain) == width
    levels = {}
    for name, gamma, wider in itertools.product(DRAFTS, range(6), (0, 1, width, 20)):
        found, records = search(TARGET, DRAFTS[name], width=width, draft_width=width + wider, gamma=gamma)
        assert equal(found, plain), (name, gamma, wider)
        assert sum(r["n_levels"] for r in records) == 20
        assert all(1 <= r["n_levels"] <= gamma + 1 for r in records)
        assert all(r["n_nodes"] <= width + (width + wider) * gamma for r in records)
        levels[name, gamma, wider] = 20 / len(records)
        if name == "itself" and wider == 0:  # makes the target's own steps: nothing is ever rejected
            assert len(records) == -(-20 // (gamma + 1))
    found, _ = search(TARGET, DRAFTS["friend"], width=width, draft_width=2 * width, n_threads=2)
    assert equal(found, plain)
    # the comparison means something: drafts are accepted and rejected
    assert levels["friend", 4, width] > levels["stranger", 4, width] >= 1.0
    assert 1.0 < levels["friend", 4, width] < 5.0


@pytest.mark.parametrize(
    ("variant", "formats"),
    [*itertools.product(["llama"], FORMATS), *itertools.product(VARIANTS, [("f32", "f32")])],
)
def test_speculative_beams_are_the_plain_ones_in_every_format_and_architecture(
    variant: str, formats: tuple[str, str]
) -> None:
    config, tensors = VARIANTS[variant], random_tensors(VARIANTS[variant])
    model = build(config, tensors, dtype=formats[0], cache_dtype=formats[1])
    for prompt, scale, wider, dtype in (
        (PROMPT, 0.0, 3, formats[0]), ([3], 0.01, 5, "int8"), (list(range(80)), 0.05, 5, "f32"),
    ):  # fmt: skip
        draft = build(config, perturbed(tensors, scale), dtype=dtype, cache_dtype=formats[1])
        found, records = search(model, draft, prompt, draft_width=wider, gamma=3, n=70)
        assert equal(found, search(model, None, prompt, n=70)[0])
        assert scale > 0.0 or len(records) == 18  # rounds of 4 steps


# ---------------------------------------------------------------------------------------------- its ends


@pytest.mark.parametrize("width", [1, 2, 4])
def test_ended_hypotheses_stay_with_their_score(width: int) -> None:
    """Stop ids that end none, some and all of the hypotheses before the limit."""
    seen = set()
    rng = np.random.default_rng(3)
    for n_stop in (1, 5, 20, 60, 101):
        stop_ids = tuple(int(i) for i in rng.permutation(101)[:n_stop])
        expected = reference.beam_search(
            lambda ids: decoder_logits(TARGET, ids), PROMPT, width, 10, stop_ids=stop_ids
        )
        plain, records = search(TARGET, None, width=width, n=10, stop_ids=stop_ids)
        assert agrees(plain, expected)
        for beam in plain:
            assert beam["ended"] == (beam["tokens"][-1] in stop_ids)
            assert not set(beam["tokens"][:-1]) & set(stop_ids)
        if all(beam["ended"] for beam in plain):
            assert len(records) == max(len(beam["tokens"]) for beam in plain)
        seen.add(sum(beam["ended"] for beam in plain) / width)
        for draft, gamma in itertools.product(DRAFTS.values(), (1, 3, 12)):
            found, _ = search(
                TARGET, draft, width=width, draft_width=2 * width, gamma=gamma, n=10, stop_ids=stop_ids
            )
            assert equal(found, plain)
            assert [b["ended"] for b in found] == [b["ended"] for b in plain]
    assert {0.0, 1.0} <= seen


@pytest.mark.parametrize("n_prompt", [1, 2, 200, 251, 254, 255])
def test_the_context_ends_the_search(n_prompt: int) -> None:
    """The search uses the last position, however many tokens the draft would still propose."""
    prompt = [7 + i % 60 for i in range(n_prompt)]
    plain, _ = search(TARGET, None, prompt, width=2, n=1000)
    assert {len(beam["tokens"]) for beam in plain} == {256 - n_prompt}
    for gamma in (1, 4, 300 if n_prompt > 100 else 9):
        assert equal(search(TARGET, DRAFTS["friend"], prompt, width=2, gamma=gamma, n=1000)[0], plain)


@pytest.mark.parametrize("n_ctx", [1, 3, 6, 7, 9, 20, 30])
def test_a_draft_with_a_shorter_context_drafts_as_long_as_it_can(n_ctx: int) -> None:
    plain, _ = search(TARGET, None, n=30)
    short = LLAMA | {"n_ctx": n_ctx}
    draft = build(short, perturbed(TENSORS, 0.01))
    found, records = search(TARGET, draft, draft_width=6, gamma=4, n=30)
    assert equal(found, plain)
    assert (sum(r["n_drafted"] for r in records) > 0) == (n_ctx >= len(PROMPT))


# --------------------------------------------------------------------------------------------- the package


Pair = tuple[specdec.Model, specdec.Model]


def test_beams_have_text_scores_and_reasons(pair: Pair) -> None:
    target, draft = pair
    out = specdec.beam_search(target, draft, "abab", width=4, max_new_tokens=30, stop=[20, 33])
    plain = specdec.beam_search(target, None, "abab", width=4, max_new_tokens=30, stop=[20, 33])
    assert out.beams == plain.beams == list(out) and len(out) == 4 and out.best is out.beams[0]
    assert [beam.score for beam in out] == sorted((beam.score for beam in out), reverse=True)
    for beam in out:
        ids = [*out.prompt_ids, *beam.tokens]
        assert beam.score == pytest.approx(target.score(ids)[len(out.prompt_ids) - 1 :].sum(), abs=1e-5)
        ended = beam.tokens[-1] in {20, 33, EOS}
        assert beam.finish_reason == ("stop" if ended else "length")
        whole = target.tokenizer.decode(ids[:-1] if ended else ids)
        assert whole == target.tokenizer.decode(out.prompt_ids) + beam.text
    assert str(out).count("\n") == 3 and "BeamTrace" in repr(out)


def test_width_one_is_generate(pair: Pair) -> None:
    target, draft = pair
    greedy = specdec.generate(target, None, PROMPT, max_new_tokens=40)
    beam = specdec.beam_search(target, draft, PROMPT, width=1, max_new_tokens=40).best
    assert (beam.tokens, beam.text, beam.finish_reason) == (greedy.tokens, greedy.text, greedy.finish_reason)
    assert beam.tokens == greedy_tokens(target, PROMPT, len(beam.tokens))


def test_finish_reasons_and_the_whole_context(pair: Pair) -> None:
    target, draft = pair
    out = specdec.beam_search(target, draft, PROMPT, max_new_tokens=None, ignore_eos=True)
    assert {beam.finish_reason for beam in out} == {"context"}
    assert {len(beam.tokens) for beam in out} == {N_CTX - len(PROMPT)}
    out = specdec.beam_search(target, draft, PROMPT, max_new_tokens=5, stop=range(N_VOCAB))
    assert {(len(beam.tokens), beam.finish_reason, beam.text) for beam in out} == {(1, "stop", "")}
    assert out.trace.n_levels == out.trace.n_target_calls == 1


def test_the_trace_adds_up(pair: Pair) -> None:
    target, draft = pair
    trace = specdec.beam_search(
        target, draft, PROMPT, width=2, draft_width=5, gamma=3, max_new_tokens=30, ignore_eos=True
    ).trace
    assert trace.n_levels == 30 and trace.n_target_calls == len(trace.rounds) < 30
    assert trace.levels_per_call == 30 / len(trace.rounds)
    assert trace.n_draft_calls <= 3 * len(trace.rounds)
    assert trace.n_nodes == trace.n_drafted + 1 + 2 * (len(trace.rounds) - 1)
    found = trace.to_dict()
    assert found["rounds"][0]["n_levels"] == trace.rounds[0].n_levels and found["rounds_s"] > 0
    assert all(r.draft_s > 0 and r.verify_s > 0 and r.other_s > 0 for r in trace.rounds[:-1])


def test_a_progress_bar_counts_steps(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    specdec.beam_search(*pair, PROMPT, max_new_tokens=17, ignore_eos=True, progress=True)
    assert "17/17" in capsys.readouterr().err


def test_the_length_penalty_orders_hypotheses(pair: Pair) -> None:
    target, draft = pair
    options: dict[str, Any] = {"width": 5, "max_new_tokens": 12, "stop": [20, 33, 40, 41]}
    out = specdec.beam_search(target, draft, PROMPT, **options)
    assert len({len(beam.tokens) for beam in out}) > 1
    by_mean = specdec.beam_search(target, draft, PROMPT, length_penalty=1.0, **options)
    assert sorted(by_mean, key=lambda b: -b.score) == out.beams
    means = [beam.score / len(beam.tokens) for beam in by_mean]
    assert means == sorted(means, reverse=True)
    assert by_mean.beams != out.beams
    longest_first = specdec.beam_search(target, draft, PROMPT, length_penalty=1e300, **options)
    lengths = [len(beam.tokens) for beam in longest_first]
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("width", 0), ("width", 1025), ("width", 2.0), ("draft_width", 3), ("gamma", -1), ("gamma", 1025),
        ("max_new_tokens", 0), ("length_penalty", float("nan")), ("length_penalty", "1"), ("n_threads", 0),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(pair: Pair, argument: str, value: Any) -> None:
    with refuses(argument, value):
        specdec.beam_search(*pair, PROMPT, **{argument: value})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stop": "a"}, "stop"), ({"stop": [3, "a"]}, "stop"), ({"stop": N_VOCAB}, "stop"),
        ({"stop": 1.5}, "stop"), ({"prompt": []}, "prompt"), ({"prompt": [N_VOCAB]}, "position 0"),
        ({"prompt": [3] * N_CTX}, "context"), ({"prompt": ["Once"]}, "one prompt"),
        ({"prompt": [[3], [4]]}, "2 prompts"), ({"target": None}, "target"), ({"draft": 3}, "draft"),
        ({"draft": Unigram([3], N_VOCAB)}, "draft is a Unigram"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(pair: Pair, options: dict[str, Any], named: str) -> None:
    given = {"target": pair[0], "draft": pair[1], "prompt": PROMPT, **options}
    with pytest.raises(InputError, match=named):
        specdec.beam_search(given.pop("target"), given.pop("draft"), given.pop("prompt"), **given)


def test_another_vocabulary_is_refused(pair: Pair, tmp_path: Path) -> None:
    other = specdec.load(load_pair(tmp_path, vocab_size=N_VOCAB + 2)[1].path, tokenizer=False)
    with pytest.raises(VocabularyMismatchError):
        specdec.beam_search(pair[0], other, PROMPT)


# ------------------------------------------------------------------------------------------------ the core


def test_calls_in_the_wrong_order_are_refused() -> None:
    options: dict[str, Any] = {"width": 2, "draft_width": 2, "gamma": 1, "max_new_tokens": 3}
    run = _core.BeamSearch(TARGET, None, PROMPT, **options)
    assert run.beams() == [{"tokens": [], "score": 0.0, "ended": False}]
    with pytest.raises(RuntimeError, match="has not been read"):
        run.round()
    read_prompts(run)
    while run.round():
        pass
    assert run.round(1.0) == [] and len(run.beams()) == 2
    run.close()
    run.close()
    for call in (run.prefill_slice, run.round, run.beams):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_a_call_makes_the_rounds_of_a_time() -> None:
    plain, records = search(TARGET, None)
    run = _core.BeamSearch(TARGET, None, PROMPT, width=3, draft_width=3, gamma=0, max_new_tokens=20)
    read_prompts(run)
    assert len(run.round(60.0)) == len(records)
    assert equal(run.beams(), plain)


@pytest.fixture(scope="module")
def overflowing() -> _core.Model:
    """A model with finite weights whose products overflow: logits of ±infinity or NaN."""
    names = ("output_norm.weight", "head")
    huge = {name: TENSORS[name] * np.float32(1e30 if name in names else 1.0) for name in TENSORS}
    model = build(LLAMA, huge)
    assert not np.isfinite(decoder_logits(model, PROMPT)).any()
    return model


def test_non_finite_logits_end_the_search(overflowing: _core.Model) -> None:
    options: dict[str, Any] = {"width": 2, "draft_width": 2, "gamma": 0, "max_new_tokens": 3}
    run = _core.BeamSearch(overflowing, None, PROMPT, **options)
    read_prompts(run)
    with pytest.raises(specdec.NotFiniteError, match="the target: the logits are not finite after position"):
        run.round()
    with pytest.raises(RuntimeError, match="a round has failed"):
        run.round()


def test_a_draft_whose_logits_are_not_finite_proposes_nothing(overflowing: _core.Model) -> None:
    found, records = search(TARGET, overflowing)
    assert equal(found, search(TARGET, None)[0])
    assert sum(r["n_drafted"] for r in records) == 0
    assert [r["n_draft_calls"] for r in records] == [1] * 19 + [0]


@pytest.mark.usefixtures("quick_gc")
@needs_hooks
@pytest.mark.parametrize("drafting", [False, True])
def test_the_nth_allocation_fails_for_every_n(drafting: bool) -> None:
    """Each failure raises MemoryError and leaks nothing; rounds allocate nothing."""
    target, draft = build(LLAMA, TENSORS), build(LLAMA, perturbed(TENSORS)) if drafting else None
    expected, _ = search(target, draft, n=5)

    def work() -> None:
        found, _ = search(target, draft, n=5)
        assert equal(found, expected)

    assert fail_each_allocation(work) >= 5
    run = _core.BeamSearch(target, draft, PROMPT, width=3, draft_width=6, gamma=4, max_new_tokens=50)
    with allowing(0):
        read_prompts(run)
        while run.round():
            pass
