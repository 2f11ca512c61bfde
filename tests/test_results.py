"""Results and traces as data: equality, text, figure, dicts, pickles, pandas tables."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import specdec
from hand_made_rounds import result_of, tree
from refusals import refuses
from specdec import Result, Trace, drafts
from specdec.errors import InputError, MissingPackageError
from toy_pair import ToyTokenizer
from trained import small_pair

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def runs() -> dict[str, Result]:
    target, draft = small_pair()
    bare = [specdec.Model(one.core, one.config, None, one.path, "bare") for one in (target, draft)]
    tree = drafts.ModelDraft(draft, tree=drafts.StaticTree((2, 1, 2)))
    sampled: dict[str, Any] = {"temperature": 1.0, "seed": 7}
    return {
        "greedy": specdec.generate(target, draft, PROMPT, max_new_tokens=40, seed=1),
        "plain": specdec.generate(target, None, PROMPT, max_new_tokens=40, seed=1),
        "sampled": specdec.generate(target, draft, PROMPT, max_new_tokens=200, gamma=8, **sampled),
        "tree": specdec.generate(target, tree, PROMPT, max_new_tokens=40, **sampled),
        "stopped": specdec.generate(target, draft, "It was", max_new_tokens=60, stop=[",", "."], **sampled),
        "ids": specdec.generate(*bare, [5, 6, 7], max_new_tokens=10),
    }


def through_json(value: Any) -> Any:
    """A dict written and read as JSON, by a reader that rejects NaN."""
    return json.loads(json.dumps(value, allow_nan=False))


# -------------------------------------------------------------------------------- text and picture


def test_a_result_is_its_text_and_its_figure_has_colors_if_asked(runs: dict[str, Result]) -> None:
    out = runs["greedy"]
    assert str(out) == f"{out}" == out.text
    assert str(runs["ids"]) == " ".join(map(str, runs["ids"].tokens)) and runs["ids"].text is None
    assert "\x1b[" in out.figure(color=True) and "\x1b[" not in out.figure(color=False)
    assert out.figure() == out.figure(False)  # standard output is no terminal
    with refuses("color", "red"):
        out.figure("red")  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------- equality


def test_results_are_equal_by_value(runs: dict[str, Result]) -> None:
    target, draft = small_pair()
    again = specdec.generate(target, draft, PROMPT, max_new_tokens=40, seed=1)
    other_rounds = specdec.generate(target, draft, PROMPT, max_new_tokens=40, gamma=1, seed=1)
    out = runs["greedy"]
    assert out == again == other_rounds and out.trace.rounds != other_rounds.trace.rounds
    assert hash(out) == hash(again) == hash(runs["plain"]) and len({out, again, runs["plain"]}) == 1
    assert out != runs["sampled"] and out != out.text
    changes: list[dict[str, Any]] = [
        {"text": "x"}, {"tokens": [1]}, {"finish_reason": "stop"}, {"stop": "."}, {"prompt_ids": [1]},
        {"source_ids": [1]},
    ]  # fmt: skip
    assert all(replace(out, **change) != out for change in changes)
    for copied in (copy.copy(out), copy.deepcopy(out)):
        assert copied == out and copied is not out and copied.tokenizer is out.tokenizer
    assert copy.deepcopy(out).tokens is not out.tokens
    assert replace(out, n_cached_tokens=3, seed=(2, 0), logits=np.zeros((40, 2), np.float32)) == out


# ------------------------------------------------------------------------------------ pickles, dicts


@pytest.mark.parametrize("name", ["greedy", "plain", "sampled", "tree", "stopped", "ids"])
def test_pickles_and_dicts_keep_value_figures_and_picture(runs: dict[str, Result], name: str) -> None:
    out = runs[name]
    pickled = pickle.dumps(out)
    assert len(pickled) < 20_000
    described = through_json(out.to_dict())
    for again in (pickle.loads(pickled), Result.from_dict(described)):
        assert again == out and hash(again) == hash(out)
        assert again.tokenizer is None
        assert again.trace.rounds == out.trace.rounds
        assert repr(again.trace.figures()) == repr(out.trace.figures())  # NaN too
        assert again.figure(color=True) == out.figure(color=True)
        assert again._repr_html_() == out._repr_html_()
        assert through_json(again.to_dict()) == described
        assert pickle.loads(pickle.dumps(again)).figure() == out.figure()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_keeps_value_trace_and_logits(runs: dict[str, Result], protocol: int) -> None:
    trace, logits = Trace(runs["tree"].trace.rounds, target_s=0.5, n_sequences=3), np.eye(3, dtype="f4")
    out = replace(runs["tree"], trace=trace, logits=logits)
    again = pickle.loads(pickle.dumps(out, protocol))
    assert again == out and again.trace.rounds == out.trace.rounds
    assert np.array_equal(again.logits, logits) and Result.from_dict(out.to_dict()).logits is None
    assert (again.trace.target_s, again.trace.n_sequences) == (0.5, 3)


def test_a_tokenizer_of_the_callers_own_need_not_be_pickled(runs: dict[str, Result]) -> None:
    class Local(ToyTokenizer):
        pass

    out = result_of([tree((3, 4), (0, 1), (1,), 5, (0.5, 0.25))], Local())
    assert pickle.loads(pickle.dumps(out)).figure() == out.figure()


def damaged(described: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The dict with another value at a path such as "trace.rounds.0.kept"; without the field for `...`."""
    changed = copy.deepcopy(described)
    at: Any = changed
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        at = at[part]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("specdec_result", 2), ("specdec_result", ...), ("text", 3), ("tokens", ...), ("tokens", "abc"),
        ("tokens.2", 1.5), ("tokens.0", 1), ("finish_reason", "end"), ("finish_reason", np.array([1, 2])),
        ("finish_reason", []), ("stop", 1.5), ("seed", [1]), ("seed.0", -1), ("n_cached_tokens", None),
        ("source_ids", {}), ("figure", []), ("figure.prompt", None), ("figure.rounds", []),
        ("figure.rounds.1.0", 7), ("trace", None), ("trace.specdec_trace", "1"), ("trace.n_sequences", 0),
        ("trace.prefill_s", math.nan), ("trace.target_s", "x"), ("trace.rounds.0", 3),
        ("trace.rounds.0.kept", 9), ("trace.rounds.0.parents.1", 7), ("trace.rounds.0.parents", []),
        ("trace.rounds.0.path", [2]), ("trace.rounds.0.tokens", []), ("trace.rounds.0.betas.0", None),
        ("trace.rounds.0.betas", [0.5] * 9), ("trace.rounds.0.betas.0", 1e308),
        ("trace.rounds.0.draft_s", -1.0),
    ],
)  # fmt: skip
def test_a_damaged_dict_is_refused_by_the_name_of_the_field(
    runs: dict[str, Result], path: str, value: Any
) -> None:
    described = through_json(runs["greedy"].to_dict())
    with pytest.raises(InputError) as caught:
        Result.from_dict(damaged(described, path, value))
    field = re.sub(r"\.(\d+)", r"[\1]", path)
    assert caught.value.argument in (field, field.rpartition("[")[0])


