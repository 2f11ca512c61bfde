"""Run the notebooks and store their outputs, as small as they can be; `make notebooks` does it.

Run it on an idle machine: some cells measure times. These have the tag `times`; the tests compare the outputs
of all other cells with what is stored.
"""

from __future__ import annotations

import base64
import io
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

import specdec

# Prompts in rows, as the tests run them: AMX would compute them in another order.
os.environ["SPECDEC_KERNELS"] = next(name for name in specdec.available_kernels() if name != "amx")
FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
N_COLORS = 64  # of a picture: its size falls to a third, and no line looks different
CONTROLS = "application/vnd.jupyter.widget-view+json"  # of a kernel that is gone


def main(names: list[str]) -> None:
    """Refresh the notebooks whose names begin so; all by default."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.name.startswith(tuple(names)):
            before = nbformat.read(path, as_version=4)
            notebook = nbformat.read(path, as_version=4)
            client = NotebookClient(
                notebook, timeout=600, kernel_name="python3", record_timing=False, coalesce_streams=True
            )
            client.execute(cwd=str(FOLDER))
            notebook.metadata = before.metadata  # without the version of this Python
            for cell in notebook.cells:
                for output in cell.get("outputs", []):
                    make_small(output.get("data", {}))
            nbformat.write(notebook, path)
            print(f"{path.name}: {path.stat().st_size / 1024:.0f} KB")


def make_small(data: Any) -> None:
    """Store the picture of an output with few colors and no metadata, and without controls."""
    data.pop(CONTROLS, None)
    if "image/png" in data:
        picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).convert("RGB")
        file = io.BytesIO()
        # The median cut would merge the colors of thin lines, for most of a picture is grey.
        few = picture.quantize(N_COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(file, "png", optimize=True)
        data["image/png"] = base64.b64encode(file.getvalue()).decode("ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
