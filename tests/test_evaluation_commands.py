"""The commands of docs/EVALUATION.md, run as they are printed on the files that stand beside them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import missing

pytestmark = pytest.mark.oracle

PAGE = (Path(__file__).parents[1] / "docs" / "EVALUATION.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.replace("\\\n", " ").splitlines()
]
HARNESS = [command for command in COMMANDS if command.startswith("python ")]
INSPECT = [command for command in COMMANDS if command.startswith("inspect ")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(command: str, folder: Path) -> str:
    """What a command prints; its program is that of this Python."""
    words = shlex.split(command)
    programs = {
        "python": [],
        "specdec": ["-m", "specdec"],
        "inspect": ["-c", "from inspect_ai._cli.main import main; main()"],
    }
    settings = {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *programs[words[0]], *words[1:]],
        cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_has_commands() -> None:
    assert len(HARNESS) == 2 and len(INSPECT) == 1 and len(COMMANDS) == 3


def test_lm_evaluation_harness(folder: Path) -> None:
    scores: list[dict[str, Any]] = []
    reports: list[dict[str, Any]] = []
    for command in HARNESS:
        printed = run(command, folder)
        assert "|endings|" in printed and "|sequels|" in printed
        (path,) = set((folder / "results").rglob("results_*.json")) - {Path(one["path"]) for one in reports}
        found = json.loads(path.read_text(encoding="utf-8"))
        reports.append({**found["config"]["specdec"], "path": path})
        scores.append(found["results"])
    assert scores[0] == scores[1] and scores[0]["sequels"]["chrf,none"] > 0
    assert [report["draft"] for report in reports] == ["embedded", None]
    assert reports[0]["tasks"]["sequels"]["n_accepted"] == reports[0]["n_accepted"] > 0
    assert reports[0]["n_texts"] == 3 and reports[0]["tokens_per_call"] > reports[1]["tokens_per_call"] == 1


def test_the_verb_eval(folder: Path) -> None:
    """The command of the page for the harness, with options in place of --model_args."""
    before = (
        "python -m specdec.integrations.lm_eval --model specdec --model_args target=embedded,draft=embedded"
    )
    assert HARNESS[0].startswith(f"{before},gamma=auto ")
    rest = HARNESS[0].removeprefix(f"{before},gamma=auto ")
    printed = run(f"specdec eval --draft lookahead:2,2 --gamma auto {rest} --limit 1", folder)
    assert "|endings|" in printed and "|sequels|" in printed
    (path,) = (folder / "results").rglob("results_*.json")
    report = json.loads(path.read_text(encoding="utf-8"))["config"]["specdec"]
    assert (report["target"], report["draft"], report["n_texts"]) == ("embedded", "lookahead:2,2", 1)


@pytest.mark.skipif(sys.version_info < (3, 11), reason=missing.PYTHON_3_11)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inspect(folder: Path) -> None:
    for command in INSPECT:
        run(command, folder)
    from inspect_ai.log import read_eval_log

    (path,) = (folder / "logs").glob("*.eval")
    log = read_eval_log(str(path))
    assert log.status == "success" and log.results is not None and log.samples is not None
    assert log.results.scores[0].metrics["accuracy"].value in (0.0, 0.5, 1.0)
    for sample in log.samples:
        assert sample.output.metadata is not None
        assert sample.output.metadata["specdec"]["tokens_per_call"] > 1
        assert sample.output.usage is not None and sample.output.usage.output_tokens == 40
