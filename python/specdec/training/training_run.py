"""`train_draft`: a draft trained for a target, from prompts to a folder."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.atomic_file import write_json
from specdec.checks import check_path
from specdec.drafts import Ensemble
from specdec.errors import CheckpointError, InputError, number_of, type_of
from specdec.fields import read_json_object
from specdec.models.loading import as_model, embedded_pair, load
from specdec.models.model import Model, ModelLike, Prompt
from specdec.models.number_formats import Dtype
from specdec.progress import counted
from specdec.threads import check_threads
from specdec.time_limit import TimeLimit
from specdec.training.held_out import TEMPERATURES_SHOWN, DraftFigures, HeldOut, TrainedDraft, alpha_of, gain
from specdec.training.loop import (
    LossCurve,
    Optimizers,
    Progress,
    draw_losses,
    seconds_of_step,
    seed_step,
    train_step,
)
from specdec.training.settings import TrainingOptions, TrainingSettings
from specdec.training.trainer import Batch, DraftTrainer, EarlierDrafts, TargetStates, trainer_type
from specdec.training.training_texts import (
    LENGTHS,
    STEPS_OF_GROUP,
    Prompts,
    TextGroups,
    TextWriter,
    TrainingPlan,
    WritingSpeed,
    affordable_length,
    continued,
)

_MINUTES = 10.0
_LOOKS = 20  # at some of the held-out texts, in a training
_SHARE_OF_LOOKS = 0.1  # of the time for the steps, at most
_TEXTS_OF_LOOK = 4
_CHECKPOINT_S = 60.0
_FEW_STEPS = 100  # with fewer a draft has hardly learned


def train_draft(
    target: ModelLike | None, method: str, out: str | os.PathLike[str],
    options: TrainingOptions | None = None, *,
    prompts: str | os.PathLike[str] | Sequence[Prompt] | None = None, dtype: Dtype | None = None,
    progress: bool = False, say: Callable[[str], object] = lambda text: None,
) -> TrainedDraft:  # fmt: skip
    """Train a draft for a target; called again with the same arguments, continue an interrupted training.

    Parameters
    ----------
    target : Model, path or hub name, or None
        None: the one in the package.
    method : str
        The method: "small", "recurrent", "early-exit" and others, see docs/TRAINING.md.
    out : path-like
        The draft's folder. Its folder ``training`` keeps texts, checkpoint, loss curve and summary.
    options : TrainingOptions, optional
        Loss, texts, minutes or steps, and others.
    prompts : path-like, or sequence of prompts, optional
        What texts begin with: a file with a prompt a line, or prompts, of which a tenth is held out if there
        are 20 or more. None: the token that begins a text.
    dtype : {None, "f32", "bf16", "int8", "int4"}
        Number format of a target that is given by path or name; None: that of its files.
    progress : bool, default False
        Show a progress bar (needs tqdm).
    say : callable, optional
        Takes progress messages: what is measured, and, at an interruption, what is kept.

    Raises
    ------
    InputError
        An argument that cannot be used, or other ones than those that the training in `out` began with.

    Examples
    --------
    >>> options = specdec.training.TrainingOptions(minutes=5)
    >>> print(specdec.training.train_draft(None, "small", "my-draft", options))
    """
    asked = TrainingOptions() if options is None else options
    if not isinstance(asked, TrainingOptions):
        raise InputError.of("options", asked, "TrainingOptions or None", type_of(asked))
    minutes = _MINUTES if asked.minutes is None else asked.minutes
    limit = TimeLimit(math.inf if asked.steps is not None else 60.0 * minutes)
    device = check_device(asked.device)
    if isinstance(target, Model) and dtype is not None:
        raise InputError.of("dtype", dtype, "None with a target that is loaded, or its path")
    if target is None:
        model = embedded_pair(dtype)[0]
    elif isinstance(target, str | os.PathLike):
        model = load(target, dtype)
    else:
        model = as_model("target", target)
    trainer, folder, threads = trainer_type(method), check_path("out", out), check_threads(asked.threads)
    n_ctx, speed, work = model.config.n_ctx, WritingSpeed(0.0, 0.0), folder / "training"
    given = asked.length or _stored_length(work)
    length = given or min(LENGTHS[0], n_ctx)
    if length > n_ctx:
        raise InputError.of("length", length, f"at most {n_ctx}, the target's context")
    if asked.steps is None and not (work / "summary.json").exists():
        say("Measuring how fast the target writes.")
        begun = Prompts.read(model, prompts, max(1, length // 2))
        speed = WritingSpeed.measured(model, begun, batch=asked.batch, n_threads=threads, limit=limit)
        length = given or affordable_length(speed, asked.batch, limit.left_s, n_ctx)
    found = Prompts.read(model, prompts, max(1, length // 2))
    settled = {
        "method": method, "length": length, "threads": threads, "device": device,
        "learning_rate": asked.learning_rate or trainer.learning_rate,
        "begin": None if asked.begin is None else str(check_path("begin", asked.begin)),
        "after": tuple(str(check_path("after", one)) for one in asked.after),
        "shape": {name: str(value) for name, value in asked.shape.items()},
        "target": f"{model.path} in {model.dtype}", "prompts": found.digest,
    }  # fmt: skip
    settings = TrainingSettings(**(vars(asked) | settled))
    return _Training(trainer(model, settings), found, folder, progress, say, limit, speed).run()


def _stored_length(work: Path) -> int | None:
    """Tokens of a text in a training that has begun; None if there is none, or it cannot be read."""
    try:
        stored = read_json_object(work / "settings.json").get("length")
    except CheckpointError:
        return None  # `TrainingSettings.check_same` says what is wrong
    return stored if type(stored) is int else None


def check_device(device: str | None) -> str:
    """The name of a device of torch that computes here; None: "cuda" where there is one, else "cpu"."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.ones(1, device=device).sum().item()
    except (RuntimeError, TypeError, AssertionError, ImportError, AttributeError) as error:
        reason = " ".join(str(error).split())[:120]
        expected = f"a device of torch on this machine, such as 'cpu' ({reason})"
        raise InputError.of("device", device, expected) from error
    return str(device)


