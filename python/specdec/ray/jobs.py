"""Jobs on a pool of ray.data actors, each finished exactly once.

Each actor calls the `Work` function once: it loads the models and returns the function from a job's input to
its output. `described`, `opened_target` and `opened_draft` handle the models that are sent along.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from specdec.checks import check_integer
from specdec.drafts.draft import Draft
from specdec.drafts.model_draft import DraftLike, open_draft
from specdec.errors import InputError, MissingPackageError, SpecdecError, WorkerError, number_of, type_of
from specdec.models.loading import as_model
from specdec.models.model import Model, ModelLike
from specdec.threads import MAX_THREADS

Work: TypeAlias = Callable[[], Callable[[str], str]]
TargetGiven: TypeAlias = ModelLike | Callable[[], Model]
"""A model, its path or name, or a function that loads it."""
DraftGiven: TypeAlias = DraftLike | Callable[[Model], DraftLike] | None
"""A draft, or a function that makes one for a target."""


@dataclass(frozen=True)
class Placement:
    """Number of actors, threads per actor and CPUs that Ray reserves per actor."""

    n_actors: int
    n_threads: int
    n_cpus: int  # the actors of a machine never exceed its CPUs


def connected() -> Any:
    """Import ray and connect it to the program's cluster, or else to ray's default."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingPackageError(
            "specdec.ray needs ray, which is not installed: pip install 'specdec-cpu[ray]'"
        ) from None
    if not ray.is_initialized():
        ray.init()
    return ray


