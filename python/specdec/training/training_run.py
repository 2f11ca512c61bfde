"""`train_draft`, which trains a draft for a target and writes its folder."""

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
_LOOKS = 20  # evaluations on some held-out texts during a training
_SHARE_OF_LOOKS = 0.1  # largest share of the training time for evaluations
_TEXTS_OF_LOOK = 4
_CHECKPOINT_S = 60.0
_FEW_STEPS = 100  # fewer steps train a draft too little


def train_draft(
    target: ModelLike | None, method: str, out: str | os.PathLike[str],
    options: TrainingOptions | None = None, *,
    prompts: str | os.PathLike[str] | Sequence[Prompt] | None = None, dtype: Dtype | None = None,
    progress: bool = False, say: Callable[[str], object] = lambda text: None,
) -> TrainedDraft:  # fmt: skip
    """Train a draft for a target; the same arguments again continue an interrupted training.

    Parameters
    ----------
    target : Model, path or hub name, or None
        None: the bundled target.
    method : str
        "small", "recurrent", "early-exit" or others, see docs/TRAINING.md.
    out : path-like
        Folder of the draft. Its folder ``training`` keeps texts, checkpoint, loss curve and summary.
    options : TrainingOptions, optional
        Loss, data, time limit and others.
    prompts : path-like, or sequence of prompts, optional
        A file with one prompt per line, or prompts; one tenth is held out if there are 20 or more. None: the
        BOS token.
    dtype : {None, "f32", "bf16", "int8", "int4"}
        Number format of a target given by path or name. None: the format of its files.
    progress : bool, default False
        Show a progress bar (needs tqdm).
    say : callable, optional
        Receives progress messages.

    Raises
    ------
    InputError
        Invalid arguments, or arguments that differ from the interrupted training in `out`.

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
        raise InputError.of("dtype", dtype, "None with a loaded target, or pass the target's path")
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
    """Return the text length of an interrupted training; None if there is none or it is unreadable."""
    try:
        stored = read_json_object(work / "settings.json").get("length")
    except CheckpointError:
        return None  # `TrainingSettings.check_same` reports the error
    return stored if type(stored) is int else None


def check_device(device: str | None) -> str:
    """Return the name of a working torch device. None: "cuda" if available, else "cpu"."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.ones(1, device=device).sum().item()
    except (RuntimeError, TypeError, AssertionError, ImportError, AttributeError) as error:
        reason = " ".join(str(error).split())[:120]
        expected = f"a torch device of this machine, such as 'cpu' ({reason})"
        raise InputError.of("device", device, expected) from error
    return str(device)


