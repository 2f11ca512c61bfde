"""Limits of the machine, measured during the benchmark: memory bandwidth and arithmetic.

The memory bandwidth of a shared machine can change by factors within seconds, so time and bandwidth must be
measured together: :func:`bracketed` measures bandwidth right before and after a job, and repeats the job if
the two values disagree.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.report import allowed_cores

_SOURCE = Path(__file__).with_name("machine.c")
# Narrower codes are widened to 8 bits; "file": a model with the codes of a GGUF file.
_CHAINS = {"f32": 0, "bf16": 1, "int8": 2, "int4": 2, "file": 2, "tiles": 3}

#: Bytes per packed weight: int8 and int4 have a scale of two bytes per block of 32.
WEIGHT_BYTES = {"f32": 4.0, "bf16": 2.0, "int8": 1 + 2 / 32, "int4": 0.5 + 2 / 32}
#: Bytes per weight of the GGUF types that the core computes with directly.
FILE_BYTES = WEIGHT_BYTES | {
    **{"q4_1": 20 / 32, "q5_0": 22 / 32, "q5_1": 24 / 32, "iq4_nl": 18 / 32, "mxfp4": 17 / 32},
    **{"q2_k": 84 / 256, "q3_k": 110 / 256, "q4_k": 144 / 256, "q5_k": 176 / 256, "q6_k": 210 / 256},
    "iq4_xs": 136 / 256,
}
NUMBER_BYTES = {"f32": 4, "bf16": 2, "int8": 34 / 32}

#: Does the work and returns wall clock seconds and CPU seconds of all threads.
Job: TypeAlias = Callable[[], tuple[float, float]]

#: Largest share of lost time of an undisturbed sample.
DISTURBED = 0.02


class Machine:
    """Probes, compiled for this processor, and the buffer they read.

    Parameters
    ----------
    n_threads : int
        Threads that read or compute together, one per core. Pins the calling thread to the first core.
    buffer_mib : int, optional
        Size of the buffer, in pages of 2 MiB. It should exceed the largest cache several times. None: four
        times.
    probe_mib : int
        Size of each read.
    """

    def __init__(self, n_threads: int = 2, buffer_mib: int | None = None, probe_mib: int = 64) -> None:
        self._n_cache = largest_cache()
        if buffer_mib is None:
            buffer_mib = max(512, 4 * (self._n_cache >> 20))
        self.n_threads = n_threads
        self._cores = allowed_cores()[:n_threads]
        self._library = _compile()
        self._library.machine_set_cores((ctypes.c_int * len(self._cores))(*self._cores), len(self._cores))
        self._n_bytes, self._n_probe = buffer_mib << 20, probe_mib << 20
        self._pages = self._library.machine_pages(self._n_bytes)
        if not self._pages:
            raise MemoryError(f"no {buffer_mib} MiB for the buffer to read")
        self._at = 0

    def close(self) -> None:
        """Free the buffer."""
        if self._pages:
            self._library.machine_pages_free(self._pages, self._n_bytes)
        self._pages = None

    def bandwidth(self) -> float:
        """Measure bytes per second of uncached memory reads, the better of two."""
        return max(self._read_next() for _ in range(2))

    def bandwidth_again(self, n_bytes: int) -> float:
        """Measure bytes per second of reading the same ``n_bytes`` repeatedly, as decoding reads a model.

        Faster than :meth:`bandwidth` if a cache holds part of them, up to twice its size; equal to it above
        that size and above the buffer's.
        """
        if n_bytes > min(self._n_bytes, max(2 * self._n_cache, self._n_bytes // 4)):
            return self.bandwidth()
        for _ in range(2):
            self._read(0, n_bytes)
        return max(self._read(0, n_bytes) for _ in range(2))

    def peak(self, dtype: str, repeats: int = 30) -> float:
        """Measure operations per second of independent multiply-adds in registers, two per multiply-add.

        Returns the ninth decile over ``repeats`` runs of a few milliseconds, as interruptions only slow runs.
        """
        times = [self._arithmetic(dtype) for _ in range(repeats)]
        return statistics.quantiles(times, n=10)[-1]

    def rate(self, dtype: str, n_steps: int) -> float:
        """Measure operations per second in one run of :meth:`peak` with ``n_steps`` rounds."""
        return _checked(self._library.machine_arithmetic(_CHAINS[dtype], n_steps, self.n_threads))

    def instruction(self, dtype: str) -> str:
        """Return the instruction that :meth:`peak` measures."""
        return self._library.machine_instruction(_CHAINS[dtype]).decode()

    def _read_next(self) -> float:
        if self._at + self._n_probe > self._n_bytes:
            self._at = 0
        at, self._at = self._at, self._at + self._n_probe
        return self._read(at, self._n_probe)

    def _read(self, at: int, n_bytes: int) -> float:
        return n_bytes / _checked(self._library.machine_read(self._pages + at, n_bytes, self.n_threads))

    def _arithmetic(self, dtype: str) -> float:
        return self.rate(dtype, 400_000)

    def pin_threads(self) -> None:
        """Pin all other threads of the process, such as the core's workers, to other cores than the first.

        Start the workers first. Does nothing on systems without thread affinity.
        """
        others = self._cores[1:]
        if not others or not hasattr(os, "sched_setaffinity"):
            return
        tasks = sorted(int(task.name) for task in Path("/proc/self/task").iterdir())
        for index, task in enumerate(task for task in tasks if task != os.getpid()):
            os.sched_setaffinity(task, {others[index % len(others)]})


def largest_cache() -> int:
    """Return the size in bytes of the largest cache that the system reports, or 0."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(size.read_text().strip().removesuffix("K")) << 10 for size in sizes), default=0)


