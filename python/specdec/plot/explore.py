"""`explore`: one prompt decoded repeatedly, with sliders for the settings of speculation."""

from __future__ import annotations

import base64
import io
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from html import escape
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdec import theory
from specdec.analysis.arguments import drafts_by_name, name_of
from specdec.checks import check_integer
from specdec.decoding.generate import generate
from specdec.decoding.options import DecodingOptions
from specdec.decoding.result import Result
from specdec.drafts.draft import Draft
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.errors import InputError, MissingPackageError, SpecdecError, shown
from specdec.models.loading import as_model
from specdec.models.model import ModelLike, Prompt
from specdec.plot.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILION,
    Axes,
    label_axes,
    pyplot,
    styled,
)
from specdec.tables import marked
from specdec.trace import Trace
from specdec.verification.rules import DECODING_RULES, DecodingRule

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any


_SIZE: Final = (13.0, 3.6)  # inches
_KEPT: Final = 64
"""Number of cached runs, for going back with a slider."""
_WIDGET_MIME: Final = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class ExplorerSettings:
    """Settings of an `Explorer`'s controls; `gamma` 0 is plain decoding, `lenience` 1 the exact rule."""

    draft: str
    gamma: int
    temperature: float = 0.0
    verify: DecodingRule = "auto"
    lenience: float = 1.0


class Explorer:
    """A run of one prompt, its figure and controls; made by `specdec.explore`.

    A notebook with a kernel shows controls and a live figure; elsewhere the figure is static. `settings` and
    `result` are those shown, `drafts` the choices, and `plain` is the prompt decoded greedily without a
    draft, which measures t(1).
    """

    def __init__(
        self, target: ModelLike, draft: DraftLike | Mapping[str, DraftLike], prompt: Prompt,
        settings: Mapping[str, Any], *, max_gamma: int, **options: Any,
    ) -> None:  # fmt: skip
        pyplot()
        self._max_gamma = check_integer("max_gamma", max_gamma, 1)
        options["max_new_tokens"] = check_integer("max_new_tokens", options["max_new_tokens"], 1)
        options["seed"] = check_integer("seed", options["seed"], 0, 2**64 - 1)
        self._options = options
        self._target, self._prompt = as_model("target", target), prompt
        self.drafts = _named(draft, self._target)
        self.plain = generate(self._target, None, prompt, **self._options)
        if not isinstance(self.plain, Result):
            raise InputError("prompt is several prompts; expected one")
        self._runs: dict[ExplorerSettings, Result] = {}
        first = next(iter(self.drafts))
        self.settings = ExplorerSettings(first, min(self.drafts[first].gamma, self._max_gamma))
        self.result = self.plain
        self.set(**settings)
        self._widget: Any = None

    def set(self, **changes: Any) -> Explorer:
        """Change fields of `settings`, as the controls do, decode again, and return this explorer.

        For an invalid setting or combination it raises InputError and changes nothing.
        """
        names = [field.name for field in fields(ExplorerSettings)]
        for name in changes:
            if name not in names:
                raise InputError(f"{shown(name)} is not a setting; expected {', '.join(names)}")
        asked = replace(self.settings, **changes)
        if not isinstance(asked.draft, str) or asked.draft not in self.drafts:
            raise InputError.of("draft", asked.draft, f"one of {', '.join(map(repr, self.drafts))}")
        asked = replace(asked, gamma=check_integer("gamma", asked.gamma, 0, self._max_gamma))
        options = DecodingOptions(**{name: getattr(asked, name) for name in names[1:]})
        how = {name: getattr(options, name) for name in names[1:]}
        settings = replace(asked, **how)
        if settings not in self._runs:
            result = generate(self._target, self.drafts[asked.draft], self._prompt, **how, **self._options)
            while len(self._runs) >= _KEPT:
                del self._runs[next(iter(self._runs))]
            self._runs[settings] = result
        self.settings, self.result = settings, self._runs[settings]
        return self

    @property
    def trace(self) -> Trace:
        """Trace of the shown run, with t(1) measured by plain decoding."""
        return self.result.trace.against(self.plain.trace)

    def summary(self) -> str:
        """Statistics of the shown run, and below them tokens per second with the draft and without."""
        trace = self.trace
        found = [f"{trace.tokens_per_call:.2f} tokens per target forward pass"]
        if trace.n_drafted:
            found += [
                f"α = {trace.acceptance_rate:.2f}",
                f"{trace.n_accepted} of {trace.n_drafted} draft tokens accepted",
                f"c = {trace.cost_coefficient:.2f}",
            ]
            predicted = trace.predicted_speedup
            if not math.isnan(predicted):
                found.append(f"speed-up {marked(f'{predicted:.2f}', trace.invalid_prediction)}, predicted")
        speeds = f"{trace.tokens_per_s:.0f} tokens per second"
        without = f", {self.plain.trace.tokens_per_s:.0f} without a draft" if trace.n_drafted else ""
        return f"{', '.join(found)}\n{speeds}{without}"

    @styled
    def figure(self) -> Figure:
        """Draw the shown run: its rounds, acceptance by position, and tokens per pass over gamma."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=_SIZE, layout="constrained", dpi=pyplot().rcParams["figure.dpi"])
        left, middle, right = figure.subplots(1, 3, width_ratios=(4, 2, 3))
        _rounds(left, self.trace)
        _by_position(middle, self.trace)
        _by_gamma(right, self)
        figure.suptitle(self.summary(), fontsize=10.0, x=0.01, ha="left")
        return figure

    def png(self) -> bytes:
        """Return the figure as PNG data."""
        file = io.BytesIO()
        self.figure().savefig(file, format="png")
        return file.getvalue()

    def widget(self) -> Any:
        """Return the controls and the figure, an ``ipywidgets.VBox``."""
        if self._widget is None:
            self._widget = _controls(self)
        return self._widget

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Show the static figure, and in a kernel the controls."""
        found = {"text/plain": repr(self), "image/png": base64.b64encode(self.png()).decode("ascii")}
        if _in_kernel():
            found[_WIDGET_MIME] = self.widget()._repr_mimebundle_()[_WIDGET_MIME]
        return found

    def __repr__(self) -> str:
        return f"<specdec.Explorer: {repr(self.settings).partition('(')[2][:-1]}>"


