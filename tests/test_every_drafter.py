"""Guarantees of every draft, tested for every draft: section 3.6, appendix A.1, contracts 1 to 3.

- Greedy and coupled output equals plain output, tokens and logits, to the last bit: on the embedded pair, on
  checkpoints trained elsewhere and on an encoder-decoder, alone and in a batch, wherever the text ends.
- Rejection is exact for the trees that the draft really proposes and the distributions it reports: summed
  over all of them, and over every random number of the compiled rule.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

import specdec
from allocations import allowing, fail_each_allocation, needs_hooks
from distributions import first_layers
from drafters import (
    CHAINS,
    CHOSEN,
    DRAFTS,
    DRAWN_ANYHOW,
    LATER,
    REMEMBERING,
    TEXT,
    VARIANTS,
    World,
    named,
    small_world,
)
from exact import Tokens, cells, chain_distribution, first_tokens, prefixes_of
from grids import in_few_items
from sessions import Session
from specdec import _core, reference
from specdec.drafts.model_draft import as_draft
from toy_pair import blurred, tiny_pair
from trained import small_pair
from weights import VerifyWeights
from worlds.canonical import ENCODER_DECODERS, SWITCHES, perturbed, random_tensors, with_drafts
from worlds.encoder_decoders import EncoderDecoder, model_of
from worlds.folders import write_hf
from worlds.mixtures import qwen3_moe_config, qwen3_moe_tensors

NAMES = list(DRAFTS)
UNSEEDED = {"ensemble that adapts", *REMEMBERING}
"""Which drafts are asked depends on measured times, or their draft tokens on earlier texts."""
TRIED = {"ensemble that adapts"}
"""Asked at first for one of eight sequences, rounded up."""
TELLING = {
    "object", "object with branches", "drafted by an object", "ensemble", "ensemble of layers",
    "ensemble with look-ahead embeddings",
}  # fmt: skip
"""Drafts with an object that keeps state of the sequences of one run."""
IN_PYTHON = TELLING | {"object that draws", "object that draws branches", "ensemble of objects that draw"}
LEARNED = {name for name in NAMES if re.search("heads|eagle|recurrent|embeddings|vocab|text", name)}
"""Drafts whose memory has its own tests."""
N_NEW = 40
COUPLED = {"temperature": 0.9, "top_p": 0.95, "verify": "coupled", "seed": 5}
HOW: dict[str, dict[str, Any]] = {"greedy": {}, "coupled": COUPLED}
OF_A_RUN: dict[str, Any] = {"max_new_tokens": N_NEW, "ignore_eos": True, "logits": True}


# -------------------------------------------------------------------------------------------- worlds


ALL_SWITCHES = SWITCHES | {
    name: config
    for name, config in ENCODER_DECODERS.items()
    if config["encoder"]["n_vocab"] == config["n_vocab"]  # else sources are not copied
}
SMALL = ["small", "mixture", "encoder-decoder"]
IN_PARTS = [
    name for name, config in ALL_SWITCHES.items()
    if any(config.get("windows") or [config["sliding_window"]]) or "mixers" in config
]  # fmt: skip
"""Configurations whose cache keeps a part of a text, or states; the other switches only change numbers."""
OF_LAYERS = {name for name in NAMES if re.search("exit|skip|layers|eagle|mtp", name)}
_MADE: dict[str, World] = {}


def paired(trained: list[str], switches: Iterable[str], without: Iterable[str] = ()) -> pytest.MarkDecorator:
    """Run a test with all drafts on small and trained worlds, and on random models in some configurations.

    Each of these meets every fifth draft, beginning one later than in the world before, so that any five
    neighbors meet all. Drafts of the target's layers, or like them (`OF_LAYERS`), meet all `IN_PARTS`.
    """
    pairs = [(world, name) for world in [*SMALL, *trained] for name in NAMES]
    for shift, switch in enumerate(switches):
        met = {*NAMES[shift % 5 :: 5], *(OF_LAYERS if switch in IN_PARTS else ())}
        pairs += [(f"switches {switch}", name) for name in NAMES if name in met]
    params = [
        pytest.param(*pair, marks=[pytest.mark.slow] * (pair[0] not in SMALL or pair[1] in VARIANTS))
        for pair in pairs if pair[1] not in without
    ]  # fmt: skip
    return pytest.mark.parametrize(("world", "name"), params, indirect=["world"])


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The world of this name; it and its plain texts are made once."""
    if request.param not in _MADE:
        _MADE[request.param] = made(request, tmp_path_factory)
    return _MADE[request.param]


