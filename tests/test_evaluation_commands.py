"""The commands of docs/EVALUATION.md for evaluation harnesses, run as printed with the files of the page."""

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
HARNESS = [command for command in COMMANDS if command.startswith("python -m specdec")]
INSPECT = [command for command in COMMANDS if command.startswith("inspect ")]


def write_files(folder: Path) -> Path:
    """Write the page's files to a folder."""
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def run(program: list[str], folder: Path) -> str:
    """Run a program of this Python; return its output."""
    settings = {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *program],
        cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


ONE_AFTER_THE_OTHER = """
import json, runpy, sys
for module, *arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise
    print("NEXT")
"""
"""Each command as `python -m` runs it, but in one process: the harness takes long to import."""

OF_THE_PAGE = (
    "python -m specdec.integrations.lm_eval --model specdec --model_args target=embedded,draft=embedded"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, dict[str, Any]]]:
    """(printed output, written results) of the harness's commands and of `specdec eval`."""
    folder = write_files(tmp_path_factory.mktemp("harness"))
    assert HARNESS[0].startswith(f"{OF_THE_PAGE},gamma=auto ")
    rest = HARNESS[0].removeprefix(f"{OF_THE_PAGE},gamma=auto ")
    verb = f"python -m specdec eval --draft lookahead:2,2 --gamma auto {rest} --limit 1"
    commands = [shlex.split(command.removeprefix("python -m ")) for command in (*HARNESS, verb)]
    printed = run(["-c", ONE_AFTER_THE_OTHER, json.dumps(commands)], folder).split("NEXT\n")
    paths = sorted((folder / "results").rglob("results_*.json"), key=lambda path: path.stat().st_mtime_ns)
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    assert printed.pop() == ""
    return list(zip(printed, found, strict=True))


def test_lm_evaluation_harness(runs: list[tuple[str, dict[str, Any]]]) -> None:
    assert (len(HARNESS), len(INSPECT), len(COMMANDS), len(runs)) == (2, 1, 5, 3)
    for printed, _ in runs:
        assert "|endings|" in printed and "|sequels|" in printed
    scores = [found["results"] for _, found in runs]
    reports = [found["config"]["specdec"] for _, found in runs]
    assert scores[0] == scores[1] and scores[0]["sequels"]["chrf,none"] > 0
    assert [report["draft"] for report in reports[:2]] == ["embedded", None]
    assert reports[0]["tasks"]["sequels"]["n_accepted"] == reports[0]["n_accepted"] > 0
    assert reports[0]["n_texts"] == 3 and reports[0]["tokens_per_call"] > reports[1]["tokens_per_call"] == 1


def test_the_verb_eval(runs: list[tuple[str, dict[str, Any]]]) -> None:
    """The command of the page for the harness, with options in place of --model_args."""
    report = runs[2][1]["config"]["specdec"]
    assert (report["target"], report["draft"], report["n_texts"]) == ("embedded", "lookahead:2,2", 1)


@pytest.mark.skipif(sys.version_info < (3, 11), reason=missing.PYTHON_3_11)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inspect(tmp_path: Path) -> None:
    folder = write_files(tmp_path)
    for command in INSPECT:
        _, *arguments = shlex.split(command)
        run(["-c", "from inspect_ai._cli.main import main; main()", *arguments], folder)
    from inspect_ai.log import read_eval_log

    (path,) = (folder / "logs").glob("*.eval")
    log = read_eval_log(str(path))
    assert log.status == "success" and log.results is not None and log.samples is not None
    assert log.results.scores[0].metrics["accuracy"].value in (0.0, 0.5, 1.0)
    for sample in log.samples:
        assert sample.output.metadata is not None
        assert sample.output.metadata["specdec"]["tokens_per_call"] > 1
        assert sample.output.usage is not None and sample.output.usage.output_tokens == 40
