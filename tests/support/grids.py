"""Large products of parameters in few test items that collect quickly: one item runs many cases."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

Key = TypeVar("Key", bound=Hashable)


def covering(shows: Mapping[Key, set[Any]]) -> set[Key]:
    """Find greedily a subset of cases in which every value occurs."""
    left, chosen = dict(shows), set()
    while left:
        best = max(left, key=lambda case: len(left[case]))
        found = left.pop(best)
        chosen.add(best)
        left = {case: those for case, values in left.items() if (those := values - found)}
    return chosen


def in_few_items(
    by: str | Sequence[str] = (), slow: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a parametrized test as few items, each of which loops over its cases.

    By default as many cases run as show each value once; the others are `slow`. The decorator comes above all
    ``pytest.mark.parametrize`` of the test. When cases fail, the error names them all. Parameters in `by`
    still make items, one for each combination of their values and each tier; those of values in `slow` are
    all slow.
    """
    by, slow = [by] if isinstance(by, str) else list(by), frozenset(slow)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        marks = [mark for mark in test.pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
        cases = _cases(marks)
        names = list(next(iter(cases.values())))
        shown = covering({case: set(zip(names, case, strict=True)) for case in cases})
        items: dict[tuple[str, ...], list[str]] = {}
        for case in cases:
            part = () if case in shown else ("others",)
            labels = dict(zip(names, case, strict=True))
            items.setdefault((*(labels[name] for name in by), *part), []).append(case)

        def run(cases_of_item: list[Any], **fixtures: Any) -> None:
            failed: dict[str, Exception] = {}
            for case in cases_of_item:
                try:
                    test(**fixtures, **cases[case])
                except Exception as error:
                    failed["-".join(case)] = error
            if failed:
                first = next(iter(failed.values()))
                message = f"{len(failed)} of {len(cases_of_item)} cases fail: {', '.join(failed)}; the first:"
                raise AssertionError(f"{message} {first}") from first

        kept = [entry for name, entry in inspect.signature(test).parameters.items() if name not in names]
        own = inspect.Parameter("cases_of_item", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = inspect.Signature([own, *kept])  # type: ignore[attr-defined]
        run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
        run.__module__ = test.__module__
        run.pytestmark = [mark for mark in test.pytestmark if mark.name != "parametrize"]  # type: ignore[attr-defined]
        params = [
            pytest.param(
                found,
                id="-".join(key),
                marks=[pytest.mark.slow] if key[-1:] == ("others",) or not slow.isdisjoint(key) else [],
            )
            for key, found in items.items()
        ]
        return pytest.mark.parametrize("cases_of_item", params)(run)

    return decorate


def _cases(marks: Sequence[pytest.Mark]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Every combination of the values of ``pytest.mark.parametrize``, as values by label."""
    parts: list[list[list[tuple[str, str, Any]]]] = []
    for mark in marks:
        names, values = mark.args
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        ids = list(mark.kwargs.get("ids") or [])
        rows = [value if len(names) > 1 else (value,) for value in values]
        labels = [
            [ids[index]] if ids else [_label(*pair, index) for pair in zip(names, row, strict=True)]
            for index, row in enumerate(rows)
        ]
        parts.append(
            [list(zip(names, label, row, strict=True)) for label, row in zip(labels, rows, strict=True)]
        )
    found = {}
    for combination in itertools.product(*parts):
        entries = [entry for part in combination for entry in part]
        key = tuple(label for _, label, _ in entries)
        assert key not in found, f"two cases have the labels {key}"
        found[key] = {name: value for name, _, value in entries}
    return found


def _label(name: str, value: Any, index: int) -> str:
    return str(value) if isinstance(value, str | int | float | None) else f"{name}{index}"
