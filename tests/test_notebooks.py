"""The notebooks run from top to bottom, and are kept without outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.notebook
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def read(path: Path) -> Any:
    import nbformat

    return nbformat.read(path, as_version=4)


def outputs(notebook: Any, kind: str) -> list[str]:
    """The outputs of one MIME type, in order."""
    return [
        output["data"][kind]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if kind in output.get("data", {})
    ]


PICTURES = {
    "01_quickstart": 1,
    "02_why_it_is_exact": 1,
    "03_choosing_gamma": 4,
    "04_acceptance_rates": 6,
    "05_drafts": 2,
}
"""How many pictures each notebook shows."""


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(PICTURES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    import nbformat

    notebook = read(path)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.filterwarnings("default")  # what Jupyter's own packages warn of is not ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    from nbclient import NotebookClient

    notebook = read(path)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(path.parent))
    assert len(outputs(notebook, "image/png")) == PICTURES[path.stem]
    pages = "".join(outputs(notebook, "text/html"))
    if path.stem == "01_quickstart":
        assert "specdec-accepted" in pages
    if path.stem == "03_choosing_gamma":
        assert "Table 4" in pages
    if path.stem == "04_acceptance_rates":
        assert "specdec-heat" in pages
