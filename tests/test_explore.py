"""`specdec.explore` shows the requested run, with controls and without."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from specdec import Explorer
from specdec.errors import InputError, MissingPackageError
from toy_pair import load_pair

pytestmark = pytest.mark.notebook

PROMPT = "ab ab"
Pair = tuple[specdec.Model, specdec.Model]


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    """matplotlib without a screen; closes all figures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield
    assert pyplot.get_fignums() == []


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return load_pair(tmp_path_factory.mktemp("pair"), amount=0.2)


@pytest.fixture
def explorer(pair: Pair) -> Explorer:
    target, draft = pair
    drafts = {"model": draft, "copy": specdec.drafts.PromptLookup()}
    return specdec.explore(target, drafts, PROMPT, max_new_tokens=20, gamma=3, temperature=1.0, n_threads=1)


def test_it_shows_the_run_of_its_settings(pair: Pair, explorer: Explorer) -> None:
    target, draft = pair
    out = specdec.generate(target, draft, PROMPT, gamma=3, temperature=1.0, max_new_tokens=20, seed=0)
    assert explorer.result.tokens == out.tokens
    assert repr(explorer) == (
        "<specdec.Explorer: draft='model', gamma=3, temperature=1.0, verify='auto', lenience=1.0>"
    )
    explorer.set(draft="copy", temperature=0.0, verify="block")
    out = specdec.generate(target, specdec.drafts.PromptLookup(), PROMPT, gamma=3, max_new_tokens=20)
    assert explorer.result.tokens == out.tokens == explorer.plain.tokens
    assert explorer.result.trace.n_drafted == out.trace.n_drafted
    explorer.set(draft="model", verify="rejection", lenience=0.3)
    out = specdec.generate(target, draft, PROMPT, gamma=3, lenience=0.3, max_new_tokens=20)
    assert explorer.result.tokens == out.tokens


def test_the_figure_has_the_rounds_and_gamma(explorer: Explorer) -> None:
    explorer.set(gamma=5)
    explorer.set(gamma=3)
    trace = explorer.result.trace
    rounds, by_position, by_gamma = explorer.figure().axes
    heights = {bars.get_label(): np.array([bar.get_height() for bar in bars]) for bars in rounds.containers}
    accepted = [min(r.n_accepted, r.kept) for r in trace.rounds]
    assert heights["accepted draft tokens"].tolist() == accepted
    for label, origin in (("recovered token", "correction"), ("bonus token", "bonus")):
        own = [r.origin[-1] == origin and r.kept == len(r.tokens) for r in trace.rounds]
        assert any(own) and heights[label].tolist() == own
    assert (-heights["rejected draft tokens"]).tolist() == [
        r.n_drafted - n for r, n in zip(trace.rounds, accepted, strict=True)
    ]
    (bars,) = by_position.containers
    assert [bar.get_height() for bar in bars] == trace.acceptance_by_position
    curve, other, here = by_gamma.get_lines()
    alpha = trace.acceptance_rate
    assert curve.get_ydata() == pytest.approx([sum(alpha**i for i in range(g + 1)) for g in range(13)])
    assert (list(here.get_xdata()), list(here.get_ydata())) == ([3], [trace.tokens_per_call])
    assert list(other.get_xdata()) == [5]
    first, speeds = explorer.summary().split("\n")
    assert first.startswith(f"{trace.tokens_per_call:.2f} tokens per target forward pass, α = ")
    plain = explorer.plain.trace.tokens_per_s
    assert speeds == f"{trace.tokens_per_s:.0f} tokens per second, {plain:.0f} without a draft"
    assert explorer.png().startswith(b"\x89PNG")


def test_plain_decoding_and_trees(pair: Pair) -> None:
    """Plain decoding has no acceptance rate, trees have no curve."""
    target, draft = pair
    tree = specdec.drafts.ModelDraft(draft, tree=specdec.drafts.StaticTree((2, 1)))
    explorer = specdec.explore(target, tree, PROMPT, max_new_tokens=10, n_threads=1)
    assert explorer.settings.gamma == 4 and len(explorer.figure().axes[2].get_lines()) == 1
    explorer.set(gamma=0)
    assert explorer.result.tokens == explorer.plain.tokens and "α" not in explorer.summary()
    rounds = explorer.figure().axes[0]
    assert "without a draft" in [bars.get_label() for bars in rounds.containers]


def test_settings_that_are_refused_change_nothing(explorer: Explorer) -> None:
    before, result = explorer.settings, explorer.result
    for changes, message in (
        ({"gamma": 13}, "gamma is 13; expected an integer from 0 to 12"), ({"temperature": -1}, "temp"),
        ({"draft": "x"}, "draft is 'x'; expected one of 'model', 'copy'"),
        ({"verify": "block", "lenience": 0.5}, "lenience is 0.5; expected 1 with verify='block'"),
        ({"top_k": 3}, "'top_k' is not a setting; expected draft, gamma, temperature, verify, lenience"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            explorer.set(**changes)
        assert explorer.settings == before and explorer.result is result


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_gamma": 0}, "max_gamma is 0"), ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"draft": {}}, r"draft is \{\}; expected a dict"), ({"draft": {"": "x"}}, "draft has the name ''"),
        ({"draft": {"a": 5}}, "draft 'a': draft is an int"), ({"prompt": ["a", "b"]}, "prompt is several"),
    ],
)  # fmt: skip
def test_arguments_out_of_range(pair: Pair, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        specdec.explore(**{"target": pair[0], "draft": pair[1], "prompt": PROMPT, **options})


def test_where_ipywidgets_is_needed(pair: Pair, explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel; without one the figure is static."""
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    bundle = explorer._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "image/png"}
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    monkeypatch.setattr("specdec.plot.explore._in_kernel", lambda: True)
    with pytest.raises(MissingPackageError, match=r"pip install 'specdec-cpu\[explore\]'"):
        specdec.explore(*pair, PROMPT)


def test_controls_decode_again(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.plot.explore._in_kernel", lambda: True)
    bundle = explorer._repr_mimebundle_()
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.widget().model_id
    controls, complaint, picture, text = explorer.widget().children
    draft, gamma, _, rule, lenience = controls.children
    assert [control.value for control in controls.children] == ["model", 3, 1.0, "auto", 1.0]
    assert picture.value == explorer.png()
    before = picture.value
    gamma.value = 6
    assert explorer.settings.gamma == 6 and picture.value != before
    assert text.value == explorer.result._repr_html_()
    draft.value = "copy"
    assert explorer.settings.draft == "copy"
    shown = picture.value
    rule.value = "coupled"
    assert explorer.settings.verify == "coupled" and complaint.value == ""
    lenience.value = 0.5
    assert "expected 1 with verify=&#x27;coupled&#x27;" in complaint.value
    assert explorer.settings.lenience == 1.0 and picture.value != shown
    lenience.value = 1.0
    assert complaint.value == ""


def test_a_page_made_of_a_notebook_has_the_figure(tmp_path: Path) -> None:
    """What a kernel stores: the controls, and the picture for where there are none."""
    import nbformat
    from nbclient import NotebookClient

    code = (
        "import specdec\n"
        "specdec.explore(*specdec.embedded_pair(), 'Once upon a time', max_new_tokens=4, n_threads=1)"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute(cwd=str(tmp_path))
    (output,) = notebook.cells[0].outputs
    assert set(output.data) == {"text/plain", "image/png", "application/vnd.jupyter.widget-view+json"}
    assert base64.b64decode(output.data["image/png"]).startswith(b"\x89PNG")
