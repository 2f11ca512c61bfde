"""`train_draft`: a draft trained for a target, from prompts to a folder."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.atomic_file import replacing
from specdec.checks import check_integer, check_number, check_path
from specdec.drafts import Draft, Ensemble
from specdec.errors import CheckpointError, InputError, number_of, shown
from specdec.models.loading import as_model, embedded_pair, load
from specdec.models.model import Model, ModelLike, Prompt
from specdec.models.number_formats import Dtype
from specdec.progress import progress_bar
from specdec.tables import OneTable, Table
from specdec.threads import check_threads
from specdec.time_limit import TimeLimit
from specdec.training.batch import Batch, TargetStates
from specdec.training.cover import Cover
from specdec.training.held_out import TEMPERATURES_SHOWN, HeldOut, alpha_of, gain
from specdec.training.kind import Kind
from specdec.training.loop import LossCurve, Optimisers, Progress, seconds_of_step, seed_step, train_step
from specdec.training.loss_figure import draw_losses
from specdec.training.plan import LENGTHS, TrainingPlan, WritingSpeed, affordable_length
from specdec.training.prompts import Prompts
from specdec.training.registry import kind_of_name
from specdec.training.settings import Data, Loss, TrainingSettings
from specdec.training.written_texts import STEPS_OF_GROUP, TextGroups, TextWriter, continued

__all__ = ["DraftFigures", "TrainedDraft", "check_device", "train_draft"]

_MINUTES = 10.0
_LOOKS = 20  # at some of the held-out texts, in a training
_SHARE_OF_LOOKS = 0.1  # of the time for the steps, at most
_TEXTS_OF_LOOK = 4
_CHECKPOINT_S = 60.0
_FEW_STEPS = 100  # with fewer a draft has hardly learned


@dataclass(frozen=True)
class DraftFigures:
    """What a draft is worth on held-out texts, by temperature: 0 and 1.

    Attributes
    ----------
    alpha : dict of float to (float, float, float)
        Mean acceptance rate of the first guess after a token, and its 95 % confidence interval.
    tokens_per_call : dict of float to float
        New tokens a run of the target, of real runs.
    """

    alpha: Mapping[float, tuple[float, float, float]]
    tokens_per_call: Mapping[float, float]


@dataclass(frozen=True, repr=False)
class TrainedDraft(OneTable):
    """A draft that was trained, and what the training did for it; ``print`` shows it, a notebook too.

    Attributes
    ----------
    folder : str
        Of the draft.
    kind, target : str
    n_parameters : int
        That were trained.
    n_steps, n_tokens : int
        Steps; tokens that were trained on, each pass counted.
    minutes : float
        Of training, texts included.
    losses : str
        File of the loss curve, tab-separated.
    before, after : DraftFigures
        Before the first step and behind the last.
    gains : dict of float to (float, float, float)
        What alpha rose by on the same positions, with its 95 % confidence interval.
    words : tuple of str
        What is to be known of this kind of draft.
    """

    folder: str
    kind: str
    target: str
    n_parameters: int
    n_steps: int
    n_tokens: int
    minutes: float
    losses: str
    before: DraftFigures
    after: DraftFigures
    gains: Mapping[float, tuple[float, float, float]]
    words: tuple[str, ...] = ()

    def table(self) -> Table:
        """Alpha and tokens a call, before and after."""
        rows = []
        for temperature in TEMPERATURES_SHOWN:
            for name, figures in (("before", self.before), ("after", self.after)):
                alpha, low, high = figures.alpha[temperature]
                rose = ""
                if name == "after":
                    rose = "{:+.3f} ({:+.3f} to {:+.3f})".format(*self.gains[temperature])
                calls = figures.tokens_per_call[temperature]
                rows.append(
                    (
                        f"{name}, T = {temperature:g}",
                        f"{alpha:.3f}",
                        f"{low:.3f} to {high:.3f}",
                        rose,
                        f"{calls:.2f}",
                    )
                )
        title = (
            f"{self.kind} draft for {self.target}: {self.n_parameters:,} parameters, "
            f"{number_of(self.n_steps, 'step')}, {self.n_tokens:,} tokens, {self.minutes:.1f} minutes\n"
            f"draft: {self.folder}\nlosses: {self.losses}"
        )
        title += "".join(f"\n{words}" for words in self.words)
        return Table(title, ("held-out texts", "alpha", "95 %", "gain (95 %)", "tokens/call"), rows)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        with replacing(path) as file:
            file.write(json.dumps(self.to_dict(), indent=1).encode())

    @classmethod
    def load(cls, path: Path) -> TrainedDraft:
        """Read what `save` wrote.

        Raises
        ------
        CheckpointError
            The file holds something else.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            before, after = (
                DraftFigures(_by_temperature(part["alpha"]), _by_temperature(part["tokens_per_call"]))
                for part in (values.pop("before"), values.pop("after"))
            )
            gains, words = _by_temperature(values.pop("gains")), tuple(values.pop("words"))
            found = cls(before=before, after=after, gains=gains, words=words, **values)
            found.table()  # so that what cannot be shown is refused here
            return found
        except _DAMAGED as error:
            raise CheckpointError(f"{path}: expected the summary of a training ({error})") from error


