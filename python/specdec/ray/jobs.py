"""Jobs done by a pool of actors of ray.data: each is finished once, whatever happens to the processes."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from specdec.errors import InputError, SpecdecError, WorkerError, kind_of, number_of
from specdec.ray.cluster import Places

__all__ = ["Work", "do_jobs", "pickled"]


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
