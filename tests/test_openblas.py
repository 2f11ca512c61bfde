"""OpenBLAS in the core: its products, its bits, and its isolation from other copies."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import missing
from allocations import needs_hooks
from processes import fork_script, printed
from specdec import MissingLibraryError, _core

LIBRARY = Path(_core.__file__).with_name("libspecdec_openblas.so")

bundled = pytest.mark.skipif(not LIBRARY.exists(), reason=missing.BUNDLED_OPENBLAS)
ROWS_OF_A_SLICE = 256

Array = NDArray[np.float32]


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def run_script(script: str, **environment: str) -> list[str]:
    """Run a program; return its output by lines."""
    with pytest.MonkeyPatch.context() as patch:
        for key in [key for key in os.environ if key.startswith("OPENBLAS_")]:
            patch.delenv(key)
        return printed(script, **environment).splitlines()


# ---------------------------------------------------------------------------------------- products


@pytest.mark.parametrize("n_rows", [1, 2, 16, 33, 512, 513, 1100])
@pytest.mark.parametrize(("n_in", "n_out"), [(1, 1), (64, 257), (300, 1000), (1031, 64)])
def test_products_are_right(n_rows: int, n_in: int, n_out: int) -> None:
    x, weights = numbers(1, n_rows, n_in), numbers(2, n_out, n_in)
    exact = x.astype(np.float64) @ weights.T.astype(np.float64)
    size = np.abs(x).astype(np.float64) @ np.abs(weights).T.astype(np.float64)
    found = _core.product(x, weights, "f32", engine="blas")
    assert found.shape == (n_rows, n_out)
    assert (np.abs(found - exact) <= 2.0**-24 * (n_in + 1) * size).all()


@pytest.mark.parametrize(("n_rows", "n_in", "n_out"), [(1, 96, 512), (100, 300, 200), (1100, 64, 2100)])
def test_threads_change_no_bit(n_rows: int, n_in: int, n_out: int) -> None:
    x, weights = numbers(3, n_rows, n_in), numbers(4, n_out, n_in)
    one = _core.product(x, weights, "f32", engine="blas")
    for n_threads in (2, 3, 7, 16):
        again = _core.product(x, weights, "f32", engine="blas", n_threads=n_threads)
        assert np.array_equal(one, again)


def test_slices_of_rows_are_independent() -> None:
    x, weights = numbers(5, 2 * ROWS_OF_A_SLICE + 77, 200), numbers(6, 300, 200)
    whole = _core.product(x, weights, "f32", engine="blas", n_threads=2)
    for first in range(0, len(x), ROWS_OF_A_SLICE):
        part = np.ascontiguousarray(x[first : first + ROWS_OF_A_SLICE])
        assert np.array_equal(
            whole[first : first + ROWS_OF_A_SLICE], _core.product(part, weights, "f32", engine="blas")
        )


def test_rows_of_a_slice_do_not_mix() -> None:
    """The contents of other rows change no bit of a row."""
    x, weights = numbers(7, 90, 256), numbers(8, 320, 256)
    before = _core.product(x, weights, "f32", engine="blas")
    x[:40] = numbers(9, 40, 256) * 1e3
    assert np.array_equal(before[40:], _core.product(x, weights, "f32", engine="blas")[40:])


def test_what_the_engine_lacks_is_refused() -> None:
    x = numbers(0, 2, 32)
    with pytest.raises(ValueError, match="dtype is 'int8', expected 'f32' for the engine 'blas'"):
        _core.product(x, x, "int8", engine="blas")
    with pytest.raises(ValueError, match='engine is "mkl", expected "rows", "tiles" or "blas"'):
        _core.product(x, x, "f32", engine="mkl")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n_threads"):
        _core.product(x, x, "f32", engine="blas", n_threads=0)


# ------------------------------------------------------------------------------------- the library

SAY = "from specdec import _core; print(_core.openblas())"


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_it_is_loaded_when_it_is_first_needed() -> None:
    script = """
import specdec
from specdec import _core
def is_loaded():
    return "libspecdec_openblas" in open("/proc/self/maps").read()
print(is_loaded())
_core.openblas()
print(is_loaded())
"""
    assert run_script(script) == ["False", str(LIBRARY.exists())]


@bundled
def test_it_is_our_own() -> None:
    """No other library has its soname or symbols, and its license is next to it."""
    script = f"""
import ctypes
library = ctypes.CDLL({str(LIBRARY)!r})
names = ["cblas_sgemm", "sgemm_", "openblas_set_num_threads"]
print([hasattr(library, prefix + name) for name in names for prefix in ("specdec_", "scipy_", "")])
"""
    assert run_script(script, OPENBLAS_NUM_THREADS="1") == [str([True, False, False] * 3)]
    assert b"\0libspecdec_openblas.so\0" in LIBRARY.read_bytes()
    text = LIBRARY.with_name("libspecdec_openblas.LICENSE.txt").read_text(encoding="utf-8")
    assert "The OpenBLAS Project" in text
    assert "GCC RUNTIME LIBRARY EXCEPTION" in text.upper()


WITH_OTHER_COPIES = """
import ctypes, glob, os, sys
import numpy as np
import scipy.linalg