_DAMAGED = (
    OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError
)  # fmt: skip
"""What a file that is no summary raises."""


def _by_temperature(values: Mapping[str, Any]) -> dict[float, Any]:
    return {float(name): tuple(one) if isinstance(one, list) else one for name, one in values.items()}


def train_draft(
    target: ModelLike | None,
    kind: str,
    out: str | os.PathLike[str],
    *,
    prompts: str | os.PathLike[str] | Sequence[Prompt] | None = None,
    loss: Loss = "fkl-tvd",
    beta: float = 0.5,
    temperature: float = 1.0,
    data: Data = "target",
    minutes: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    begin: str | os.PathLike[str] | None = None,
    after: Sequence[str | os.PathLike[str]] = (),
    length: int | None = None,
    batch: int = 16,
    passes: int = 4,
    learning_rate: float | None = None,
    top: int = 0,
    weights: str = "bf16",
    dtype: Dtype | None = None,
    device: str | None = None,
    shape: Mapping[str, object] | None = None,
    n_threads: int | None = None,
    progress: bool = False,
    say: Callable[[str], object] = lambda text: None,
) -> TrainedDraft:
    """Train a draft for a target, or, called again with the same arguments, go on where it was interrupted.

    Parameters
    ----------
    target : Model, path or hub name, or None
        None: the one in the package.
    kind : str
        "small", "recurrent", "exit" and others: docs/TRAINING.md.
    out : path-like
        The draft's folder. Its folder ``training`` keeps texts, checkpoint, loss curve and summary.
    prompts : path-like, or sequence of prompts, optional
        What texts begin with: a file with a prompt a line, or prompts. A tenth is held out, where there are
        20 or more. None: the token that begins a text.
    loss : {"fkl-tvd", "fkl", "rkl", "jsd", "tvd"}
        Forward or reverse Kullback-Leibler divergence, Jensen-Shannon divergence, total variation distance;
        or the first and then the last.
    beta : float, default 0.5
        Of the Jensen-Shannon divergence.
    temperature : float, default 1.0
        Of the laws that are compared.
    data : {"target", "draft", "mixture", "text"}
        Who writes the texts: the target; the draft as it is by then, or both in turn (DistillSpec's on-policy
        data); or nobody: pieces of the file of prompts.
    minutes : float, optional
        What all of it may take, from loading the target to measuring the draft. The trainer measures how fast
        the target writes and how long a step takes, and says how many texts and steps that allows: at least
        two held-out texts, the texts of a step, and one step, however long they take. None: 10.
    steps : int, optional
        Steps in place of minutes, whatever they take: then a seed fixes the weights to the bit, on one
        machine and number of threads.
    seed : int, default 0
    begin : path-like, optional
        Folder of a draft to begin with, in place of random weights.
    after : sequence of path-like
        Folders of drafts that the new one shall complete: it learns what the target's law leaves after their
        guesses.
    length : int, optional
        Tokens of a text; None: 256, or the context if that is shorter; less if the minutes are too few.
    batch : int, default 16
        Texts a step.
    passes : int, default 4
        How often a text is trained on; those of the draft once.
    learning_rate : float, optional
        None: that of the kind.
    top : int, default 0
        Tokens of a law that are learnt one by one, the others as one; 0: all, of more than 8192 tokens 256.
    weights : {"bf16", "f32"}
        Number format of the draft's file.
    dtype : {None, "f32", "bf16", "int8", "int4"}
        Number format of a target that is given by path or name; None: that of its files.
    device : str, optional
        Of torch. None: "cuda" where there is one, else "cpu".
    shape : mapping, optional
        Settings of the kind, such as ``{"d_model": 96}``.
    n_threads : int, optional
        None: :func:`specdec.threads.default_threads`.
    progress : bool, default False
        Show a progress bar (needs tqdm).
    say : callable, optional
        Told, in words, what the trainer finds before it begins, what it measures, and, at an interruption,
        what is kept.

    Returns
    -------
    TrainedDraft

    Raises
    ------
    InputError
        An argument that cannot be used, or other ones than those that the training in `out` began with.
    CheckpointError
        A damaged file.
    MissingPackageError
        torch, or what a kind needs besides, is not installed: ``pip install torch transformers``.

    Examples
    --------
    >>> trained = specdec.training.train_draft(None, "small", "my-draft", minutes=5)
    >>> print(trained)
    """
    limit = TimeLimit(math.inf if steps is not None else 60.0 * _checked_minutes(minutes))
    device = check_device(device)
    if isinstance(target, Model) and dtype is not None:
        raise InputError(f"dtype is {shown(dtype)} with a target that is loaded; expected None, or a path")
    if target is None:
        model = embedded_pair(dtype)[0]
    elif isinstance(target, str | os.PathLike):
        model = load(target, dtype)
    else:
        model = as_model("target", target)
    kind_type, folder = kind_of_name(kind), check_path("out", out)
    speed = None
    if length is None:
        length = _stored_length(folder / "training")
    if length is None:
        length = min(LENGTHS[0], model.config.n_ctx)
        if steps is None:
            check_integer("batch", batch, 1)
            say("Measuring how fast the target writes.")
            beginnings = Prompts.read(model, prompts, max(1, length // 2))
            speed = WritingSpeed.measured(
                model, beginnings, batch=batch, n_threads=check_threads(n_threads), limit=limit
            )
            length = affordable_length(speed, batch, limit.left_s, model.config.n_ctx)
    if length > model.config.n_ctx:
        raise InputError(f"length is {length}; expected at most {model.config.n_ctx}, the target's context")
    found = Prompts.read(model, prompts, max(1, length // 2))
    settings = TrainingSettings(
        kind=kind,
        loss=loss,
        beta=beta,
        temperature=temperature,
        data=data,
        seed=seed,
        minutes=minutes,
        steps=steps,
        length=length,
        batch=batch,
        passes=passes,
        learning_rate=kind_type.learning_rate if learning_rate is None else learning_rate,
        top=top,
        weights=weights,
        begin=None if begin is None else str(check_path("begin", begin)),
        after=tuple(str(check_path("after", one)) for one in after),
        threads=check_threads(n_threads),
        device=device,
        shape={name: str(value) for name, value in (shape or {}).items()},
        target=f"{model.path} in {model.dtype}",
        prompts=found.digest,
    )
    training = _Training(kind_type(model, settings), found, folder, progress, say, limit, speed)
    return training.run()


def _checked_minutes(minutes: float | None) -> float:
    if minutes is None:
        return _MINUTES
    return check_number("minutes", minutes, "a finite number above 0", lambda x: 0.0 < x < 1e9)


def _stored_length(work: Path) -> int | None:
    """Tokens of a text in a training that has begun; None if there is none, or it cannot be read."""
    try:
        stored = json.loads((work / "settings.json").read_text(encoding="utf-8"))["length"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # `TrainingSettings.check_same` says what is wrong
    return stored if type(stored) is int else None


def check_device(device: str | None) -> str:
    """The name of a device of torch that computes here; None: "cuda" where there is one, else "cpu".

    Raises
    ------
    InputError
    """
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.ones(1, device=device).sum().item()
    except (RuntimeError, TypeError, AssertionError, ImportError, AttributeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(
            f"device is {shown(device)}; expected a device of torch on this machine, such as 'cpu' ({reason})"
        ) from error
    return str(device)


class _Training:
    """One training, from what is asked for to the summary."""

    def __init__(
        self,
        kind: Kind,
        prompts: Prompts,
        folder: Path,
        progress: bool,
        say: Callable[[str], object],
        limit: TimeLimit,
        speed: WritingSpeed | None,
    ) -> None:
        self._limit, self._speed = limit, speed
        self._plan = TrainingPlan.whole(kind.settings.batch)
        self._kind, self._prompts, self._folder, self._say, self._shown = kind, prompts, folder, say, progress
        self._settings, self._target = kind.settings, kind.target
        self._work = folder / "training"
        settings = kind.settings
        kind.token_counts, kind.say = self._token_counts, say
        self._cover: Cover | None = None
        if settings.after:
            self._cover = Cover(
                kind.target, settings.after, temperature=settings.temperature, n_threads=settings.threads
            )
        self._states = TargetStates(
            kind.target,
            taps=kind.taps,
            top=settings.top,
            temperature=settings.temperature,
            n_threads=settings.threads,
            cover=self._cover,
        )

    def run(self) -> TrainedDraft:
        """Train, measure, write the draft; or give the summary of a training that is done."""
        asked = self._work / "settings.json"
        if (self._folder / "config.json").exists() and not asked.exists():
            raise InputError(
                f"out {self._folder} holds a model and no training; expected a new folder, or a training's"
            )
        try:
            (self._work / "texts").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"out {self._folder} cannot be made a folder: {error.strerror}; expected a new folder, or a "
                "training's"
            ) from error
        summary = self._work / "summary.json"
        if asked.exists():
            self._settings.check_same(asked, self._prompts.name)
            if summary.exists():
                return TrainedDraft.load(summary)
        before = torch.get_num_threads()
        torch.set_num_threads(self._settings.threads)
        try:
            with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay
                trained = self._trained()
        finally:
            torch.set_num_threads(before)
        trained.save(summary)
        return trained

    def _trained(self) -> TrainedDraft:
        if self._speed is None and math.isfinite(self._limit.seconds):
            self._say("Measuring how fast the target writes.")
            self._speed = WritingSpeed.measured(
                self._target, self._prompts, batch=self._settings.batch, n_threads=self._settings.threads,
                limit=self._limit,
            )  # fmt: skip
        self._plan = self._texts_planned()
        self._say("Making the network that is trained.")
        network = self._fresh()
        optimisers = Optimisers(network, self._kind, self._settings.learning_rate)
        state = Progress(self._work / "checkpoint.pt", network, optimisers)
        going_on = state.load(self._settings.steps)
        if going_on:
            self._say(f"Goes on at step {state.step} of {state.n_steps}.")
        try:
            return self._finished(network, optimisers, state, going_on)
        except KeyboardInterrupt:
            kept = "the same command begins anew"
            if state.n_steps:
                kept = (
                    f"{self._work} keeps texts and the checkpoint of step {state.saved_step} of "
                    f"{state.n_steps}; the same command goes on from there"
                )
            self._say(f"Interrupted: {kept}.")
            raise

    def _finished(
        self, network: Any, optimisers: Optimisers, state: Progress, going_on: bool
    ) -> TrainedDraft:
        """The steps that are left, the draft's folder, its figures."""
        n_held_out = self._plan.n_held_out
        self._say(f"Writing the held-out texts that the draft is measured on: {n_held_out} twice.")
        held_out = HeldOut.written(self._target, self._prompts, self._settings, n_held_out)
        if not going_on:
            self._plan.save(self._work / "plan.json")
            self._settings.save(self._work / "settings.json")  # not before what could be refused
            state.n_steps = self._planned(network)
            state.save()
        self._train(network, optimisers, state, held_out)
        self._kind.export(network, self._folder)
        self._kind.finish(self._folder, held_out.texts[1.0])
        return self._measured(network, state, held_out)

    def _fresh(self) -> Any:
        """The network before the first step."""
        seed_step(self._settings.seed, 0)
        return self._kind.network().to(self._settings.device).train()

    def _token_counts(self) -> NDArray[np.int64]:
        """How often each token occurs in the first texts and in the file of prompts."""
        texts = self._groups(None, 1).first()
        written = [row[:end] for row, end in zip(texts.ids, texts.ends, strict=True)]
        read = np.array(self._prompts.text, np.int64)
        return np.bincount(np.concatenate([*written, read]), minlength=self._target.config.n_vocab)

    def _groups(self, network: Any, n_steps: int) -> TextGroups:
        def writers() -> Sequence[TextWriter]:
            def by_target(prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
                return continued(self._target, self._settings.threads, prompts, **options)

            data = self._settings.data
            found: list[TextWriter] = [by_target] if data in ("target", "mixture") else []
            if data in ("draft", "mixture"):
                found.append(self._kind.writer(network, self._work))
            return found

        n_vocab = self._target.config.n_vocab
        return TextGroups(
            self._work / "texts", self._prompts, self._settings, n_steps, self._plan.n_texts, n_vocab, writers
        )

    def _texts_planned(self) -> TrainingPlan:
        """Plan how many texts there will be, or read the plan of a training that continues."""
        settings, path = self._settings, self._work / "plan.json"
        if path.exists():
            return TrainingPlan.load(path, settings.batch)
        whole = TrainingPlan.whole(settings.batch)
        if self._speed is None:
            return whole
        plan = TrainingPlan.within(
            self._limit.left_s, self._speed, length=settings.length, batch=settings.batch
        )
        if settings.data == "text":  # nobody writes them
            plan = replace(plan, n_texts=whole.n_texts)
        self._say(
            f"The target writes {1.0 / self._speed.batch_s:.0f} tokens a second: there is time for "
            f"{plan.n_texts} texts of {settings.length} tokens, and twice {plan.n_held_out} held-out ones."
        )
        return plan

    @property
    def _measuring_s(self) -> float:
        """Estimated seconds to measure the draft after the training."""
        if self._speed is None:
            return 0.0
        return self._speed.measuring_s(self._plan.n_held_out, self._settings.length)

    @property
    def _look_s(self) -> float:
        """Estimated seconds of a look at some held-out texts."""
        n_texts = min(_TEXTS_OF_LOOK, self._plan.n_held_out)
        return 0.0 if self._speed is None else self._speed.reading_s(n_texts, self._settings.length)

    @property
    def _steps_s(self) -> float:
        """Seconds that are left for the steps and the looks between them."""
        return max(0.0, self._limit.left_s - self._measuring_s)

    def _planned(self, network: Any) -> int:
        """How many steps there will be, by what a step takes here; the first texts are written for that."""
        settings = self._settings
        n_first = settings.steps or STEPS_OF_GROUP
        groups = self._groups(network, n_first)
        self._say("Writing the first texts to train on.")
        begun = self._limit.spent_s
        groups.batch(0)
        texts_s = (self._limit.spent_s - begun) / STEPS_OF_GROUP
        self._say("Measuring how long a step takes.")
        step_s = seconds_of_step(
            self._kind, network, lambda: self._states.of(groups.batch(0)), lambda: self._limit.spent_s,
            long_s=0.05 * self._steps_s,
        )  # fmt: skip
        is_whole = self._plan.n_texts == TrainingPlan.whole(settings.batch).n_texts
        mean_s = step_s + (texts_s / settings.passes if is_whole else 0.0)
        tokens = settings.batch * settings.length
        rate = (
            f"A step of {tokens:,} tokens takes {step_s:.2f} s here, to write its texts takes {texts_s:.2f} s"
        )
        if settings.steps is not None:
            steps = number_of(settings.steps, "step")
            takes = "takes" if settings.steps == 1 else "take"
            self._say(f"{rate}: {steps} {takes} about {settings.steps * mean_s / 60:.1f} minutes.")
            return settings.steps
        room = (1.0 - _SHARE_OF_LOOKS) * (self._steps_s - self._look_s)
        n_steps = max(1, int(room / mean_s))
        self._say(
            f"{rate}: there is time for {number_of(n_steps, 'step')}, {n_steps * tokens:,} tokens."
            + (" A draft needs more to learn: give it more minutes." if n_steps < _FEW_STEPS else "")
        )
        return n_steps

    def _train(self, network: Any, optimisers: Optimisers, state: Progress, held_out: HeldOut) -> None:
        n_steps = state.n_steps
        groups = self._groups(network, n_steps)
        curve = LossCurve(self._work / "losses.tsv", state.step)
        n_looks = _LOOKS
        if self._look_s:
            n_looks = max(1, min(_LOOKS, int(_SHARE_OF_LOOKS * self._steps_s / self._look_s)))
        every = max(1, n_steps // n_looks)
        if state.step == 0:
            self._say("Measuring the draft before training.")
            self._look(network, state, held_out, curve)
        self._say(f"Training: {number_of(n_steps - state.step, 'step')}.")
        begun = saved = self._limit.spent_s
        before, first = state.seconds, state.step
        bar = progress_bar(n_steps, "step", initial=state.step) if self._shown else None
        try:
            while state.step < n_steps:
                if state.step % STEPS_OF_GROUP == 0 and not groups.is_written(state.step):
                    state.save()  # so that the draft that writes texts is the one that goes on from here
                batch: Batch = self._states.of(groups.batch(state.step))
                loss = train_step(self._kind, network, optimisers, batch, state.step, n_steps)
                state.recent.append(loss)
                state.step += 1
                taken_s = self._limit.spent_s - begun
                state.seconds = before + taken_s
                n_more = self._steps_s * (state.step - first) / max(taken_s, 1e-9)
                if state.step + n_more < n_steps:  # steps have become slower: the learning rate falls sooner
                    state.n_steps = n_steps = state.step + int(n_more)
                if bar is not None:
                    bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
                    bar.update(1)
                if state.step % every == 0 or state.step == n_steps:
                    self._look(network, state, held_out, curve)
                if self._limit.spent_s - saved > _CHECKPOINT_S or state.step == n_steps:
                    state.save()
                    saved = self._limit.spent_s
        finally:
            if bar is not None:
                bar.close()

    def _look(self, network: Any, state: Progress, held_out: HeldOut, curve: LossCurve) -> None:
        """One more line of the curve."""
        betas = held_out.some(_TEXTS_OF_LOOK).betas(self._target, self._kind, network, self._cover)
        loss = sum(state.recent) / len(state.recent) if state.recent else float("nan")
        state.recent.clear()
        tokens = state.step * self._settings.batch * self._settings.length
        alphas = [alpha_of(betas[temperature])[0] for temperature in TEMPERATURES_SHOWN]
        curve.add((state.step, tokens, loss, *alphas, state.seconds))

    def _side_by_side(self, draft: Model | Draft) -> tuple[Model | Draft, int]:
        """(what drafts, guesses a round): the draft, or the earlier ones and the draft, in every round."""
        gamma = self._kind.gamma
        if self._cover is None:
            return draft, gamma
        return Ensemble(*self._cover.drafts, draft, adaptive=False), gamma * (1 + len(self._cover.drafts))

    def _measured(self, network: Any, state: Progress, held_out: HeldOut) -> TrainedDraft:
        """The summary: the draft of random weights, or that it began with, beside what it has become."""
        settings, kind = self._settings, self._kind
        self._say("Measuring the draft after training, and as it was before.")
        if self._measuring_s > self._limit.left_s:
            share = self._limit.left_s / self._measuring_s
            held_out = held_out.some(max(1, int(share * self._plan.n_held_out)))
        first = self._fresh()
        betas = [held_out.betas(self._target, kind, one, self._cover) for one in (first, network)]
        with tempfile.TemporaryDirectory(dir=self._work) as written:
            kind.export(first, Path(written))
            pairs: list[tuple[Model, Model | Draft]] = [kind.open(Path(written)), kind.open(self._folder)]
            figures = [
                DraftFigures(
                    {temperature: alpha_of(found[temperature]) for temperature in TEMPERATURES_SHOWN},
                    held_out.tokens_per_call(pair[0], *self._side_by_side(pair[1]), settings.threads),
                )
                for found, pair in zip(betas, pairs, strict=True)
            ]
        return TrainedDraft(
            folder=str(self._folder),
            kind=kind.name,
            target=self._target.path.name,
            n_parameters=sum(weight.numel() for weight in network.parameters() if weight.requires_grad),
            n_steps=state.n_steps,
            n_tokens=state.n_steps * settings.batch * settings.length,
            minutes=state.seconds / 60.0,
            losses=str(self._work / "losses.tsv"),
            before=figures[0],
            after=figures[1],
            gains={t: gain(betas[0][t], betas[1][t]) for t in TEMPERATURES_SHOWN},
            words=self._words(),
        )

    def _words(self) -> tuple[str, ...]:
        found = list(self._kind.words)
        if self._cover is not None:
            n_earlier = number_of(len(self._cover.drafts), "earlier draft")
            found.append(f"figures are of {n_earlier} and this one, side by side; before: this one untrained")
        picture = self._work / "losses.png"
        if find_spec("matplotlib") is not None:
            draw_losses(self._work / "losses.tsv", picture)
            found.append(f"picture: {picture}")
        return tuple(found)
