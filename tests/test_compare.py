"""Comparisons of all draft types, against counts of runs, formulas and simulations."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import specdec
from drafters import DRAFTS, REMEMBERING, World, named
from experiments import use_forward_times, use_speedups
from specdec import Result, Round, Speedup, Trace, drafts
from specdec.errors import InputError, MissingPackageError
from toy_pair import N_VOCAB, load_pair

PROMPTS = [[1, 5, 9, 30], [7, 8, 7, 8, 7]]
N_NEW = 12  # tokens of a prompt


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    target, draft = load_pair(tmp_path_factory.mktemp("pair"), amount=0.2)
    return World(target, draft, np.random.default_rng(0).integers(1, N_VOCAB, 40).tolist() * 6)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable timing of forward passes."""
    use_forward_times(monkeypatch)


def rounds_of(world: World, draft: Any, **options: Any) -> list[list[Round]]:
    """Rounds of each prompt, run one after another."""
    options |= {"max_new_tokens": N_NEW}
    runs = [
        specdec.generate(world.target, draft, one, seed=[(3, i)], **options) for i, one in enumerate(PROMPTS)
    ]
    return [list(run.trace.rounds) for run in runs]


@pytest.mark.parametrize("name", named())
def test_every_draft_is_measured_and_compared(world: World, name: str) -> None:
    """Counts equal runs of a new draft, prompt after prompt; the given draft learns nothing."""
    options: dict[str, Any] = {"temperature": 0.8, "gamma": 4}
    made = DRAFTS[name](world)
    texts = rounds_of(world, made.draft if isinstance(made, drafts.OnlineDraft) else made, **options)
    rounds = [one for text in texts for one in text]
    trees = any(list(one.parents) != list(range(one.n_drafted)) for one in rounds)
    given = DRAFTS[name](world)
    settings: dict[str, Any] = {
        "prompts": PROMPTS, "temperatures": [0.8], "gammas": [4], "n_tokens": N_NEW * len(PROMPTS),
        "timing": False, "seed": 3,
    }  # fmt: skip
    for _ in range(2):
        found = specdec.compare(world.target, {"mine": given}, **settings)
        (row,) = found.rows
        assert (row.draft, row.gamma, row.temperature, row.speedup) == ("mine", 4, 0.8, None)
        assert row.rule in ("block", "traversal", "rejection")
        if name == "ensemble that adapts":  # which drafts are asked depends on times
            continue
        assert row.n_tokens == sum(one.kept for one in rounds) and row.n_calls == len(rounds)
        assert row.tokens_per_call == row.n_tokens / row.n_calls
        betas = [beta for one in rounds for beta in one.betas]
        if trees or not betas:
            assert row.alpha is None and row.reason
        else:
            assert row.alpha == pytest.approx(sum(betas) / len(betas)) and not row.reason
        for i, share in enumerate(row.by_position, 1):
            reached = [len(one.path) for one in rounds if one.depth >= i]
            assert share == sum(n >= i for n in reached) / len(reached)
        for one, text in zip(row.prompts, texts, strict=True):
            assert one.tokens_per_call == sum(r.kept for r in text) / len(text)
    assert "nan" not in str(found).lower()

    measured = specdec.measure(world.target, {"mine": given}, leniences=[1.0], **settings)
    (line,) = measured.rows
    assert line.draft == measured.draft == "mine" and bool(measured.betas) == (not line.by_running)
    if line.by_running:
        assert (line.predicted_speedup, line.ideal_speedup) == (None, None) and line.reason
        if name != "ensemble that adapts":
            ours, theirs = ((one.tokens_per_call, one.alpha, one.by_position) for one in (line, row))
            assert ours == theirs
    else:
        assert line.alpha is not None and line.reason == "" and not trees
    json.dumps(measured.to_dict(), allow_nan=False)
    assert "mine" in str(measured)

    replayed = specdec.oracle(
        world.target, {"mine": given}, PROMPTS[1], gammas=[0, 2], max_gamma=3, max_new_tokens=N_NEW
    )
    assert [one.name for one in replayed.rows][:3] == ["gamma 0", "gamma 2", "auto"]
    assert replayed["gamma 0"].tokens_per_call == 1.0 and replayed.draft == "mine"