def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Random models of a configuration with family-specific options, or one of the other worlds."""
    if request.param.startswith("switches "):
        config = ALL_SWITCHES[request.param.removeprefix("switches ")]
        tensors = random_tensors(config)
        models = [model_of(config, weights) for weights in (tensors, perturbed(tensors, 0.03))]
        ids = np.random.default_rng(1).integers(0, config["n_vocab"], 25).tolist() * 10
        return World(models[0], models[1], ids)
    if request.param == "encoder-decoder":
        pair = EncoderDecoder("t5", n_ctx=200)
        return World(pair.target, pair.draft, [3 + ord(letter) % 29 for letter in TEXT])
    if request.param == "pair":
        target, draft = small_pair()
        return World(target, draft, target.tokenizer.encode(TEXT))
    if request.param == "small":
        return small_world(tmp_path_factory.mktemp("small"))
    if request.param == "mixture":
        folder = tmp_path_factory.mktemp("mixture")
        config = qwen3_moe_config(max_position_embeddings=200)
        tensors = qwen3_moe_tensors(config)
        target = specdec.load(write_hf(folder / "target", config, tensors))
        draft = specdec.load(write_hf(folder / "draft", config, blurred(tensors, 0.1)))
        return World(target, draft, [ord(letter) % 61 for letter in TEXT])
    shared: Path = request.getfixturevalue("shared")
    file = next((shared / "models" / request.param).glob("*0[0K].bin"))  # not that of the tokenizer
    target = specdec.load(file)
    story = (shared / "data" / "tinystories" / "tiny.txt").read_text(encoding="utf-8")[:3000]
    draft = first_layers(file, 3, tmp_path_factory.mktemp("draft"))
    return World(target, draft, target.tokenizer.encode(story))


def prompts_of(world: World) -> list[list[int]]:
    """Prompts: one token, several, and one that repeats itself and ends with a piece twice."""
    ids = world.ids
    return [ids[:1], ids[:9], ids[20:60] + ids[20:50] * 2]


def run(world: World, draft: Any, prompt: Any, **options: Any) -> Any:
    """Run `specdec.generate` on one prompt or several.

    In an encoder-decoder the decoder continues them, each with its own source.
    """
    if world.target.config.encoder is None:
        return specdec.generate(world.target, draft, prompt, **options)
    several = isinstance(prompt[0], list)
    sources = [source_of(one) for one in (prompt if several else [prompt])]
    return specdec.generate(
        world.target, draft, sources if several else sources[0], decoder_prompt=prompt, **options
    )


def source_of(prompt: list[int]) -> list[int]:
    """A source that varies with the prompt; copying drafts find parts of the text in it."""
    return [*prompt[::-1][:30], *prompt[3:40]]


@cache
def plain(world: World, how: str) -> list[specdec.Result]:
    return run(world, None, prompts_of(world), **HOW[how] | OF_A_RUN)


World.__hash__ = object.__hash__  # type: ignore[method-assign]  # by identity: models cannot be compared


def assert_equal(got: specdec.Result, wanted: specdec.Result, n: int | None = None) -> None:
    assert got.tokens == wanted.tokens[:n]
    assert np.array_equal(got.logits, wanted.logits[:n])


# ---------------------------------------------------------------------------------------------- bits


@paired(["pair", "stories260K", "chars105"], ALL_SWITCHES)
def test_output_is_plain_output(world: World, name: str, request: pytest.FixtureRequest) -> None:
    """Alone with several gammas, and as a batch in two threads, in which one text takes another's place.

    On worlds other than `SMALL` greedy texts alone, and coupled ones as a batch.
    """
    is_small = request.node.callspec.params["world"] in SMALL
    for how in HOW:
        draft, options, found = DRAFTS[name](world), HOW[how] | OF_A_RUN, []
        if is_small or how == "greedy":
            for gamma, prompt, one in zip((None, 1, 7), prompts_of(world), plain(world, how), strict=True):
                alone = options | {"seed": [one.seed], "gamma": gamma, "n_threads": 1}
                found.append(run(world, draft, prompt, **alone))
                assert_equal(found[-1], one)
        if is_small or how == "coupled":
            batch = run(world, draft, prompts_of(world), **options, n_threads=2, batch_size=2)
            for got, one in zip(batch, plain(world, how), strict=True):
                assert_equal(got, one)
            found += batch
        assert any(run.trace.n_drafted for run in found), (
            f"{name}, {how}: proposed nothing after the texts of prompts_of: they lack what it drafts from"
        )


@cache
def filled(world: World, n_free: int) -> tuple[list[int], specdec.Result]:
    """A prompt that leaves space for this many tokens, and its plain continuation to the context's end."""
    n_ctx = world.target.config["n_ctx"] - len(world.target.decoder_start)
    prompt = (world.ids * n_ctx)[: n_ctx - n_free]
    return prompt, run(world, None, prompt, **OF_A_RUN | {"max_new_tokens": None})