def placement_on(
    machines: list[int], n_actors: int | None, n_threads: int | None, *, alone: bool = False
) -> Placement:
    """Place actors on machines given by their numbers of CPUs; `alone`: at most one per machine.

    Defaults: as many actors as fit, with the CPUs of the smallest machine as threads. With `alone`, machines
    with at most half of the largest's CPUs get no actor.
    """
    if n_actors is not None:
        n_actors = check_integer("n_actors", n_actors, 1)
    if n_threads is not None:
        n_threads = check_integer("n_threads", n_threads, 1, MAX_THREADS)
    machines = [n for n in machines if n >= 1]
    reserved = max(machines, default=1) // 2 + 1 if alone else 1  # at most one fits on any machine
    if n_threads is None:
        n_threads = min([n for n in machines if n >= reserved] or [1])
    n_threads = min(n_threads, MAX_THREADS)
    reserved = max(reserved, n_threads)
    if n_actors is None:
        n_actors = sum(n // reserved for n in machines)
        if n_actors == 0:
            raise InputError(
                f"n_threads is {n_threads}, and the machines of the cluster have {machines} CPUs; expected "
                "at most the largest number, or n_actors for a cluster that will grow"
            )
    return Placement(n_actors, n_threads, reserved)


def machines_of(ray: Any) -> list[int]:
    """Return the number of CPUs of each live machine."""
    return [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]


class Attempts:
    """Count of starts of each job, in a separate actor that outlives the workers."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()

    def begin(self, job: str) -> int:
        """Count and return the starts of a job."""
        self._begun[job] += 1
        return self._begun[job]


class JobActor:
    """Actor of ray.data that loads the work once and does one job per row; output rows report errors."""

    def __init__(self, work: bytes, n_threads: int, attempts: Any, limit: int) -> None:
        from ray import cloudpickle

        os.environ["SPECDEC_NUM_THREADS"] = str(n_threads)  # the actor has its own process
        self._attempts, self._limit = attempts, limit
        self._do, self._reason = None, ""
        try:
            self._do = cloudpickle.loads(work)()
        except SpecdecError as error:  # the same in every actor
            self._reason = f"{platform.node()}: {_text(error)}"

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        """Do a job; return its name, its state, and its output or the reason."""
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
        except SpecdecError as error:  # a retry would fail too
            return {"job": job, "state": "refused", "content": str(error)}
        except Exception as error:
            return {"job": job, "state": "failed", "content": _text(error)}


def do_jobs(
    ray: Any, work: Work, jobs: Mapping[str, str], placement: Placement, *, noun: str, retries: int,
    finished: Callable[[str, str], None],
) -> None:  # fmt: skip
    """Do jobs (inputs by name) in actors; call `finished` once with each name and output.

    ray.data restarts jobs of lost processes and machines. Jobs that raise are retried after the others, but a
    SpecdecError is final and does not stop other jobs. `noun` names a job in messages. Raises WorkerError if
    an actor cannot load the work or some jobs failed.
    """
    packed = ray.cloudpickle.dumps(work)
    waiting = dict(jobs)
    n_failed: Counter[str] = Counter()
    hopeless: dict[str, str] = {}
    n_silent = 0  # consecutive passes without an answer
    while waiting:
        heard, reason = False, None
        try:
            for job, state, content in _pass(ray, packed, waiting, placement, retries + 1):
                if state == "unable":
                    raise WorkerError(f"the models cannot be used on machine {content}")
                heard = True
                if job not in waiting:
                    continue  # repeated after its process was lost
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
    ray: Any, packed: bytes, jobs: Mapping[str, str], placement: Placement, limit: int
) -> Iterator[tuple[str, str, str]]:
    """Yield (job, state, output or reason) as jobs end."""
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
    # Override the program's settings for its own datasets:
    context.execution_options.preserve_order = False  # store each job when it is done
    context.max_errored_blocks = 0
    context.checkpoint_config = None
    pool = ray.data.ActorPoolStrategy(
        size=min(placement.n_actors, len(rows)),
        max_tasks_in_flight_per_actor=1,  # a second one would only wait
    )
    done = dataset.map(
        JobActor,
        fn_constructor_args=(packed, placement.n_threads, attempts, limit),
        compute=pool,
        num_cpus=placement.n_cpus,
    )
    for batch in done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for row in batch.to_pylist():
            yield row["job"], row["state"], row["content"]


def pickled(ray: Any, name: str, value: Any) -> bytes:
    """Pickle an argument for other processes; InputError if it cannot be."""
    try:
        packed: bytes = ray.cloudpickle.dumps(value)
    except Exception as error:  # the object's own code may raise anything
        raise InputError(
            f"{name} is {type_of(value)} that cannot be pickled ({_text(error)}); expected a path, a name, "
            "or a function that makes it"
        ) from error
    return packed


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def described(value: Any) -> Any:
    """Describe a model, draft or other argument as JSON, equal in every process."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, Model):
        reference = None if value.origin is None else value.origin.reference()
        merged = None if reference is None else reference.adapter_files
        said = [
            f", files {reference.files.digest}" if reference is not None else "",
            f", merged adapter {merged.digest}" if merged is not None else "",
            f", adapter {value.adapter_digest}" if value.adapter_digest is not None else "",
        ]
        return (
            f"{value.path} ({value.dtype}, cache {value.cache_dtype}, prefill {value.prefill}{''.join(said)})"
        )
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    if isinstance(value, dict):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, type) or is_function(value):
        return f"{value.__module__}.{value.__qualname__}"
    cls = type(value)
    own = any("__repr__" in vars(parent) for parent in cls.__mro__[:-1])  # object's shows an address
    return repr(value) if own else f"{cls.__module__}.{cls.__qualname__}"


def is_function(value: Any) -> bool:
    """Return whether an argument is a function instead of a callable object or class."""
    return callable(value) and hasattr(value, "__qualname__") and not isinstance(value, type)


def opened_target(given: TargetGiven) -> Model:
    """Load the target in an actor; a path with the prefill method that has equal bits on every machine."""
    made = given() if is_function(given) else given  # type: ignore[operator]
    return as_model("target", made, prefill="rows")


def opened_draft(given: DraftGiven, target: Model) -> Draft | None:
    """Open the draft in an actor."""
    make: Any = given
    made = make(target) if is_function(given) else given
    return None if made is None else open_draft("draft", made, optional=True, target=target)
