"""Tests of many cases in few items: each case runs once, in one tier, and failures name their case."""

from __future__ import annotations

import pytest

import conftest
from grids import covering, in_few_items

SEEN: list[tuple[str, int, bool]] = []


@in_few_items(by="word")
@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize(("word", "number"), [("a", 1), ("a", 2), ("b", 1)])
def example(word: str, number: int, flag: bool) -> None:
    SEEN.append((word, number, flag))
    assert number < 2 or not flag, "a 2 with a flag"


def test_each_case_is_in_one_item_and_one_tier() -> None:
    (mark,) = example.pytestmark
    SEEN.clear()
    errors = []
    for param in mark.args[1]:
        try:
            example(*param.values)
        except AssertionError as error:
            errors.append(str(error))
    assert len(errors) == 1
    assert "1 of" in errors[0] and "a-2-True" in errors[0] and "a 2 with a flag" in errors[0]
    wanted = [(word, n, flag) for word, n in (("a", 1), ("a", 2), ("b", 1)) for flag in (False, True)]
    assert sorted(SEEN) == sorted(wanted)

    by_default = [param for param in mark.args[1] if not param.marks]
    assert {param.id for param in by_default} == {"a", "b"}
    SEEN.clear()
    for param in by_default:
        try:
            example(*param.values)
        except AssertionError:
            pass
    for values in zip(*SEEN, strict=True):  # each value of each parameter
        assert len(set(values)) == 2


def test_cases_with_equal_labels_are_refused() -> None:
    """One of them would be dropped."""

    @pytest.mark.parametrize("value", [1, "1"])
    def alike(value: object) -> None: ...

    with pytest.raises(AssertionError, match="two cases have the labels"):
        in_few_items()(alike)


def test_covering_cases_show_everything() -> None:
    assert covering({"one": {1}, "both": {1, 2}, "other": {2, 3}}) == {"both", "other"}


@pytest.mark.grid
@pytest.mark.parametrize("pair", [(1, 2), (3, 4), [5, 6]])
@pytest.mark.parametrize("function", [min, max])
@pytest.mark.parametrize("number", [0, 1.5])
def test_a_grid(pair: tuple[int, int], function: object, number: float) -> None:
    """The example of the test below."""


def test_a_grid_is_thinned_to_cases_that_show_each_value(request: pytest.FixtureRequest) -> None:
    """Also for values that are neither numbers nor words: each occurs in several cases."""
    module = request.node.getparent(pytest.Module)
    cases = [item for item in module.collect() if getattr(item, "originalname", "") == "test_a_grid"]
    conftest.pytest_collection_modifyitems(request.config, cases)
    by_default = [item.callspec.params for item in cases if not item.get_closest_marker("slow")]
    assert len(cases) == 12 and len(by_default) == 3
    shown = [{repr(params[name]) for params in by_default} for name in ("pair", "function", "number")]
    assert [len(values) for values in shown] == [3, 2, 2]