class _Training:
    """One training, from settings to the summary."""

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
        """Train, measure and write the draft; return the summary, also of a completed training."""
        asked = self._work / "settings.json"
        expected = "a new folder, or the folder of a training"
        if (self._folder / "config.json").exists() and not asked.exists():
            found = f"{self._folder}, which holds a model but no training"
            raise InputError.of("out", str(self._folder), expected, found)
        try:
            (self._work / "texts").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            found = f"{self._folder}, which cannot be created: {error.strerror}"
            raise InputError.of("out", str(self._folder), expected, found) from error
        summary = self._work / "summary.json"
        if asked.exists():
            self._settings.check_same(asked, self._prompts.name)
            if summary.exists():
                return TrainedDraft.load(summary)
        before = torch.get_num_threads()
        torch.set_num_threads(self._settings.threads)
        try:
            with torch.random.fork_rng(devices=[]):  # preserve the caller's random state
                trained = self._trained()
        finally:
            torch.set_num_threads(before)
        write_json(summary, trained.to_dict())
        return trained

    def _trained(self) -> TrainedDraft:
        self._plan = self._texts_planned()
        self._say("Building the network.")
        network = self._fresh()
        optimizers = Optimizers(network, self._trainer, self._settings.learning_rate)
        state = Progress(self._work / "checkpoint.pt", network, optimizers)
        resumed = state.load(self._settings.steps)
        if resumed:
            self._say(f"Continuing at step {state.step} of {state.n_steps}.")
        try:
            return self._finished(network, optimizers, state, resumed)
        except KeyboardInterrupt:
            kept = "the same command starts again"
            if state.n_steps:
                step = f"step {state.saved_step} of {state.n_steps}; the same command continues there"
                kept = f"{self._work} keeps texts and the checkpoint of {step}"
            self._say(f"Interrupted: {kept}.")
            raise

    def _finished(self, network: Any, optimizers: Optimizers, state: Progress, resumed: bool) -> TrainedDraft:
        """Run the remaining steps, write the draft's folder and measure it."""
        n_held_out = self._plan.n_held_out
        self._say(f"Generating held-out texts to measure the draft: {n_held_out} at each temperature.")
        held_out = HeldOut.written(self._target, self._prompts, self._settings, n_held_out)
        if not resumed:
            write_json(self._work / "plan.json", asdict(self._plan))
            # After everything that may be refused.
            write_json(self._work / "settings.json", asdict(self._settings))
            state.n_steps = self._planned(network)
            state.save()
        self._train(network, optimizers, state, held_out)
        self._trainer.export(network, self._folder)
        self._trainer.finish(self._folder, held_out.texts[1.0])
        return self._measured(network, state, held_out)

    def _fresh(self) -> Any:
        """Return the network before the first step."""
        seed_step(self._settings.seed, 0)
        return self._trainer.network().to(self._settings.device).train()

    def _token_counts(self) -> NDArray[np.int64]:
        """Count each token in the first texts and in the prompt file."""
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
        """Plan the number of texts, or read the plan of an interrupted training."""
        settings, path = self._settings, self._work / "plan.json"
        if path.exists():
            return TrainingPlan.load(path, settings.batch)
        whole = TrainingPlan.whole(settings.batch)
        if math.isinf(self._limit.seconds):
            return whole
        left_s, sizes = self._limit.left_s, {"length": settings.length, "batch": settings.batch}
        plan = TrainingPlan.within(left_s, self._speed, **sizes)
        if settings.data == "text":  # no generation
            plan = replace(plan, n_texts=whole.n_texts)
        self._say(
            f"The target generates {1.0 / self._speed.batch_s:.0f} tokens/s: time for {plan.n_texts} texts "
            f"of {settings.length} tokens, and {plan.n_held_out} held-out texts at each temperature."
        )
        return plan

    @property
    def _measuring_s(self) -> float:
        """Estimated seconds of the final measurement."""
        return self._speed.measuring_s(self._plan.n_held_out, self._settings.length)

    @property
    def _look_s(self) -> float:
        """Estimated seconds of an evaluation during training."""
        n_texts = min(_TEXTS_OF_LOOK, self._plan.n_held_out)
        return self._speed.reading_s(n_texts, self._settings.length)

    @property
    def _steps_s(self) -> float:
        """Remaining seconds for steps and evaluations."""
        return max(0.0, self._limit.left_s - self._measuring_s)

    def _planned(self, network: Any) -> int:
        """Return the number of steps, from the measured time of a step; generates the first texts."""
        settings = self._settings
        n_first = settings.steps or STEPS_OF_GROUP
        groups = self._groups(network, n_first)
        self._say("Generating the first training texts.")
        begun = self._limit.spent_s
        groups.batch(0)
        texts_s = (self._limit.spent_s - begun) / STEPS_OF_GROUP
        self._say("Timing a step.")
        step_s = seconds_of_step(
            self._trainer, network, lambda: self._states.of(groups.batch(0)), lambda: self._limit.spent_s,
            long_s=0.05 * self._steps_s,
        )  # fmt: skip
        is_whole = self._plan.n_texts == TrainingPlan.whole(settings.batch).n_texts
        mean_s = step_s + (texts_s / settings.passes if is_whole else 0.0)
        tokens = settings.batch * settings.length
        rate = f"A step of {tokens:,} tokens takes {step_s:.2f} s, its texts {texts_s:.2f} s"
        if settings.steps is not None:
            steps = number_of(settings.steps, "step")
            self._say(f"{rate}: {steps} in about {settings.steps * mean_s / 60:.1f} minutes.")
            return settings.steps
        available_s = (1.0 - _SHARE_OF_LOOKS) * (self._steps_s - self._look_s)
        n_steps = max(1, int(available_s / mean_s))
        few = " That is too few to learn much: increase minutes." if n_steps < _FEW_STEPS else ""
        steps = number_of(n_steps, "step")
        self._say(f"{rate}: time for {steps}, {n_steps * tokens:,} tokens.{few}")
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
                    state.save()  # the draft that writes the texts must equal the one a resume would load
                batch: Batch = self._states.of(groups.batch(state.step))
                loss = train_step(self._trainer, network, optimizers, batch, state.step, n_steps)
                state.recent.append(loss)
                state.step += 1
                taken_s = self._limit.spent_s - begun
                state.seconds = before + taken_s
                n_more = self._steps_s * (state.step - first) / max(taken_s, 1e-9)
                if state.step + n_more < n_steps:  # steps became slower, so decay the learning rate earlier
                    state.n_steps = n_steps = state.step + int(n_more)
                done(1, f"loss {loss:.3f}")
                if state.step % every == 0 or state.step == n_steps:
                    self._look(network, state, held_out, curve)
                if self._limit.spent_s - saved > _CHECKPOINT_S or state.step == n_steps:
                    state.save()
                    saved = self._limit.spent_s

    def _look(self, network: Any, state: Progress, held_out: HeldOut, curve: LossCurve) -> None:
        """Evaluate and append a line to the curve."""
        betas = held_out.some(_TEXTS_OF_LOOK).betas(self._target, self._trainer, network, self._earlier)
        loss = sum(state.recent) / len(state.recent) if state.recent else float("nan")
        state.recent.clear()
        tokens = state.step * self._settings.batch * self._settings.length
        alphas = [alpha_of(betas[temperature])[0] for temperature in TEMPERATURES_SHOWN]
        curve.add((state.step, tokens, loss, *alphas, state.seconds))

    def _measured(self, network: Any, state: Progress, held_out: HeldOut) -> TrainedDraft:
        """Measure the draft before and after training and return the summary."""
        settings, trainer = self._settings, self._trainer
        earlier = [] if self._earlier is None else self._earlier.drafts
        self._say("Measuring the draft before and after training.")
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
            found.append(f"figures are for {n_earlier} with this one; before: with this one untrained")
        picture = self._work / "losses.png"
        if find_spec("matplotlib") is not None:
            draw_losses(self._work / "losses.tsv", picture)
            found.append(f"picture: {picture}")
        return tuple(found)