@dataclass(frozen=True)
class Sample:
    """A time, and the memory bandwidth in bytes per second at that time."""

    seconds: float
    bandwidth: float
    lost: float
    """Share of the time in which the threads did not run, mostly because of other processes."""


def bracketed(machine: Machine, job: Job, n_bytes: int, tries: int = 8) -> Sample | None:
    """Time ``job``, with the mean bandwidth of a probe before and one after.

    ``n_bytes`` is the amount that the job reads repeatedly, see :meth:`Machine.bandwidth_again`. Drops tries
    whose probes differ by more than 15 %. Returns the first undisturbed try, else the least disturbed one, or
    None if all were dropped. The core's threads spin while waiting, so time off the CPU went to other
    processes.
    """
    best = None
    for _ in range(tries):
        before = machine.bandwidth_again(n_bytes)
        seconds, cpu_seconds = job()
        after = machine.bandwidth_again(n_bytes)
        if max(before, after) > 1.15 * min(before, after):
            continue
        lost = max(0.0, 1 - cpu_seconds / (machine.n_threads * seconds))
        if best is None or lost < best.lost:
            best = Sample(seconds, 2 / (1 / before + 1 / after), lost)
        if lost < DISTURBED:
            break
    return best


def states(samples: Sequence[Sample]) -> Iterator[tuple[float, Callable[[Sample], bool]]]:
    """Yield the states of the machine's memory, fastest first: median bandwidth, and a test for samples.

    Two states, split at the geometric mean, if the bandwidths spread by more than a quarter; else one.
    """
    found = sorted(sample.bandwidth for sample in samples)
    if not found:
        return
    low, high = found[len(found) // 20], found[-1 - len(found) // 20]
    limit = (low * high) ** 0.5 if high > 1.25 * low else 0.0
    yield statistics.median(b for b in found if b >= limit), lambda sample: sample.bandwidth >= limit
    if limit:
        yield statistics.median(b for b in found if b < limit), lambda sample: sample.bandwidth < limit


def _compile() -> ctypes.CDLL:
    compiler = os.environ.get("CC") or (sysconfig.get_config_var("CC") or "cc").split()[0]
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "machine.so"
        options = ["-O2", "-march=native", "-shared", "-fPIC", "-pthread"]
        subprocess.run([compiler, *options, str(_SOURCE), "-o", str(library)], check=True)
        loaded = ctypes.CDLL(str(library))  # stays loaded after the file is deleted
    loaded.machine_pages.restype = ctypes.c_void_p
    loaded.machine_pages.argtypes = [ctypes.c_size_t]
    loaded.machine_pages_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    loaded.machine_read.restype = ctypes.c_double
    loaded.machine_read.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    loaded.machine_instruction.restype = ctypes.c_char_p
    loaded.machine_arithmetic.restype = ctypes.c_double
    loaded.machine_arithmetic.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int]
    return loaded


def _checked(value: float) -> float:
    if value < 0:
        raise RuntimeError("the threads of a probe could not be started")
    return value
