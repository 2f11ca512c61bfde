"""Features that a machine may lack: the only accepted reasons to skip a test.

`pytest --strict-skips`, which `.ci/run` uses, counts every other skip as a failure.
"""

from __future__ import annotations

SHARED = "needs the trained models and texts of SPECDEC_SHARED (CONTRIBUTING.md), which are not there"
BUNDLED_OPENBLAS = "needs the bundled OpenBLAS, and this build uses the system's"
PYTHON_3_11 = "needs Python 3.11, as Inspect AI does"
HOOKS = "needs the hooks of a build with -C cmake.define.SPECDEC_TESTING=ON (make test, .ci/run)"

REASONS = {
    SHARED, BUNDLED_OPENBLAS, PYTHON_3_11, HOOKS, "needs Linux", "needs fork", "needs x86-64",
    "needs nm (binutils)", "needs git", "needs Chromium",
    "needs the module _testcapi, which makes allocations fail and which this Python was built without",
}  # fmt: skip