def explore(
    target: ModelLike,
    draft: DraftLike | Mapping[str, DraftLike],
    prompt: Prompt,
    *,
    max_gamma: int = 12,
    max_new_tokens: int = 60,
    seed: int = 0,
    n_threads: int | None = None,
    **settings: Any,
) -> Explorer:
    """Decode one prompt with sliders for gamma, temperature, rule, lenience and draft.

    A notebook shows the controls and a live figure: each round with its accepted, recovered, bonus and
    rejected tokens, acceptance by position, and tokens per pass over gamma by equation (1) at the measured
    acceptance rate. Without a kernel the figure is static, and `Explorer.set` changes it.

    Parameters
    ----------
    target, draft, prompt, max_new_tokens, seed, n_threads
        As in `specdec.generate`; a mapping of names to drafts offers a choice.
    max_gamma : int, default 12
        End of the gamma slider, 1 to 1024.
    **settings
        Initial fields of `ExplorerSettings`; by default the first draft at its own gamma, temperature 0, and
        the exact rule.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As in `specdec.generate`.
    MissingPackageError
        If matplotlib is not installed, or in a notebook ipywidgets: ``pip install ipywidgets matplotlib``.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> specdec.explore(target, {"model": draft, "copy": specdec.drafts.PromptLookup()}, "Once upon a time")
    """
    if _in_kernel():
        _widgets()
    return Explorer(
        target, draft, prompt, settings, max_gamma=max_gamma, max_new_tokens=max_new_tokens, seed=seed,
        n_threads=n_threads,
    )  # fmt: skip


def _named(draft: DraftLike | Mapping[str, DraftLike], target: Any) -> dict[str, Draft]:
    """Return the drafts by name."""
    if not isinstance(draft, Mapping):
        opened = as_draft(target, draft)
        return {name_of(opened.identity): opened}
    found = {}
    for name, one in drafts_by_name("draft", target, draft).items():
        try:
            found[name] = as_draft(target, one)
        except InputError as error:
            raise InputError(f"draft {name!r}: {error}") from None
    return found


def _in_kernel() -> bool:
    """Whether this is a notebook's kernel."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


_OWN: Final = {
    "correction": ("recovered token", ORANGE), "bonus": ("bonus token", BLUE),
    "target": ("without a draft", GREY),
}  # fmt: skip
"""Name and color of a round's last token by its origin."""