def test_texts_of_a_file_do_not_steer_the_terminal(runs: dict[str, Result]) -> None:
    """A NumPy integer as stop becomes an int."""
    out = Result.from_dict(damaged(through_json(runs["greedy"].to_dict()), "stop", np.int64(3)))
    assert type(out.stop) is int and through_json(out.to_dict())["stop"] == 3
    for path in ("figure.prompt", "figure.rounds.0.0", "figure.rounds.1.0"):
        out = Result.from_dict(damaged(through_json(runs["greedy"].to_dict()), path, "a\x1b[2J\nb"))
        assert "a\\x1b[2J⏎b" in out.figure(False) and "\x1b" not in out.figure(False)


def test_every_figure_without_a_value_is_none() -> None:
    described = Trace([]).to_dict()
    assert described["acceptance_rate"] is None and described["acceptance_interval"] == [None, None]
    assert math.isnan(Trace.from_dict(through_json(described)).acceptance_rate)
    with refuses("values", []):
        Result.from_dict([])  # type: ignore[arg-type]
    with refuses("specdec_trace"):
        Trace.from_dict({})


def test_a_given_time_of_a_step_is_kept(runs: dict[str, Result]) -> None:
    trace = runs["greedy"].trace.against(runs["plain"].trace)
    again = Trace.from_dict(through_json(trace.to_dict()))
    assert again.target_s == trace.target_s and again.predicted_speedup == trace.predicted_speedup
    assert Trace.from_dict(through_json(runs["plain"].trace.to_dict()))._target_s is None


# ------------------------------------------------------------------------------------- joined, tables


