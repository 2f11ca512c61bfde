"""Print what CMake needs to know of scipy-openblas32, one item a line.

Version, include folder, library, licence text; then the other shared libraries that lie beside it
(libgfortran and libquadmath on platforms where they are not linked in), if any.
"""

import importlib.metadata
from pathlib import Path

import scipy_openblas32 as package

distribution = importlib.metadata.distribution("scipy-openblas32")
library = Path(package.get_lib_dir()) / package.get_library(fullname=True)
if not library.is_file():
    raise SystemExit(f"{library}: no such file")
licences = [str(f.locate()) for f in distribution.files or () if f.name == "LICENSE.txt"]
if not licences:
    raise SystemExit("scipy-openblas32: no LICENSE.txt among its files")
companions = sorted(
    str(path)
    for path in library.parent.iterdir()
    if path != library and (".so" in path.suffixes or path.suffix == ".dylib")
)
print(distribution.version, package.get_include_dir(), library, licences[0], *companions, sep="\n")