def _rounds(ax: Axes, trace: Trace) -> None:
    """Draw a bar per round: accepted draft tokens, the target's own, and below the line rejected ones."""
    numbers = np.arange(1, trace.n_calls + 1)
    kept = np.array([r.kept for r in trace.rounds])
    accepted = np.array([min(r.n_accepted, r.kept) for r in trace.rounds])
    rejected = np.array([r.depth for r in trace.rounds]) - accepted
    ax.bar(numbers, accepted, 0.8, color=GREEN, label="accepted draft tokens")
    for origin, (label, color) in _OWN.items():
        own = np.array([r.origin[-1] == origin for r in trace.rounds]) * (kept - accepted)
        if own.any():
            ax.bar(numbers, own, 0.8, bottom=accepted, color=color, label=label)
    ax.bar(numbers, -rejected, 0.8, color=VERMILION, hatch="//", edgecolor="white", linewidth=0.0,
           label="rejected draft tokens")  # fmt: skip
    ax.axhline(0.0, color=BLACK, linewidth=0.8)
    label_axes(ax, "Tokens of each round", "round", "tokens", whole="yx")
    ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _by_position(ax: Axes, trace: Trace) -> None:
    """Draw the share of rounds that accepted their first, second, ... draft token."""
    shares = trace.acceptance_by_position
    ax.bar(np.arange(1, len(shares) + 1), shares, 0.8, color=GREEN)
    label_axes(ax, "Acceptance by position", "position in the draft", "", ylim=(0.0, 1.0), whole="x")


def _by_gamma(ax: Axes, explorer: Explorer) -> None:
    """Draw tokens per pass over gamma: equation (1) at the measured alpha, and this run."""
    trace, settings = explorer.trace, explorer.settings
    gammas = np.arange(0, explorer._max_gamma + 1)
    alpha = trace.acceptance_rate
    if trace.n_drafted and not math.isnan(trace.expected_tokens_per_call):  # chains
        ax.plot(gammas, theory.expected_tokens(alpha, gammas), color=GREY, linestyle="--",
                label=f"equation (1), α = {alpha:.2f}")  # fmt: skip
    for run_settings, result in explorer._runs.items():
        if replace(run_settings, gamma=settings.gamma) == settings and run_settings != settings:
            ax.plot([run_settings.gamma], [result.trace.tokens_per_call], "o", color=GREY, label="_")
    ax.plot([settings.gamma], [trace.tokens_per_call], "*", color=BLUE, markersize=14.0, label="this run")
    label_axes(
        ax, "Tokens per pass", "γ, draft tokens per round", "", xlim=(-0.5, gammas[-1] + 0.5),
        whole="x",
    )  # fmt: skip
    ax.set_ylim(bottom=0.0)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _widgets() -> Any:
    """Import ipywidgets."""
    try:
        import ipywidgets
    except ImportError:
        needs = "specdec.explore needs ipywidgets in a notebook, which is not installed"
        raise MissingPackageError(f"{needs}: pip install 'specdec-cpu[explore]'") from None
    return ipywidgets


def _controls(explorer: Explorer) -> Any:
    """Make sliders and menus, the figure, and the text of the run round by round."""
    w = _widgets()
    settings = explorer.settings

    def slider(name: str, control: Any, low: float, high: float, label: str = "", **step: float) -> Any:
        return control(
            value=getattr(settings, name), min=low, max=high, description=label or name,
            continuous_update=False, **step,
        )  # fmt: skip

    controls = {
        "draft": w.Dropdown(options=list(explorer.drafts), value=settings.draft, description="draft"),
        "gamma": slider("gamma", w.IntSlider, 0, explorer._max_gamma, "γ"),
        "temperature": slider("temperature", w.FloatSlider, 0.0, 2.0, step=0.1),
        "verify": w.Dropdown(options=list(DECODING_RULES), value=settings.verify, description="rule"),
        "lenience": slider("lenience", w.FloatSlider, 0.05, 1.0, step=0.05),
    }
    picture = w.Image(value=explorer.png(), format="png")
    text, complaint = w.HTML(value=explorer.result._repr_html_()), w.HTML()

    def show(_: Any) -> None:
        try:
            explorer.set(**{name: control.value for name, control in controls.items()})
        except SpecdecError as error:  # invalid combination; keep the figure
            complaint.value = f"<b>{escape(str(error))}</b>"
            return
        complaint.value = ""
        picture.value, text.value = explorer.png(), explorer.result._repr_html_()

    for control in controls.values():
        control.observe(show, names="value")
    row = w.Layout(flex_flow="row wrap")
    return w.VBox([w.Box(list(controls.values()), layout=row), complaint, picture, text])
