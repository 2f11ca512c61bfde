"""Random configurations, damaged files and damaged requests: a bounded run of all that `make fuzz` draws.

tests/fuzz/README.md lists the properties checked.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings

import specdec
from fuzz import http_requests
from fuzz.cases import CASES, cases, damaged_files
from fuzz.files import FILE_FORMATS
from fuzz.http_requests import requests
from fuzz.running import Case, Failure, check
from fuzz.settings import distribution_after, hangs_on_rounding

TESTS = Path(__file__).parent

SHARES = {"decoding": 10, "written": 1, "distribution": 3, "beams": 1, "engine": 1, "file": 16}
"""Number of examples of each property; damaged requests are counted separately."""

LONG = int(os.environ.get("FUZZ_EXAMPLES", "0"))
"""Examples of `make fuzz`; 0: the bounded run of the suite, the same each time."""

EXAMPLES = LONG or 12 * sum(SHARES.values())
FALSE_ALARM = 1e-3
"""False alarm rate of a whole run's distribution tests: each test has a share (Bonferroni)."""

settings.register_profile(
    "fuzz", deadline=None, suppress_health_check=list(HealthCheck), print_blob=True, derandomize=not LONG,
    database=settings.default.database if LONG else None,
)  # fmt: skip


def bounded(what: str, part: int = 1) -> Any:
    """Settings of a property: its share of the examples, divided among its parts."""
    n_examples = max(1, EXAMPLES * SHARES[what] // sum(SHARES.values()) // part)
    return settings(settings.get_profile("fuzz"), max_examples=n_examples)


def of_part(part: int, config: pytest.Config) -> Any:
    """Return a decorator: with a given seed, each part has a seed of its own."""
    given_seed = config.getoption("--hypothesis-seed")
    return seed(f"{given_seed}, part {part}") if LONG and given_seed else lambda run: run


PARTS = [(what, part) for what in CASES for part in range(SHARES[what] if LONG else 1)]
"""In a long run the processes share the parts."""


@pytest.mark.slow
@pytest.mark.parametrize(("what", "part"), PARTS)
def test_no_difference_no_hang_no_unnamed_exception(
    what: str, part: int, pytestconfig: pytest.Config
) -> None:
    alarm = FALSE_ALARM / max(1, EXAMPLES * SHARES[what] // sum(SHARES.values()))

    @of_part(part, pytestconfig)
    @bounded(what, SHARES[what] if LONG else 1)
    @given(case=cases(what, alarm))
    def run(case: Case) -> None:
        check(case)

    run()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SHARES["file"] if LONG else 1))
def test_damaged_files_decode_or_are_refused_by_name(part: int, pytestconfig: pytest.Config) -> None:
    @of_part(part, pytestconfig)
    @bounded("file", SHARES["file"] if LONG else 1)
    @given(case=damaged_files())
    def run(case: Case) -> None:
        check(case)

    run()


def test_damaged_requests_are_answered_or_refused_by_name() -> None:
    """In the end the server gives the same answer as at the start, holds no text, and is not much larger."""
    with http_requests.served() as server:

        @settings(settings.get_profile("fuzz"), max_examples=LONG or 120)
        @given(request=requests())
        def run(request: dict[str, Any]) -> None:
            server.ask(request)

        run()
    assert server.statuses[200] > 3 and server.statuses[400] > 40 and server.statuses[0] > 3


# ------------------------------------------------------------------------------- the fuzzer can fail


def test_sound_files_are_read() -> None:
    for kind in FILE_FORMATS:
        assert check({"check": "file", "kind": kind, "mutations": []}) == "passed", kind


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "left"), [("os.abort()", True), ("time.sleep(9)", True), ("1 / 0", False)])
def test_a_process_that_dies_or_hangs_leaves_its_case(fault: str, left: bool, tmp_path: Path) -> None:
    """As a script that fails with a broken package, and passes with a sound one."""
    case = {"check": "beams", "target": {}, "models": {}, "draft": "target", "prompt": [1], "settings": {
        "width": 1, "max_new_tokens": 2, "gamma": 1,
    }}  # fmt: skip
    (tmp_path / "broken.py").write_text(
        "import os, time\nfrom fuzz import decoding, running\n\n\ndef broken(case):\n"
        f"    {fault}\n\n\ndecoding.check_beams = broken\nrunning.check({case!r})\n"
    )
    environment = os.environ | {"FUZZ_LEFT": str(tmp_path), "FUZZ_SECONDS": "1"}
    command = [sys.executable, str(tmp_path / "broken.py")]
    assert subprocess.run(command, cwd=TESTS, env=environment, capture_output=True).returncode != 0
    scripts = list(tmp_path.glob("fuzz-*.py"))
    assert len(scripts) == left
    for script in scripts:
        again = subprocess.run([sys.executable, str(script)], cwd=TESTS, capture_output=True, text=True)
        assert again.stdout == "passed\n", again.stderr


def test_forgotten_adapters_are_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "check": "decoding", "target": {"spread": 0.6}, "models": {}, "draft": {"kind": "random"},
        "prompts": [[3, 4]] * 2, "settings": {"logits": True, "max_new_tokens": 3}, "adapters": [None, {}],
    }  # fmt: skip
    assert check(texts) == "passed"
    monkeypatch.setattr("specdec.decoding.request.adapted_models", lambda *_, **__: None)
    with pytest.raises(Failure, match="logprobs are not those"):
        check(texts)


@pytest.mark.slow
def test_a_wrong_distribution_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a reference at another temperature."""
    from fuzz import distributions

    case = {
        "check": "distribution", "target": {"n_vocab": 4, "n_ctx": 24}, "models": {}, "prompt": [1],
        "length": 2, "draft": {"kind": "random"}, "settings": {"temperature": 1.0, "seed": 3}, "alarm": 1e-3,
    }  # fmt: skip
    assert check(case) == "passed"
    monkeypatch.setattr(
        distributions, "distribution_after",
        lambda how, *rest: distribution_after(how | {"temperature": 1.2}, *rest),
    )  # fmt: skip
    with pytest.raises(Failure, match="distribution"):
        check(case)


def test_a_cut_between_tokens_that_rounding_swaps_is_noticed() -> None:
    """Two tokens a last bit apart are equal for the core, which keeps the lower id, not for the reference."""
    near = np.array([-3.0, 2e-3, np.nextafter(np.float32(2e-3), np.float32(1.0)), -1.0], np.float32)
    apart = np.array([-3.0, 2e-3, 2.1e-3, 2e-3], np.float32)
    for cut in ({"top_k": 1}, {"top_p": 0.4}):
        how = {"temperature": 1.0, **cut}
        assert hangs_on_rounding(how, near, [0], 1) and not hangs_on_rounding(how, apart, [0], 1), cut
        found = [specdec.distribution(near, **how), distribution_after(how, near, [0], 1)]
        assert [each.argmax() for each in found] == [1, 2]
    assert hangs_on_rounding({"temperature": 1.0, "min_p": 1.0}, near, [0], 1)
    for how in ({"temperature": 1.0, "top_k": 2}, {"temperature": 1.0}, {"top_k": 1}):
        assert not hangs_on_rounding(how, near, [0], 1), how
    equal = np.array([1.0, 2.0, 2.0], np.float32)
    assert not hangs_on_rounding({"temperature": 1.0, "top_k": 1}, equal, [0], 1)