def test_joined_traces_count_every_round(runs: dict[str, Result]) -> None:
    parts = [runs[name].trace for name in ("greedy", "sampled", "stopped")]
    joined = Trace.joined(parts)
    assert joined.rounds == tuple(round_ for part in parts for round_ in part.rounds)
    for name in ("n_tokens", "n_calls", "n_drafted", "n_accepted", "n_verified"):
        assert getattr(joined, name) == sum(getattr(part, name) for part in parts)
    assert joined.total_s == pytest.approx(sum(part.total_s for part in parts))
    betas = np.concatenate([r.betas for part in parts for r in part.rounds if r.betas])
    assert joined.acceptance_rate == pytest.approx(betas.mean())
    assert math.isnan(joined.target_s)
    timed = [Trace(part.rounds, target_s=s) for part, s in zip(parts, (1.0, 2.0, 4.0), strict=True)]
    mean = np.average([1.0, 2.0, 4.0], weights=[part.n_calls for part in parts])
    assert Trace.joined(iter(timed)).target_s == pytest.approx(mean)
    for traces, named in (([], "traces"), ([runs["greedy"]], "traces[0]"), (3, "traces")):
        with refuses(named):
            Trace.joined(traces)  # type: ignore[arg-type]


@pytest.mark.oracle
def test_tables_of_pandas(runs: dict[str, Result]) -> None:
    trace = runs["sampled"].trace
    table = trace.to_pandas()
    assert len(table) == trace.n_calls and table.n_accepted.sum() == trace.n_accepted
    assert table.kept.sum() == trace.n_tokens and table.drafted[0] == list(trace.rounds[0].drafted)
    assert set(table.columns) == {"run", *trace.rounds[0].to_dict()}
    assert np.mean(np.concatenate(table.betas.tolist())) == pytest.approx(trace.acceptance_rate)

    tokens = trace.to_pandas("token")
    assert tokens.token.tolist() == runs["sampled"].tokens
    assert tokens.position.tolist() == [*range(trace.n_tokens)]
    # Each round's own token stands last, and is the only one that no draft gave.
    assert (tokens.origin != "draft").sum() == sum(r.kept == len(r.tokens) for r in trace.rounds)
    assert tokens.beta.isna().equals((tokens.origin == "bonus") | (tokens.origin == "target"))

    both = Trace.joined([trace, runs["plain"].trace]).to_pandas("token")
    assert both.groupby("run").position.count().tolist() == [trace.n_tokens, 40]
    assert list(Trace([]).to_pandas().columns) == list(table.columns)
    assert list(Trace([]).to_pandas("token").columns) == list(tokens.columns)


def test_a_table_needs_pandas_and_a_known_word(monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses("per", "run"):
        Trace([]).to_pandas("run")  # type: ignore[arg-type]
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(
        MissingPackageError, match=r"needs the package pandas, .* pip install 'specdec-cpu\[pandas\]'"
    ):
        Trace([]).to_pandas()


JUNK: list[Any] = [..., None, True, -1, 3, 1.5, math.inf, 10**400, "x", "\ud800", [], [[]], {}, {"a": 1}]


def paths_of(value: Any, path: str = "") -> list[str]:
    """Where the values of nested dicts and lists lie, as `damaged` names them; of long lists the ends."""
    found = [path] if path else []
    items = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list):
        items = [(i, value[i]) for i in sorted({0, len(value) - 1} & {*range(len(value))})]
    for name, inner in items:
        found += paths_of(inner, f"{path}.{name}" if path else str(name))
    return found


@pytest.mark.slow
def test_no_damage_makes_anything_else_than_a_result_or_a_named_error() -> None:
    target, draft = small_pair()
    tree = drafts.ModelDraft(draft, tree=drafts.StaticTree((2, 1)))
    out = specdec.generate(
        target, tree, PROMPT, max_new_tokens=9, logprobs=2, prompt_logprobs=1, temperature=1, seed=1
    )
    described, n_refused = through_json(out.to_dict()), 0
    for path in paths_of(described):
        for value in JUNK:
            try:
                again = Result.from_dict(damaged(described, path, value))
            except InputError as error:
                n_refused += 1
                assert str(error)
                continue
            assert again.figure() and again._repr_html_() and repr(again)
            json.dumps(again.to_dict(), allow_nan=False)
            hash(pickle.loads(pickle.dumps(again)))
    assert n_refused > 1000