@pytest.mark.parametrize("name", named())
def test_every_draft_is_tuned(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gamma 2 is made the fastest; if acceptance and times predict, the prediction decides."""

    def speedup(run: Any) -> Speedup:
        ratio = 1.1 if run.gamma == 2 else 0.9
        return Speedup((ratio - 0.1, ratio, ratio + 0.1), (9.0, 9.0, 9.0))

    use_speedups(monkeypatch, speedup)
    candidates = {"mine": DRAFTS[name](world)}
    found = specdec.tune(world.target, candidates, PROMPTS, max_gamma=2, n_tokens=4, temperature=0.8)
    assert found.draft == "mine"
    if found.row.by_running:
        nothing = found.row.reason == "nothing was drafted"  # that is plain decoding, whatever its times
        assert found.gamma == (0 if nothing else 2) and found.speedups[2] == 1.1
        assert ("= plain (drafted nothing)" in str(found)) == nothing
        assert found.speedup_intervals[2] == pytest.approx((1.0, 1.2)) and found.idealised_gamma is None
        assert set(found.rows) >= {1, 2} and ("2 ★" in str(found)) != nothing
    else:
        assert list(found.speedups) == [0, 1, 2]
    loaded = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    plain = loaded["rows"][0]
    assert (plain["gamma"], plain["verify_ratio"], plain["c"]) == (0, 1.0, loaded["c"])


@pytest.mark.parametrize("name", sorted(REMEMBERING))
def test_a_snapshot_knows_what_the_draft_knows_and_learns_apart(world: World, name: str) -> None:
    given = DRAFTS[name](world)
    assert isinstance(given, drafts.Draft)

    def shapes(draft: Any) -> list[list[tuple[Any, ...]]]:
        return [[(one.drafted, one.path) for one in text] for text in rounds_of(world, draft, gamma=4)]

    wanted = shapes(DRAFTS[name](world))
    assert shapes(given.snapshot()) == shapes(given.snapshot()) == shapes(given) == wanted
    assert given.snapshot().identity is given.identity or isinstance(given, drafts.OnlineDraft)


@pytest.mark.statistical
def test_alpha_of_runs_is_that_of_the_distributions(world: World) -> None:
    """Of runs at the positions they verify, and of both whole distributions at every position."""
    options: dict[str, Any] = {"temperatures": [1.0], "gammas": [1], "timing": False}
    prompts = [[i, i + 1] for i in range(40)]
    measured = specdec.measure(world.target, world.draft, prompts, n_tokens=3000, leniences=[1.0], **options)
    found = specdec.compare(world.target, {"it": world.draft}, prompts, n_tokens=3000, **options).rows[0]
    alpha, low, high = measured.rows[0].rates
    assert found.alpha == pytest.approx(alpha, abs=2 * (high - low))
    # with one draft token per round the tokens per pass is 1 + alpha, equation (1)
    assert found.tokens_per_call == pytest.approx(1 + alpha, abs=0.06)
    assert found.tokens_low < 1 + alpha < found.tokens_high


def text_of(rounds: list[tuple[int, int, int]], **seconds: float) -> Any:
    """Make a run of chains from (draft tokens, accepted, kept) of each round."""
    seconds = {"draft_s": 0.0, "verify_s": 1.0, "other_s": 0.0} | seconds
    made = [
        Round(
            index=i, drafted=(1,) * n, parents=tuple(range(n)), path=tuple(range(1, a + 1)),
            tokens=(1,) * (a + 1), kept=kept, betas=(0.5,) * min(n, a + 1), **seconds,
        )
        for i, (n, a, kept) in enumerate(rounds)
    ]  # fmt: skip
    return Result(
        text=None, tokens=[1] * sum(kept for *_, kept in rounds), finish_reason="length", stop=None,
        trace=Trace(made), prompt_ids=[1], seed=(0, 0), tokenizer=None,
    )  # fmt: skip


def compared(monkeypatch: Any, world: World, *turns: tuple[list[Any], list[float]], **options: Any) -> Any:
    """Row of a draft with these texts and seconds in each repetition; a plain token takes 2 s."""
    n_prompts = len(turns[0][0])
    texts = iter([one for turn in turns for one in zip(*turn, strict=True)])

    def timed(target: Any, draft: Any, prompt: Any, options: Any) -> Any:
        return (2.0 * N_NEW, text_of([(0, 0, 1)] * N_NEW)) if draft is None else next(texts)[::-1]

    monkeypatch.setattr("specdec.analysis.experiment._timed", timed)
    prompts = [PROMPTS[0]] * n_prompts
    settings = {"temperatures": [1.0], "gammas": [3], "repeats": len(turns), "n_tokens": N_NEW * n_prompts}
    (row,) = specdec.compare(world.target, {"it": "prompt-lookup"}, prompts, **settings | options).rows
    return row


def test_intervals_of_tokens_per_pass_cover_the_truth(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up draws, right with probability 0.7 up to three times in a row: 1 + 0.7 + 0.49 + 0.343."""
    rng = np.random.default_rng(2)
    truth, hits = 1 + 0.7 + 0.49 + 0.343, 0
    for _ in range(200):
        lengths = np.minimum(rng.geometric(0.3, size=(4, 30)) - 1, 3)
        texts = [text_of([(3, int(k), int(k) + 1) for k in text]) for text in lengths]
        row = compared(monkeypatch, world, (texts, [1.0] * 4), timing=False)
        hits += row.tokens_low < truth < row.tokens_high
    assert hits >= 180  # 190 expected, standard deviation 3


def test_figures_by_hand(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of a turn; costs are medians over plain runs of the same turn."""
    texts = [[(3, 3, 4), (3, 1, 2), (0, 0, 1)], [(2, 0, 1), (3, 2, 2)]]  # the end of the text cut one off
    row = compared(monkeypatch, world, (list(map(text_of, texts)), [1.0, 1.0]), timing=False)
    assert (row.n_tokens, row.n_calls, row.n_drafted, row.n_accepted) == (10, 5, 11, 6)
    assert (row.tokens_per_call, row.alpha, row.by_position) == (2.0, 0.5, (3 / 4, 2 / 4, 1 / 3))
    turns = [([text_of([(4, 2, 3)] * 2, draft_s=0.8)], [2 * (0.8 + 3.0)]) for _ in range(3)]
    turns[1] = turns[1][0], [1700.0]  # one wrong turn of three
    row = compared(monkeypatch, world, *turns)
    assert (row.c, row.draft_ratio, row.verify_ratio) == pytest.approx((0.1, 0.4, 1.5))
    row = compared(monkeypatch, world, *[([text_of([(0, 0, 1)] * 2)], [4.0])] * 3)
    assert (row.c, row.draft_ratio) == (None, 0.0)


def test_turns_begin_with_what_the_draft_knows(world: World) -> None:
    """A memory learns within a turn, from its prompts in their order, and from no other turn."""
    memory = drafts.SuffixDecoding(min_match=1)
    found = specdec.compare(
        world.target, {"memory": memory}, [PROMPTS[1]] * 2, temperatures=[0.0], n_tokens=40, repeats=2
    )
    first, second = found.rows[0].prompts
    assert second.tokens_per_call > 2.0 * first.tokens_per_call  # the same text again
    assert memory.n_texts == 0
    assert first.speedup is not None and len(set(first.speedup.tokens_per_call)) == 1


@pytest.mark.parametrize("n_runs", range(1, 19))
def test_measuring_may_end_anywhere(world: World, monkeypatch: pytest.MonkeyPatch, n_runs: int) -> None:
    """Each speed-up is over texts that plain decoding decoded in the same turn, for every configuration."""
    seconds: dict[tuple[Any, int], list[tuple[float, int]]] = {}
    clock = SimpleNamespace(now=0.0)

    def timed(target: Any, draft: Any, prompt: Any, options: Any) -> Any:
        clock.now += 1.0
        out = specdec.generate(target, draft, prompt, **options)
        key = options.get("gamma"), options["seed"][0][0]
        seconds.setdefault(key, []).append((0.5 + len(seconds) * clock.now % 7, len(out.tokens)))
        return seconds[key][-1][0], out

    monkeypatch.setattr("specdec.analysis.experiment._timed", timed)
    monkeypatch.setattr("specdec.time_limit.time", SimpleNamespace(monotonic=lambda: clock.now))
    found = specdec.recommend_draft(
        world.target, {"it": world.draft}, PROMPTS, gammas=[1, 2], n_tokens=8, repeats=3,
        seconds=n_runs - 0.5,
    )  # fmt: skip
    assert sum(map(len, seconds.values())) == max(3, n_runs)  # the first of each configuration in any case
    for row in found.comparison.rows:
        wanted = []
        for turn in range(3):
            ours, plain = seconds.get((row.gamma, turn), []), seconds.get((None, turn), [])
            if n := min(len(ours), len(plain)):
                rates = [sum(s for s, _ in part[:n]) / sum(k for _, k in part[:n]) for part in (plain, ours)]
                wanted.append(rates[0] / rates[1])
        assert row.speedup.ratios == pytest.approx(wanted) and wanted and row.verify_ratio > 0.0


def test_a_hopeless_configuration_has_one_repetition(world: World, monkeypatch: Any) -> None:
    """As in `specdec.recommend_draft`, which drops settings of less than half the speed."""
    use_speedups(monkeypatch, lambda run: Speedup((0.4 if run.gamma == 1 else 0.6,) * 3, (2.0,) * 3))
    found = specdec.recommend_draft(
        world.target, "prompt-lookup", PROMPTS[:1], gammas=[1, 2], n_tokens=3, repeats=3
    )
    assert [len(row.tokens_per_s) for row in found.comparison.rows] == [1, 3]


def test_the_best_of_several_drafts_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With made-up speed-ups, the highest of which is invalid: it exceeds the tokens per pass."""
    speeds = {("model", 1): 1.5, ("model", 2): 1.7, ("copies", 1): 3.0, ("copies", 2): 1.2}

    def speedup(run: Any) -> Speedup:
        name = "copies" if isinstance(run.draft, drafts.PromptLookup) else "model"
        return Speedup((speeds.get((name, run.gamma), 0.5),), (2.0,))

    use_speedups(monkeypatch, speedup)
    copies = drafts.PromptLookup()
    candidates = {"copies": copies, "small": world.draft}
    found = specdec.tune(world.target, candidates, PROMPTS, max_gamma=2, n_tokens=8)
    assert (found.draft, found.gamma, found.choice) == ("small", 2, world.draft)
    (other,) = found.others
    assert (other.draft, other.gamma, other.choice) == ("copies", 2, copies)
    assert other.invalid_predictions == {1: "invalid: 3.00 is above the tokens per pass, 2.00"}
    text = str(found)
    assert "small with gamma 2 is fastest" in text and text.count("★") == 1
    assert "3.00X !" in text and text.count("! measurement error") == 1
    assert [one["draft"] for one in found.to_dict()["others"]] == ["copies"]
    speeds.update(dict.fromkeys(speeds, 0.8))
    found = specdec.tune(world.target, [copies, copies], PROMPTS, max_gamma=2, n_tokens=8)
    assert found.gamma == 0 and "plain decoding is fastest" in str(found) and "★" not in str(found)
    assert {found.draft, found.others[0].draft} == {"promptlookup (0)", "promptlookup (1)"}


def test_the_layer_of_an_exit_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = []

    def speedup(run: Any) -> Speedup:
        layers.append(run.draft.layer)
        return Speedup((1.4 if (run.draft.layer, run.gamma) == (last, 2) else 1.1,), (2.0,))

    last = world.target.config["n_layer"] - 1
    use_speedups(monkeypatch, speedup)
    found = specdec.tune(world.target, drafts.EarlyExit, PROMPTS, max_gamma=3, n_tokens=8)
    assert (found.choice.layer, found.gamma, found.draft) == (last, 2, f"exit at layer {last}")
    assert set(layers) == set(range(1, last + 1))
    out = specdec.generate(world.target, found.choice, PROMPTS[0], gamma=found.gamma, max_new_tokens=8)
    assert out.tokens == specdec.generate(world.target, None, PROMPTS[0], max_new_tokens=8).tokens


def test_exits_of_a_deep_target() -> None:
    deep: Any = SimpleNamespace(config={"n_layer": 33}, path="deep")
    assert [one.layer for one in drafts.EarlyExit.exits(deep)] == [1, 7, 13, 20, 26, 32]
    flat: Any = SimpleNamespace(config={"n_layer": 1}, path="flat")
    with pytest.raises(InputError, match="flat has 1 layer; expected 2 or more"):
        drafts.EarlyExit.exits(flat)


@pytest.fixture(scope="module")
def found(world: World) -> specdec.Comparison:
    return specdec.compare(
        world.target, {"model": world.draft, "tree": DRAFTS["top-k"](world)}, PROMPTS,
        temperatures=[0.0, 1.0], n_tokens=16, repeats=2,
    )  # fmt: skip


def test_an_invalid_speed_up_has_its_reason_and_no_star(found: specdec.Comparison) -> None:
    row, tree, *others = found.rows
    honest = replace(row, speedup=Speedup((1.4, 1.5, 1.6), (2.0,) * 3))
    wrong = replace(tree, speedup=Speedup((2.1, 2.9, 3.0), (1.7,) * 3))
    slow = [replace(one, speedup=Speedup((0.8, 0.9, 1.7), (2.0,) * 3)) for one in others]
    shown = replace(found, rows=(honest, wrong, *slow))
    assert (shown.best(0.0), shown.best(1.0)) == (honest, None)
    table = shown.tables()[0]
    gammas, speeds = ([line[i] for line in table.rows] for i in (2, table.head.index("speed-up")))
    assert speeds == ["1.00X", "1.50X", "2.90X !", "1.00X", "0.90X", "0.90X"]
    assert gammas == ["0  ", "4 ★", f"{tree.gamma}  ", "0  ", "4  ", f"{tree.gamma}  "]
    assert str(shown).endswith("as long as computing one") and table.rows[1][-1] == "1.40 to 1.60"
    reason = "invalid: 2.90 is above the tokens per pass, 1.70"
    assert shown.to_dict()["rows"][1]["speedup"]["invalid"] == reason


def test_rows_without_figures(found: specdec.Comparison) -> None:
    """Prompts left out by a time limit; a draft that drafted nothing, so plain decoding is timed twice."""
    short = replace(found, rows=(replace(found.rows[0], prompts=found.rows[0].prompts[:1]), *found.rows[1:]))
    (table,) = [one for one in short.tables() if "by prompt" in one.title]
    assert table.rows[0][-1] == "–" and "–" not in table.rows[1]
    idle = replace(found.rows[0], n_drafted=0, tokens_per_call=1.0, speedup=Speedup((1.2, 1.3), (1.0, 1.0)))
    shown = replace(found, rows=(idle,))
    summary = shown.summary()
    assert summary.rows[1][summary.head.index("speed-up")] == "= plain (drafted nothing)"
    assert shown.best(0.0) is None


def test_a_narrow_terminal_has_fewer_columns(found: specdec.Comparison) -> None:
    assert str(found) == found.plain_text(None) == found.plain_text(1000)
    lines = found.summary().text(80).splitlines()
    assert max(map(len, lines[1:-1])) <= 80
    assert "speed-up" in lines[1] and "tokens per pass" in lines[1] and "t(round)" not in lines[1]
    assert "95 %, 95 %" in lines[-1]
    narrow = found.summary().text(10)  # the other columns stay
    assert all(name in narrow for name in ("draft", "gamma", "alpha", "tokens per pass", "speed-up"))


def test_drafts_may_be_names_and_are_called_by_their_last_folder(world: World) -> None:
    candidates = {"one": "prompt-lookup", "two": "lookahead:2,2"}
    found = specdec.compare(world.target, candidates, PROMPTS, temperatures=[0.0], n_tokens=6, repeats=1)
    assert found.drafts == ("one", "two")
    with pytest.raises(specdec.InputError, match="expected 'prompt-lookup', or one of"):
        specdec.compare(world.target, {"one": "prompt-lokup"}, PROMPTS)
    tuned = specdec.tune(world.target, "prompt-lookup", PROMPTS, max_gamma=1, n_tokens=6)
    assert tuned.draft == "promptlookup"
    settings = {"n_tokens": 3, "repeats": 1, "gammas": [1]}
    several = specdec.recommend_draft(
        world.target, ["prompt-lookup", "random", "prompt-lookup"], PROMPTS[:1], **settings
    )
    assert [fit.draft for fit in several.fits] == ["prompt-lookup (0)", "random", "prompt-lookup (2)"]


def test_views_are_complete(found: specdec.Comparison) -> None:
    loaded = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert loaded["rows"][0]["speedup"].keys() >= {"median", "low", "high", "ratios", "tokens_per_call"}
    assert loaded["rows"][1]["alpha"] is None and "trees" in loaded["rows"][1]["reason"]
    assert loaded["prompts"] == PROMPTS
    for text in (str(found), found._repr_html_(), found.markdown()):
        assert "tree" in text and "plain decoding" in text
    odd = replace(found, target="<t>|")
    assert "<t>" not in odd._repr_html_() and "&lt;t&gt;" in odd._repr_html_()
    assert found.markdown().startswith("**Drafts for")
    assert found["model"] == [found.rows[0], found.rows[2]] and found.temperatures == (0.0, 1.0)
    with pytest.raises(KeyError):
        found["other"]
    assert "'model', 'tree'" in repr(found)


def test_rows_as_a_data_frame(found: specdec.Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'specdec-cpu\[pandas\]'"):
        found.to_pandas()
    lines: list[Any] = []
    frames = SimpleNamespace(DataFrame=lambda rows, columns: lines.extend(rows))
    monkeypatch.setitem(sys.modules, "pandas", frames)
    found.to_pandas()
    assert lines[0]["tokens_per_call"] == found.rows[0].tokens_per_call
    assert math.isnan(lines[1]["alpha"]) and lines[1]["draft"] == "tree"
    assert lines[0]["speedup_low"] <= lines[0]["speedup"] <= lines[0]["speedup_high"]
