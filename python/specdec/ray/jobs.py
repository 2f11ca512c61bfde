"""Jobs done by a pool of actors of ray.data, on the machines of a cluster: each is finished once."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from specdec.checks import check_integer
from specdec.errors import (
    InputError,
    MissingPackageError,
    SpecdecError,
    WorkerError,
    kind_of,
    number_of,
)
from specdec.threads import MAX_THREADS


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


class Work(Protocol):
    """What an actor is told to do. It is pickled."""

    def open(self) -> Callable[[str], str]:
        """Load what is needed, once in each actor: the function from a job's input to its output."""
        ...


class Attempts:
    """How often each job was begun: an actor of its own, as it outlives those that do the jobs."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()

    def begin(self, job: str) -> int:
        """A job begins: how often it has begun, this time included."""
        self._begun[job] += 1
        return self._begun[job]


class JobActor:
    """What ray.data makes an actor of: it opens the work when it is made, and does a job a row.

    It raises nothing: a row says how its job has ended.
    """

    def __init__(self, work: bytes, n_threads: int, attempts: Any, limit: int) -> None:
        from ray import cloudpickle

        os.environ["SPECDEC_NUM_THREADS"] = str(n_threads)  # the process is the actor's own
        self._attempts, self._limit = attempts, limit
        self._do, self._reason = None, ""
        try:
            opened: Work = cloudpickle.loads(work)
            self._do = opened.open()
        except SpecdecError as error:  # the same in every actor
            self._reason = f"{platform.node()}: {_text(error)}"

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        """One job: its name, how it has ended, its output or the reason."""
        import ray

        job = row["job"]
        if self._do is None:
            return {"job": job, "state": "unable", "content": self._reason}
        n_begun = ray.get(self._attempts.begin.remote(job))
        if n_begun > self._limit:
            reason = f"its process ended {number_of(n_begun - 1, 'time')} before it was done"
            return {"job": job, "state": "refused", "content": reason}
        try:
            return {"job": job, "state": "done", "content": self._do(row["input"])}
        except SpecdecError as error:  # a second attempt would end alike
            return {"job": job, "state": "refused", "content": str(error)}
        except Exception as error:
            return {"job": job, "state": "failed", "content": _text(error)}


def do_jobs(
    ray: Any,
    work: Work,
    jobs: Mapping[str, str],
    places: Places,
    *,
    noun: str,
    retries: int,
    finished: Callable[[str, str], None],
) -> None:
    """Do jobs in actors that each open the work.

    A job whose process or machine ends is begun again by another actor, which is ray.data's doing; one that
    raises is done again when the others are through. What a job's function raises as a SpecdecError is
    final, and the other jobs are done all the same.

    Parameters
    ----------
    ray : module
        Connected.
    work : Work
    jobs : mapping of str to str
        The input of each, by name.
    places : Places
    noun : str
        What a job is called in messages.
    retries : int
        How often a job is begun again.
    finished : callable
        Told of each job that is done, with its output, once, in the order in which they are done.

    Raises
    ------
    WorkerError
        An actor cannot open the work, or some jobs could not be done; the message names the first of these.
        Whatever else could be done has been.
    """
    packed = ray.cloudpickle.dumps(work)
    waiting = dict(jobs)
    n_failed: Counter[str] = Counter()
    hopeless: dict[str, str] = {}
    n_silent = 0  # passes in a row that have brought nothing
    while waiting:
        heard, reason = False, None
        try:
            for job, state, content in _pass(ray, packed, waiting, places, retries + 1):
                if state == "unable":
                    raise WorkerError(f"the models cannot be used on machine {content}")
                heard = True
                if job not in waiting:
                    continue  # done before the process that had done it was lost, and done again
                if state == "failed" and n_failed[job] < retries:
                    n_failed[job] += 1
                    continue
                if state == "done":
                    finished(job, content)
                else:
                    hopeless[job] = content
                del waiting[job]
        except (ray.exceptions.RayError, ray.data.exceptions.SystemException) as error:
            reason = error
        n_silent = 0 if heard else n_silent + 1
        if n_silent > retries:
            why = "the actors gave no answer" if reason is None else _text(reason)
            raise WorkerError(f"{number_of(len(waiting), noun)} could not be done: {why}") from reason
    if hopeless:
        first = min(hopeless)
        raise WorkerError(
            f"{number_of(len(hopeless), noun)} of {len(jobs)} could not be done; {first}: {hopeless[first]}"
        )


def _pass(
    ray: Any, packed: bytes, jobs: Mapping[str, str], places: Places, limit: int
) -> Iterator[tuple[str, str, str]]:
    """(job, how it has ended, output or reason) of each job, as they end."""
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=True
    )
    attempts = (
        ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Attempts)
        .options(scheduling_strategy=here)
        .remote()
    )
    rows = [{"job": job, "input": given} for job, given in jobs.items()]
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
    context = dataset.context
    context.enable_progress_bars = context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = -1  # a job may take long
    # Whatever the program has set for datasets of its own:
    context.execution_options.preserve_order = False  # each job is kept as soon as it is done
    context.max_errored_blocks = 0
    context.checkpoint_config = None
    pool = ray.data.ActorPoolStrategy(
        size=min(places.n_actors, len(rows)),
        max_tasks_in_flight_per_actor=1,  # inputs are small; a second one would only wait in its queue
    )
    done = dataset.map(
        JobActor,
        fn_constructor_args=(packed, places.n_threads, attempts, limit),
        compute=pool,
        num_cpus=places.n_cpus,
    )
    for batch in done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for row in batch.to_pylist():
            yield row["job"], row["state"], row["content"]


def pickled(ray: Any, name: str, value: Any) -> bytes:
    """An argument as bytes for other processes.

    Raises
    ------
    InputError
        It cannot be pickled.
    """
    try:
        packed: bytes = ray.cloudpickle.dumps(value)
    except Exception as error:  # whatever an object's own code raises
        raise InputError(
            f"{name} is {kind_of(value)} that cannot be pickled ({_text(error)}); expected a path, a name, "
            "or a function that makes it"
        ) from error
    return packed


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
