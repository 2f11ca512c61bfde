"""The notebooks run from start to end and match their stored outputs; the README's picture is drawn."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import specdec

pytestmark = pytest.mark.notebook
ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def read(path: Path) -> Any:
    import nbformat

    return nbformat.read(path, as_version=4)


def outputs(notebook: Any, mime_type: str) -> list[str]:
    """The outputs of one MIME type, in order."""
    return [
        output["data"][mime_type]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if mime_type in output.get("data", {})
    ]


PICTURES = {
    "01_quickstart": 1, "02_why_it_is_exact": 1, "03_choosing_gamma": 4, "04_acceptance_rates": 6,
    "05_drafts": 5, "06_translation": 1, "07_evaluation": 2, "08_learning": 2,
}  # fmt: skip
"""How many pictures each notebook shows."""


MAX_BYTES = 300_000
OF_A_MACHINE = re.compile(r"/(?:home|root|tmp|work|usr|Users)/|site-packages|ipykernel_\d|0x[0-9a-f]{6,}")
"""Patterns that stored outputs must not contain: paths and addresses."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_with_its_outputs(path: Path) -> None:
    """`make notebooks` stores them, so that pages which show notebooks show their figures."""
    import nbformat

    assert [one.stem for one in NOTEBOOKS] == list(PICTURES)
    notebook = read(path)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(output.output_type != "error" for cell in code for output in cell.outputs)
    assert all(output.get("name") != "stderr" for cell in code for output in cell.outputs)
    assert len(outputs(notebook, "image/png")) == PICTURES[path.stem]
    assert path.stat().st_size < MAX_BYTES
    assert OF_A_MACHINE.findall("".join(map(str, (texts(cell) for cell in code)))) == []
    assert notebook.metadata.language_info == {"name": "python"}  # without a version


NOT_COMPARED = ("image/png", "application/vnd.jupyter.widget-view+json")
"""MIME types of outputs that differ between runs: pictures, and controls, which are not stored."""


def texts(cell: Any) -> list[str]:
    """Text output of a cell, without pictures and controls."""
    return [
        output.get("text")
        or str(sorted(entry for entry in output.data.items() if entry[0] not in NOT_COMPARED))
        for output in cell.outputs
    ]


QUICK_TIMING = "from specdec.analysis import prediction as _timing; _timing._ENOUGH_S = 0.2"
"""A cell before all others, as the fixture `quick_timing` in tests."""


@pytest.mark.filterwarnings("default")  # warnings of Jupyter's own packages are ignored
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored outputs equal today's, except in cells with the tag `times`."""
    portable = next(name for name in specdec.available_kernels() if name != "amx")  # prompts in rows
    monkeypatch.setenv("SPECDEC_KERNELS", portable)
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell

    stored, notebook = read(path), read(path)
    notebook.cells.insert(0, new_code_cell(QUICK_TIMING))
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", coalesce_streams=True)
    client.execute(cwd=str(path.parent))
    notebook.cells.pop(0)
    assert len(outputs(notebook, "image/png")) == PICTURES[path.stem]
    for before, cell in zip(stored.cells, notebook.cells, strict=True):
        if cell.cell_type == "code" and "times" not in cell.metadata.get("tags", []):
            assert texts(cell) == texts(before), f"cell {cell.id}: run `make notebooks`"
    pages = "".join(outputs(notebook, "text/html"))
    if path.stem == "01_quickstart":
        assert "specdec-accepted" in pages
    if path.stem == "03_choosing_gamma":
        assert "Table 4" in pages
    if path.stem == "04_acceptance_rates":
        assert "specdec-heat" in pages


def test_the_readmes_picture_is_of_today(tmp_path: Path) -> None:
    """Only the run that it shows: the drawing of fonts depends on matplotlib's version."""
    import numpy as np
    from PIL import Image

    stored, drawn = ROOT / "docs" / "run.png", tmp_path / "run.png"
    assert stored.stat().st_size < 150_000
    subprocess.run([sys.executable, ROOT / "docs" / "figures.py", drawn], check=True, capture_output=True)
    one, two = (np.asarray(Image.open(path).convert("RGB"), dtype=float) for path in (stored, drawn))
    assert one.shape == two.shape
    assert np.abs(one - two).mean() < 1.0