class _Training:
    """One training, from what is asked for to the summary."""

    def __init__(
        self, trainer: DraftTrainer, prompts: Prompts, folder: Path, progress: bool,
        say: Callable[[str], object], limit: TimeLimit, speed: WritingSpeed,
    ) -> None:  # fmt: skip
        self._limit, self._trainer, self._prompts, self._speed = limit, trainer, prompts, speed
        self._folder, self._say, self._shown = folder, say, progress
        settings = self._settings = trainer.settings
        self._target = trainer.target
        self._plan = TrainingPlan.whole(settings.batch)
        self._work = folder / "training"
        trainer.token_counts, trainer.say = self._token_counts, say
        both: dict[str, Any] = {"temperature": settings.temperature, "n_threads": settings.threads}
        self._earlier = EarlierDrafts(self._target, settings.after, **both) if settings.after else None
        self._states = TargetStates(
            self._target, captures=trainer.captures, top=settings.top, earlier=self._earlier, **both
        )

    def run(self) -> TrainedDraft:
        """Train, measure, write the draft; or give the summary of a training that is done."""
        asked = self._work / "settings.json"
        expected = "a new folder, or a training's"
        if (self._folder / "config.json").exists() and not asked.exists():
            found = f"{self._folder}, which holds a model and no training"
            raise InputError.of("out", str(self._folder), expected, found)
        try:
            (self._work / "texts").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            found = f"{self._folder}, which cannot be made a folder: {error.strerror}"
            raise InputError.of("out", str(self._folder), expected, found) from error
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
        write_json(summary, trained.to_dict())
        return trained

    def _trained(self) -> TrainedDraft:
        self._plan = self._texts_planned()
        self._say("Making the network that is trained.")
        network = self._fresh()
        optimizers = Optimizers(network, self._trainer, self._settings.learning_rate)
        state = Progress(self._work / "checkpoint.pt", network, optimizers)
        going_on = state.load(self._settings.steps)
        if going_on:
            self._say(f"Goes on at step {state.step} of {state.n_steps}.")
        try:
            return self._finished(network, optimizers, state, going_on)
        except KeyboardInterrupt:
            kept = "the same command begins again"
            if state.n_steps:
                step = f"step {state.saved_step} of {state.n_steps}; the same command goes on from there"
                kept = f"{self._work} keeps texts and the checkpoint of {step}"
            self._say(f"Interrupted: {kept}.")
            raise

    def _finished(
        self, network: Any, optimizers: Optimizers, state: Progress, going_on: bool
    ) -> TrainedDraft:
        """The steps that are left, the draft's folder, its figures."""
        n_held_out = self._plan.n_held_out
        self._say(f"Writing the held-out texts that the draft is measured on: {n_held_out} twice.")
        held_out = HeldOut.written(self._target, self._prompts, self._settings, n_held_out)
        if not going_on:
            write_json(self._work / "plan.json", asdict(self._plan))
            # Not before what could be refused.
            write_json(self._work / "settings.json", asdict(self._settings))
            state.n_steps = self._planned(network)
            state.save()
        self._train(network, optimizers, state, held_out)
        self._trainer.export(network, self._folder)
        self._trainer.finish(self._folder, held_out.texts[1.0])
        return self._measured(network, state, held_out)

    def _fresh(self) -> Any:
        """The network before the first step."""
        seed_step(self._settings.seed, 0)
        return self._trainer.network().to(self._settings.device).train()

    def _token_counts(self) -> NDArray[np.int64]:
        """How often each token occurs in the first texts and in the file of prompts."""
        texts = self._groups(None, 1).group(0)
        written = [row[:end] for row, end in zip(texts.ids, texts.ends, strict=True)]
        read = np.array(self._prompts.text, np.int64)
        return np.bincount(np.concatenate([*written, read]), minlength=self._target.config.n_vocab)

    def _groups(self, network: Any, n_steps: int) -> TextGroups:
        def writers() -> Sequence[TextWriter]:
            data, found = self._settings.data, list[TextWriter]()
            if data in ("target", "mixture"):
                found.append(partial(continued, self._target, self._settings.threads))
            if data in ("draft", "mixture"):
                found.append(self._trainer.writer(network, self._work))
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
        if math.isinf(self._limit.seconds):
            return whole
        left_s, sizes = self._limit.left_s, {"length": settings.length, "batch": settings.batch}
        plan = TrainingPlan.within(left_s, self._speed, **sizes)
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
        return self._speed.measuring_s(self._plan.n_held_out, self._settings.length)

    @property
    def _look_s(self) -> float:
        """Estimated seconds of a look at some held-out texts."""
        n_texts = min(_TEXTS_OF_LOOK, self._plan.n_held_out)
        return self._speed.reading_s(n_texts, self._settings.length)

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
            self._trainer, network, lambda: self._states.of(groups.batch(0)), lambda: self._limit.spent_s,
            long_s=0.05 * self._steps_s,
        )  # fmt: skip
        is_whole = self._plan.n_texts == TrainingPlan.whole(settings.batch).n_texts
        mean_s = step_s + (texts_s / settings.passes if is_whole else 0.0)
        tokens = settings.batch * settings.length
        rate = f"A step of {tokens:,} tokens takes {step_s:.2f} s here, its texts {texts_s:.2f} s"
        if settings.steps is not None:
            steps = number_of(settings.steps, "step")
            self._say(f"{rate}: {steps} in about {settings.steps * mean_s / 60:.1f} minutes.")
            return settings.steps
        room = (1.0 - _SHARE_OF_LOOKS) * (self._steps_s - self._look_s)
        n_steps = max(1, int(room / mean_s))
        few = " A draft needs more to learn: give it more minutes." if n_steps < _FEW_STEPS else ""
        steps = number_of(n_steps, "step")
        self._say(f"{rate}: there is time for {steps}, {n_steps * tokens:,} tokens.{few}")
        return n_steps

    def _train(self, network: Any, optimizers: Optimizers, state: Progress, held_out: HeldOut) -> None:
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
        with counted(n_steps, "step", self._shown) as done:
            done(state.step)
            while state.step < n_steps:
                if state.step % STEPS_OF_GROUP == 0 and not groups.is_written(state.step):
                    state.save()  # so that the draft that writes texts is the one that goes on from here
                batch: Batch = self._states.of(groups.batch(state.step))
                loss = train_step(self._trainer, network, optimizers, batch, state.step, n_steps)
                state.recent.append(loss)
                state.step += 1
                taken_s = self._limit.spent_s - begun
                state.seconds = before + taken_s
                n_more = self._steps_s * (state.step - first) / max(taken_s, 1e-9)
                if state.step + n_more < n_steps:  # steps have become slower: the learning rate falls sooner
                    state.n_steps = n_steps = state.step + int(n_more)
                done(1, f"loss {loss:.3f}")
                if state.step % every == 0 or state.step == n_steps:
                    self._look(network, state, held_out, curve)
                if self._limit.spent_s - saved > _CHECKPOINT_S or state.step == n_steps:
                    state.save()
                    saved = self._limit.spent_s

    def _look(self, network: Any, state: Progress, held_out: HeldOut, curve: LossCurve) -> None:
        """Add a line to the curve."""
        betas = held_out.some(_TEXTS_OF_LOOK).betas(self._target, self._trainer, network, self._earlier)
        loss = sum(state.recent) / len(state.recent) if state.recent else float("nan")
        state.recent.clear()
        tokens = state.step * self._settings.batch * self._settings.length
        alphas = [alpha_of(betas[temperature])[0] for temperature in TEMPERATURES_SHOWN]
        curve.add((state.step, tokens, loss, *alphas, state.seconds))

    def _measured(self, network: Any, state: Progress, held_out: HeldOut) -> TrainedDraft:
        """The summary: the draft as it began, and what it has become."""
        settings, trainer = self._settings, self._trainer
        earlier = [] if self._earlier is None else self._earlier.drafts
        self._say("Measuring the draft after training, and as it was before.")
        if self._measuring_s > self._limit.left_s:
            share = self._limit.left_s / self._measuring_s
            held_out = held_out.some(max(1, int(share * self._plan.n_held_out)))
        first = self._fresh()
        betas = [held_out.betas(self._target, trainer, one, self._earlier) for one in (first, network)]
        with tempfile.TemporaryDirectory(dir=self._work) as written:
            trainer.export(first, Path(written))
            pairs = [trainer.open(folder) for folder in (Path(written), self._folder)]
            figures = [
                DraftFigures(
                    {temperature: alpha_of(found[temperature]) for temperature in TEMPERATURES_SHOWN},
                    held_out.tokens_per_call(
                        target,
                        Ensemble(*earlier, draft, adaptive=False) if earlier else draft,
                        trainer.gamma * (1 + len(earlier)),
                        settings.threads,
                    ),
                )
                for found, (target, draft) in zip(betas, pairs, strict=True)
            ]
        return TrainedDraft(
            str(self._folder), trainer.name, self._target.path.name,
            n_parameters=sum(weight.numel() for weight in network.parameters() if weight.requires_grad),
            n_steps=state.n_steps, n_tokens=state.n_steps * settings.batch * settings.length,
            minutes=state.seconds / 60.0, losses=str(self._work / "losses.tsv"),
            before=figures[0], after=figures[1],
            gains={t: gain(betas[0][t], betas[1][t]) for t in TEMPERATURES_SHOWN}, words=self._words(),
        )  # fmt: skip

    def _words(self) -> tuple[str, ...]:
        found = list(self._trainer.words)
        if self._earlier is not None:
            n_earlier = number_of(len(self._earlier.drafts), "earlier draft")
            found.append(f"figures are of {n_earlier} and this one, side by side; before: this one untrained")
        picture = self._work / "losses.png"
        if find_spec("matplotlib") is not None:
            draw_losses(self._work / "losses.tsv", picture)
            found.append(f"picture: {picture}")
        return tuple(found)
