"""What the machine allows, measured in the run that is compared with it: reading memory, and arithmetic.

The speed at which a shared machine reads memory can change within seconds, by factors. So a time stands
beside a bandwidth only if both were measured at once: :func:`bracketed` reads memory right before and right
after a job, and repeats the job when the two readings disagree.
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
# Narrower codes are widened to 8 bits; "file": a model of a GGUF file's codes.
_CHAINS = {"f32": 0, "bf16": 1, "int8": 2, "int4": 2, "file": 2, "tiles": 3}

#: Bytes of a packed weight: int8 and int4 have a scale of two bytes for each 32.
WEIGHT_BYTES = {"f32": 4.0, "bf16": 2.0, "int8": 1 + 2 / 32, "int4": 0.5 + 2 / 32}
#: The same of the types of GGUF files that the core computes with as they are, as the files hold them.
FILE_BYTES = WEIGHT_BYTES | {
    **{"q4_1": 20 / 32, "q5_0": 22 / 32, "q5_1": 24 / 32, "iq4_nl": 18 / 32, "mxfp4": 17 / 32},
    **{"q2_k": 84 / 256, "q3_k": 110 / 256, "q4_k": 144 / 256, "q5_k": 176 / 256, "q6_k": 210 / 256},
    "iq4_xs": 136 / 256,
}
NUMBER_BYTES = {"f32": 4, "bf16": 2}

#: Does the work and returns its seconds, by the clock and of all threads together on their cores.
Job: TypeAlias = Callable[[], tuple[float, float]]

#: A sample that lost more than this share of its time was disturbed.
DISTURBED = 0.02


class Machine:
    """The probes, compiled for this processor, and the memory they read.

    Parameters
    ----------
    n_threads : int
        Threads that read or compute together, each on a core of its own. The calling thread is the first
        of them, and stays on the first core from then on.
    buffer_mib : int, optional
        The size of a buffer in pages of 2 MiB. It should be several times the largest cache, so that nothing
        that is read of it in turn is in a cache; without a number it is four times.
    probe_mib : int
        Each read takes so much of the buffer.
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
        """Bytes per second of reading memory that is in no cache: the better of two reads."""
        return max(self._read_next() for _ in range(2))

    def bandwidth_again(self, n_bytes: int) -> float:
        """Bytes per second of reading the same ``n_bytes`` again and again, as decoding reads a model.

        Faster than :meth:`bandwidth` where a cache holds some of them, as it may of twice its size. Above
        that, and above what the buffer has, the two are the same, and this one reads no more than that one.
        """
        if n_bytes > min(self._n_bytes, max(2 * self._n_cache, self._n_bytes // 4)):
            return self.bandwidth()
        for _ in range(2):
            self._read(0, n_bytes)
        return max(self._read(0, n_bytes) for _ in range(2))

    def peak(self, dtype: str, repeats: int = 30) -> float:
        """Operations per second, two a multiply-add, of independent multiply-adds in registers.

        The ninth decile over ``repeats`` runs of a few milliseconds: what interrupts a run only slows it.
        """
        times = [self._arithmetic(dtype) for _ in range(repeats)]
        return statistics.quantiles(times, n=10)[-1]

    def rate(self, dtype: str, n_steps: int) -> float:
        """Operations per second of one run of :meth:`peak`, of so many rounds of multiply-adds."""
        return _checked(self._library.machine_arithmetic(_CHAINS[dtype], n_steps, self.n_threads))

    def instruction(self, dtype: str) -> str:
        """What :meth:`peak` measures."""
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
        """Keep every other thread of the process, such as the core's workers, off the first core.

        Start the workers first. Where the system does not let threads be kept on cores, nothing happens.
        """
        others = self._cores[1:]
        if not others or not hasattr(os, "sched_setaffinity"):
            return
        tasks = sorted(int(task.name) for task in Path("/proc/self/task").iterdir())
        for index, task in enumerate(task for task in tasks if task != os.getpid()):
            os.sched_setaffinity(task, {others[index % len(others)]})


def largest_cache() -> int:
    """Bytes of the largest cache that the system tells of; 0 where it tells of none."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(size.read_text().strip().removesuffix("K")) << 10 for size in sizes), default=0)


@dataclass(frozen=True)
class Sample:
    """A time, and the bytes per second the machine read at that time."""

    seconds: float
    bandwidth: float
    lost: float
    """Share of the threads' time in which they did not run, mostly because something else did."""


def bracketed(machine: Machine, job: Job, n_bytes: int, tries: int = 8) -> Sample | None:
    """What ``job`` takes, with the mean of a read probe before and one after.

    ``n_bytes`` is how much the job reads again and again, see :meth:`Machine.bandwidth_again`. A try whose
    probes differ by more than 15 % is dropped. The first undisturbed try is taken, else the least disturbed
    one; None if all were dropped. The core's threads spin while they wait for one another, so that time
    without a core is time that something else took.
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
    """The states of the machine's memory, fastest first: median bandwidth, test whether a sample is of it.

    Two if the bandwidths spread by more than a quarter, split at their geometric middle, else one.
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
        loaded = ctypes.CDLL(str(library))  # stays loaded when the file is gone
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