def libraries():
    for package in (np, scipy):
        folder = os.path.dirname(os.path.dirname(package.__file__))
        for path in glob.glob(f"{folder}/{package.__name__}.libs/libscipy_openblas*.so"):
            yield ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)  # its functions come before others of their name

def function(library, name):
    return getattr(library, f"scipy_openblas_{name}", None) or getattr(library, f"scipy_openblas_{name}64_")

others = list(libraries())
for other in others:
    function(other, "set_num_threads")(2)
def state():
    return [function(other, "get_num_threads")() for other in others]

libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
def environment():
    names = [b"OPENBLAS_NUM_THREADS", b"OPENBLAS_CORETYPE", b"HOME"]
    return [libc.getenv(name) for name in names], dict(os.environ)

x = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
before = state(), environment(), len(os.listdir("/proc/self/task"))
theirs = x @ x.T
from specdec import _core
ours = _core.product(x, x, "f32", engine="blas")
assert (state(), environment(), len(os.listdir("/proc/self/task"))) == before
assert np.array_equal(x @ x.T, theirs)
assert np.allclose(ours, theirs, rtol=1e-3, atol=1e-3)
print(len(others))
"""


@bundled
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_others_do_not_notice_it() -> None:
    """NumPy's and SciPy's copies keep threads and results; the process keeps its environment and threads."""
    (n_others,) = run_script(WITH_OTHER_COPIES)
    assert int(n_others) >= 1


@bundled
@pytest.mark.parametrize("name", ["Haswell", "Sandybridge"])
def test_the_kernels_can_be_chosen(name: str) -> None:
    if "x86" not in os.uname().machine:
        pytest.skip("needs x86-64")
    (text,) = run_script(SAY, OPENBLAS_CORETYPE=name)
    assert name in text


@bundled
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_avx512_is_used_where_there_is_one() -> None:
    """On any processor model that has it."""
    listing = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    flags = set(listing[1].split()) if listing else set()  # processors other than x86-64 have no such line
    (text,) = run_script(SAY)
    assert ("SkylakeX" in text) == ({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"} <= flags)


@bundled
def test_a_missing_library_is_named(tmp_path: Path) -> None:
    """With the extension alone, as in a damaged installation."""
    extension = tmp_path / Path(_core.__file__).name
    extension.write_bytes(Path(_core.__file__).read_bytes())
    script = f"""
import importlib.machinery, importlib.util
import numpy as np
import specdec
loader = importlib.machinery.ExtensionFileLoader("specdec._core", {str(extension)!r})
core = importlib.util.module_from_spec(importlib.util.spec_from_loader("specdec._core", loader))
loader.exec_module(core)
one = np.ones((1, 1), np.float32)
for call in (core.openblas, lambda: core.product(one, one, "f32", engine="blas")):
    try:
        call()
    except specdec.MissingLibraryError as error:
        print(error)
print(core.product(one, one, "f32"))
"""
    first, second, product = run_script(script)
    assert first == second
    assert first.startswith("OpenBLAS cannot be loaded: ")
    assert str(tmp_path / "libspecdec_openblas.so") in first
    assert product == "[[1.]]"
    assert issubclass(MissingLibraryError, OSError)


@needs_hooks
@bundled
def test_a_failing_allocation_is_reported_and_nothing_is_changed() -> None:
    script = """
import os
from specdec import _core
_core._alloc_fail_after(0)
try:
    _core.openblas()
except MemoryError:
    print("MemoryError")
_core._alloc_fail_after(-1)
print("OpenBLAS" in _core.openblas())
print("OPENBLAS_NUM_THREADS" in os.environ)
"""
    assert run_script(script) == ["MemoryError", "True", "False"]


LITTLE_MEMORY = """
import resource, sys
import numpy as np
from specdec import _core

def allow(n_bytes):
    status = open("/proc/self/status").read()
    now = int(status.split("VmSize:")[1].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (now + n_bytes, resource.RLIM_INFINITY))

def multiply(n_threads=1):
    try:
        print(_core.product(x, x, "f32", engine="blas", n_threads=n_threads)[0, 0])
    except MemoryError as error:
        print(error)

x = np.ones((300, 64), np.float32)
_core.product(x, x, "f32", n_threads=3)
allow(20 << 20)
multiply()
allow(110 << 20)
multiply()
multiply(3)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_too_little_memory_for_its_buffers_is_an_error() -> None:
    """Otherwise OpenBLAS would end the process."""
    first, second, third = run_script(LITTLE_MEMORY)
    assert re.fullmatch(r"out of memory: OpenBLAS needs \d+ bytes", first)
    assert second == "64.0"
    assert re.fullmatch(r"out of memory: OpenBLAS needs \d+ bytes", third)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_children_compute_while_the_parent_does() -> None:
    assert run_script(fork_script("blas"), PYTHONWARNINGS="ignore::DeprecationWarning") == ["done"]