@paired(["stories260K"], IN_PARTS)
def test_texts_end_where_plain_texts_end(world: World, name: str) -> None:
    """After one token, at a stop id wherever it falls in a round, and with the context full."""
    draft = DRAFTS[name](world)
    for prompt, whole in zip(prompts_of(world), plain(world, "greedy"), strict=True):
        for n in (1, 2, 3):
            assert_equal(run(world, draft, prompt, **OF_A_RUN | {"max_new_tokens": n}), whole, n)
        for stop in dict.fromkeys(whole.tokens[5:12]):
            got = run(world, draft, prompt, **OF_A_RUN, stop=stop)
            assert got.finish_reason == "stop" and got.stop == stop
            assert_equal(got, whole, whole.tokens.index(stop) + 1)
    for n_free in (1, 2, 5, 11):
        prompt, full = filled(world, n_free)
        got = run(world, draft, prompt, **OF_A_RUN | {"max_new_tokens": None})
        assert got.finish_reason == full.finish_reason == "context" and len(got.tokens) == n_free
        assert_equal(got, full)


@paired(["stories260K"], IN_PARTS, UNSEEDED)
def test_a_sampled_run_follows_from_its_seed(world: World, name: str) -> None:
    """Contract 3 of the rejection rule, with a new draft for each run."""
    options: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 25, "ignore_eos": True, "seed": 3}
    runs = [
        run(world, DRAFTS[name](world), prompts_of(world), n_threads=n, batch_size=1 + n, **options)
        for n in (1, 2)
    ]
    assert [course(one) for one in runs[0]] == [course(one) for one in runs[1]]
    for prompt, one in zip(prompts_of(world), runs[0], strict=True):
        alone = run(world, DRAFTS[name](world), prompt, **options | {"seed": [one.seed]})
        assert course(alone) == course(one), "the text before it in its slot, or next to it, has an effect"


def course(result: specdec.Result) -> tuple[list[int], list[Any]]:
    return result.tokens, [(one.drafted, one.parents, one.accepted) for one in result.trace.rounds]


