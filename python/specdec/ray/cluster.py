"""The machines of a cluster, and how many actors of how many threads they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdec.checks import check_integer
from specdec.errors import InputError, MissingPackageError
from specdec.threads import MAX_THREADS

__all__ = ["Places", "connected", "machines_of", "places_on"]


@dataclass(frozen=True)
class Places:
    """The actors of a run.

    Attributes
    ----------
    n_actors : int
    n_threads : int
        Threads that each computes with.
    n_cpus : int
        CPUs that Ray reserves for each: no machine has actors that need more CPUs together than it has.
    """

    n_actors: int
    n_threads: int
    n_cpus: int


def connected() -> Any:
    """The package ray, connected to a cluster: the one that the program has chosen, or else ray's default.

    Raises
    ------
    MissingPackageError
    """
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingPackageError(
            "specdec.ray needs ray, which is not installed: pip install 'ray[data]'"
        ) from None
    if not ray.is_initialized():
        ray.init()
    return ray


def places_on(
    machines: list[int], n_actors: int | None, n_threads: int | None, *, alone: bool = False
) -> Places:
    """Where the actors of a run have their places.

    Parameters
    ----------
    machines : list of int
        CPUs of each machine.
    n_actors : int, optional
        None: as many as the machines hold.
    n_threads : int, optional
        Threads of each; None: the CPUs of the smallest machine.
    alone : bool
        No two on one machine. Machines with no more than half of the CPUs of the largest stay without.

    Raises
    ------
    InputError
        No machine has the CPUs for an actor, and `n_actors` does not say that some will.
    """
    if n_actors is not None:
        n_actors = check_integer("n_actors", n_actors, 1)
    if n_threads is not None:
        n_threads = check_integer("n_threads", n_threads, 1, MAX_THREADS)
    machines = [n for n in machines if n >= 1]
    reserved = max(machines, default=1) // 2 + 1 if alone else 1  # of which no machine has twice as many
    if n_threads is None:
        n_threads = min([n for n in machines if n >= reserved] or [1])
    n_threads = min(n_threads, MAX_THREADS)
    reserved = max(reserved, n_threads)
    if n_actors is None:
        n_actors = sum(n // reserved for n in machines)
        if n_actors == 0:
            raise InputError(
                f"n_threads is {n_threads}, and the machines of the cluster have {machines} CPUs; expected "
                "at most as many as the largest has, or n_actors for a cluster that will grow"
            )
    return Places(n_actors, n_threads, reserved)


def machines_of(ray: Any) -> list[int]:
    """CPUs of each machine that is alive."""
    return [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
