"""Fixtures of several test files, and the selection of the suite's tiers (CONTRIBUTING.md)."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import missing
from grids import covering
from worlds.canonical import HAS_HOOKS
from worlds.folders import gpt2_config, llama_config, mistral_config, write_hf

# Programs that tests start import what tests import.
_HERE = Path(__file__).resolve().parent
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(_HERE / "support"), str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# Models are loaded without measuring thresholds, and without the files of the user's cache.
os.environ.setdefault("SPECDEC_THRESHOLDS", "off")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads for tiny models wait more than they compute

_SHARED = Path(os.environ.get("SPECDEC_SHARED") or _HERE.parents[1] / "shared")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of trained models, texts and tokenizers next to the repository; skips the test without it."""
    if not _SHARED.is_dir():
        pytest.skip(missing.SHARED)
    return _SHARED


# ------------------------------------------------------------------------------------------- tiers


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strict-skips", action="store_true", help="a skip is a failure, unless the machine lacks something"
    )
    parser.addoption(
        "--hooked",
        metavar="FILE",
        type=Path,
        help="ids of tests that need hooks: a build without hooks writes what it skips, others mark these",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Run tests named on the command line in any tier."""
    is_default = config.option.markexpr in config.getini("addopts")
    if is_default and any("::" in argument for argument in config.args):
        config.option.markexpr = ""
    if config.option.hooked and not HAS_HOOKS and not hasattr(config, "workerinput"):
        config.option.hooked.write_text("")
        config.pluginmanager.register(_SkippedIds(config.option.hooked))


class _SkippedIds:
    """Append the id of each test that is skipped because the build has no hooks to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and missing.HOOKS in str(report.longrepr):
            with self._path.open("a") as file:
                print(report.nodeid, file=file)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Use one process for a part of the suite, which takes less time than starting several, and for `-s`."""
    is_part = any("::" in argument or argument.endswith(".py") for argument in config.args)
    option = config.option
    return 0 if is_part or option.keyword or option.capture == "no" or option.collectonly else None


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as `slow` the cases of a grid whose values all occur in other cases; mark those of --hooked."""
    grids: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("grid"):
            grids.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in grids.values():
        mark = cases[0].get_closest_marker("grid")
        shown = _covering(cases, *(mark.args if mark else ()))
        for item in cases:
            if item not in shown:
                item.add_marker(pytest.mark.slow)
    if config.option.hooked and HAS_HOOKS:
        ids = set(config.option.hooked.read_text().splitlines())
        for item in items:
            if item.nodeid in ids:
                item.add_marker(pytest.mark.hooked)


def _covering(cases: Iterable[pytest.Function], strength: int = 1) -> set[pytest.Function]:
    """Return cases that contain each combination of `strength` values of different parameters."""
    return covering({item: set(combinations(_values(item), strength)) for item in cases})


def _values(item: pytest.Function) -> list[tuple[str, object]]:
    """Return a case's parameters by name: plain values, or identities of objects, which cases share."""
    return [
        (name, value if isinstance(value, str | int | float | None) else id(value))
        for name, value in sorted(item.callspec.params.items())
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """With `--strict-skips`, fail a test that is skipped though the machine lacks nothing."""
    report: pytest.TestReport = yield
    if item.config.option.strict_skips and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason not in missing.REASONS:
            report.outcome = "failed"
            report.longrepr = f"skipped for a reason that tests/support/missing.py does not have: {reason}"
    return report


def pytest_collection_finish() -> None:
    """Freeze objects made so far, so that `gc.collect`, which many tests call, skips them."""
    gc.collect()
    gc.freeze()


# ----------------------------------------------------------------------------------------- fixtures


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(target, draft): two small models, of which one often agrees with the other, and a toy tokenizer."""
    from toy_pair import load_pair

    return load_pair(tmp_path_factory.mktemp("pair"), amount=0.05)


@pytest.fixture(scope="session")
def target(pair: Any) -> Any:
    """The first model of `pair`, for modules without a target of their own."""
    return pair[0]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The bundled small draft as target, its first layer as draft, and a text (drafters.World)."""
    from drafters import small_world

    return small_world(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread by default: test models are too small to gain from two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECDEC_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session")
def chatting_pair() -> Any:
    """(target, draft): the small pair, with a chat template that supports tools."""
    from chat_templates import chatting_pair

    return chatting_pair()


@pytest.fixture(scope="module")
def quick_gc() -> Iterator[None]:
    """Freeze existing objects, so that `gc.collect` takes milliseconds instead of half a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def quick_timing() -> Iterator[None]:
    """Let `measure`, `tune` and `oracle` time runs for a fifth of a second; tests need no precise times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specdec.analysis.prediction._ENOUGH_S", 0.2)
        yield


Factory = Callable[..., Path]


@pytest.fixture
def make_llama(tmp_path: Path) -> Factory:
    """``make_llama(name="llama", seed=0, dtype="F32", n_shards=1, **config)``: a random Llama folder."""
    return _factory(tmp_path, "llama", llama_config)


@pytest.fixture
def make_mistral(tmp_path: Path) -> Factory:
    """Like ``make_llama``, for Mistral."""
    return _factory(tmp_path, "mistral", mistral_config)


@pytest.fixture
def make_gpt2(tmp_path: Path) -> Factory:
    """Like ``make_llama``, for GPT-2."""
    return _factory(tmp_path, "gpt2", gpt2_config)


def _factory(tmp_path: Path, family: str, config: Callable[..., dict[str, Any]]) -> Factory:
    def make(
        name: str = family,
        *,
        seed: int = 0,
        dtype: str = "F32",
        n_shards: int = 1,
        tensors: Any = None,
        **changes: Any,
    ) -> Path:
        return write_hf(
            tmp_path / name, config(**changes), tensors, dtype=dtype, n_shards=n_shards, seed=seed
        )

    return make