@pytest.mark.parametrize("world", ["small"], indirect=True)
@pytest.mark.parametrize("name", named(name for name in NAMES if name not in TELLING))
def test_threads_share_a_draft(world: World, name: str) -> None:
    """Two runs at once of one draft object; a memory learns from both."""
    draft, options = DRAFTS[name](world), OF_A_RUN | {"n_threads": 1, "batch_size": 2}
    with ThreadPoolExecutor(2) as threads:
        runs = list(threads.map(lambda _: run(world, draft, prompts_of(world), **options), range(2)))
    for got in runs:
        for one, wanted in zip(got, plain(world, "greedy"), strict=True):
            assert_equal(one, wanted)


@needs_hooks
@pytest.mark.usefixtures("quick_gc")
@pytest.mark.parametrize("name", named(name for name in NAMES if name not in LEARNED))
def test_memory_may_be_lacking(tiny_decoder: World, name: str) -> None:
    """Each allocation of a run fails once: MemoryError, and nothing leaks. Rounds allocate nothing."""
    draft = DRAFTS[name](tiny_decoder)

    def work() -> None:
        specdec.generate(tiny_decoder.target, draft, PROMPT, max_new_tokens=3, ignore_eos=True, n_threads=1)

    work()  # what is made once only is there from now on
    assert fail_each_allocation(work) > 3
    if name in IN_PYTHON:
        return
    session = open_session(tiny_decoder, draft, 2, 3, n_new=9)
    session.round()  # a draft that reads texts lazily has its memory from here on
    with allowing(0):
        while session.round():
            pass
    session.close()


# -------------------------------------------------------------------------------------- distribution

PROMPT = [1, 2, 0, 1, 2, 0, 2, 1, 2, 1, 2]  # drafts that copy find repetitions, its end is one piece twice
SOURCE = [2, 1, 1, 0, 2, 1, 0, 2]
N_RUNS = 2000
"""Runs whose trees are counted: hardly any tree is missing."""


@pytest.fixture(scope="module", params=["decoder", "encoder-decoder"])
def tiny(request: pytest.FixtureRequest, tiny_decoder: World) -> World:
    """Models of three tokens, whose draft trees can all be enumerated."""
    if request.param == "decoder":
        return tiny_decoder
    pair = EncoderDecoder("t5", n_vocab=3, n_ctx=32, blur=0.05)
    return World(pair.target, pair.draft, PROMPT * 3)


@pytest.fixture(scope="module")
def tiny_decoder(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(*tiny_pair(tmp_path_factory.mktemp("tiny")), PROMPT * 3)


def open_session(
    world: World, draft: Any, n: int, gamma: int, *, n_new: int, prompt: list[int] = PROMPT, **options: Any
) -> Session:
    """Open `n` sequences of one prompt with different seeds."""
    target, draft = world.target, as_draft(world.target, draft)
    session = Session(
        target.core, draft.describe(target), [[*target.decoder_start, *prompt]] * n,
        sources=[SOURCE if target.config.encoder is not None else None] * n, gamma=gamma,
        max_new_tokens=n_new, seeds=[(7, i) for i in range(n)], temperature=1.0, **options,
    )  # fmt: skip
    session.prefill()
    return session


@cache
def first_rounds(world: World, name: str, greedy_draft: bool) -> list[dict[str, Any]]:
    """The first round of `N_RUNS` runs after `PROMPT`; of few where the seed changes nothing.

    It changes nothing with a greedy draft, and where all trees of some runs are one of probability 1.

    For drafts that need a round before it is the second one, after the prompt without its last token, of the
    runs in which that token came.
    """
    records = first_rounds_of(world, name, 50, greedy_draft)
    first = tree_of(records[0])
    certain = (tree_of(one) == first and one["draft_points"][1:] == one["drafted"] for one in records)
    if greedy_draft or all(certain):
        return records
    return first_rounds_of(world, name, N_RUNS, False)


def first_rounds_of(world: World, name: str, n_runs: int, greedy_draft: bool) -> list[dict[str, Any]]:
    gamma = 2 if name in CHAINS else 4
    later = name in LATER
    how: dict[str, Any] = {"n_new": gamma + 1 + later, "prompt": PROMPT[: len(PROMPT) - later]}
    if greedy_draft:
        how["draft_sampling"] = {"temperature": 0.0}
    session = with_drafts(open_session(world, DRAFTS[name](world), n_runs, gamma, **how))
    records = session.round()
    if name in TRIED:  # by their position, independent of what they draft
        asked, others = records[: n_runs // 8], records[n_runs // 8 + 1 :]
        assert all(one["drafted"] for one in asked) and not any(one["drafted"] for one in others)
        records = asked
    if later:
        right = {record["sequence"] for record in records if record["tokens"] == PROMPT[-1:]}
        records = [record for record in session.round() if record["sequence"] in right]
    session.close()
    return records


def tree_of(record: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draft tokens and their parents."""
    return tuple(record["drafted"]), tuple(record["parents"])


@cache
def target_after(world: World, prefix: Tokens) -> Any:
    """The target's distribution after `PROMPT` and more tokens."""
    source = None if world.target.config.encoder is None else SOURCE
    text = [*world.target.decoder_start, *PROMPT, *prefix]
    return reference.distribution(world.target.logits(text, source)[-1], 1.0)


# (rule, lenience) that judge what is proposed; k-sequential only independent draws of one distribution
JUDGES: dict[str, list[tuple[str, float]]] = {
    name: [("rejection", 1.0), ("rejection", 0.9), ("rejection", 0.4), ("classical", 1.0), ("traversal", 1.0)]
    + [("block", 1.0)] * (name in CHAINS)
    + [("k-sequential", 1.0)] * (name in CHAINS or name in ("chains", "samples"))
    for name in NAMES
}
JUDGED = [(name, *judge, False) for name in NAMES for judge in JUDGES[name]]
# A greedy draft's tree is no tree of independent draws; some drafts do not heed the draft's settings.
JUDGED += [
    (name, rule, lenience, True)
    for name, rule, lenience, _ in JUDGED
    if name not in DRAWN_ANYHOW and (rule != "k-sequential" or name in CHAINS)
]


@in_few_items(by="name", slow=VARIANTS)
@pytest.mark.parametrize(("name", "rule", "lenience", "greedy_draft"), JUDGED)
def test_verification_is_exact_for_what_is_proposed(
    tiny: World, name: str, rule: str, lenience: float, greedy_draft: bool
) -> None:
    """The distribution of the new tokens, over every proposed tree and every outcome, to 1e-10.

    With lenience the bound of A.5 instead: n first tokens are no more than 1 / l**n times as probable. The
    rule is given the rows of the session: weights, and point masses for chosen tokens.

    A tree's probability is the product of what its nodes were drawn from; that this is so is tested by its
    frequency (chi-square, false alarm 1e-4 each, the seed is fixed). The distribution may only lack trees
    too rare to occur.
    """
    records = first_rounds(tiny, name, greedy_draft)
    if name in CHOSEN:
        records = records[:1]  # no tree has a probability, so each must be exact by itself
    counts = Counter(map(tree_of, records))
    trees = {tree_of(record): record for record in records}
    target = partial(target_after, tiny)
    depth = 0
    outputs: Counter[Tokens] = Counter()
    probabilities = {}
    for key, record in trees.items():
        tokens, parents = [PROMPT[-1], *record["drafted"]], [-1, *record["parents"]]
        rows = record["draft_probs"]
        compiled = partial(VerifyWeights(record["draft_points"]), rule=rule, lenience=lenience)
        prefixes = prefixes_of(record["drafted"], record["parents"])
        depth = max(depth, *map(len, prefixes))
        target_probs = np.array([target(prefix) for prefix in prefixes])
        for prefix, logits in zip(prefixes, record["node_logits"], strict=True):
            assert np.array_equal(reference.distribution(logits, 1.0), target(prefix))
        probabilities[key] = float(np.prod([rows[i, tokens[i]] for i in range(1, len(tokens))]))
        for box in cells(compiled, tokens, parents, target_probs, rows):
            outputs[(*(tokens[node] for node in box.path), box.token)] += probabilities[key] * box.probability
    assert depth > 0, f"{name} proposed nothing after PROMPT: it needs something that {name} drafts from"
    missing = 1.0 - sum(probabilities.values())
    assert -1e-9 < missing < 0.02
    if lenience < 1:
        for length in range(1, depth + 2):
            plain = chain_distribution(target, length)
            for new, p in first_tokens(dict(outputs), target, length).items():
                assert p <= plain.get(new, 0.0) / lenience**length + 1e-10
    else:
        wanted = chain_distribution(target, depth + 1)
        got = first_tokens(dict(outputs), target, depth + 1)
        assert max(abs(got.get(new, 0.0) - p) for new, p in wanted.items()) < max(missing, 0.0) + 1e-10

    common = [key for key, p in probabilities.items() if p * len(records) >= 5]
    if len(common) > 1:
        found = [counts[key] for key in common]
        expected = np.array([probabilities[key] for key in common])
        rest = len(records) - sum(found)
        if (1 - expected.sum()) * len(records) >= 5:
            found, expected = [*found, rest], np.append(expected, 1 - expected.sum())
        assert scipy.stats.chisquare(found, expected / expected.sum() * sum(found)).pvalue > 1e-4


def sharpened(probs: np.ndarray, tokens: list[int]) -> np.ndarray:
    """A transform whose rows do not sum to 1."""
    return 3.0 * probs**1.5


ACCEPT, SAMPLE = 1, 2  # purposes of random numbers (base/rng.h)


@in_few_items(by="name", slow=VARIANTS)
@pytest.mark.parametrize("transform", [None, sharpened], ids=["", "transformed"])
@pytest.mark.parametrize(
    ("name", "rule", "lenience"), [(name, *judge) for name in NAMES for judge in JUDGES[name]]
)
def test_a_session_judges_as_the_reference_does(
    tiny: World, name: str, rule: str, lenience: float, transform: Any
) -> None:
    """With the session's own random numbers, which are known by their keys, round after round.

    The reference knows probabilities alone, so what a session makes of its weights is compared too.
    """
    n = 8
    options: dict[str, Any] = {"rule": rule, "lenience": lenience, "transform": transform, "n_new": 12}
    session = open_session(tiny, DRAFTS[name](tiny), n, 2 if name in CHAINS else 5, **options)
    with_drafts(session)
    texts = [[*tiny.target.decoder_start, *PROMPT] for _ in range(n)]
    n_drafted = 0
    while records := session.round():
        for record in records:
            i, tokens = record["sequence"], [0, *record["drafted"]]
            target_probs = [_core.distribution(row, temperature=1.0) for row in record["node_logits"]]
            if transform is not None:
                target_probs = [transform(row, []) / transform(row, []).sum() for row in target_probs]
            key = (7, i, len(texts[i]))
            uniforms = [_core.uniform(*key, ACCEPT, node) for node in range(len(tokens))]
            path, token, betas = reference.verify(
                tokens, [-1, *record["parents"]], np.array(target_probs), record["draft_probs"],
                np.array([*uniforms, _core.uniform(*key, SAMPLE, 0)]), rule=rule, lenience=lenience,
            )  # fmt: skip
            assert record["accepted"] == path
            assert record["tokens"] == [*(tokens[node] for node in path), token]
            np.testing.assert_allclose(record["betas"], betas, rtol=0, atol=1e-12)
            texts[i] += record["tokens"]
            n_drafted += len(record["drafted"])
    session.close()
    assert n_drafted > 0, f"{name} proposed nothing after PROMPT: it needs something that {name} drafts from"
