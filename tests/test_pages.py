"""The Python snippets of the guides, run page by page as a reader would."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import command_line
import specdec
from specdec import drafts

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [
    "GENERATING", "GETTING_STARTED", "HOW_IT_WORKS", "MODELS", "SERVER", "STRUCTURED_OUTPUT",
    "TROUBLESHOOTING", "WHICH_DRAFT",
]  # fmt: skip
"""Pages whose ```python blocks run one after the other in one process."""

SETTINGS = "from specdec.analysis import prediction\nprediction._ENOUGH_S = 0.2\n"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the pages' paths exist: the packaged models, one with a chat template."""
    path = tmp_path_factory.mktemp("pages")
    embedded = Path(specdec.__file__).parent / "embedded"
    (path / "path" / "to").mkdir(parents=True)
    names = {
        "model": "target",
        "target": "target",
        "small": "draft",
        "draft": "draft",
        "chat-model": "target",
    }
    for name, source in names.items():
        shutil.copytree(embedded / source, path / "path" / "to" / name)
    (path / "prompts.txt").write_text("Once upon a time\nIt was a dark night\n", encoding="utf-8")
    (path / "path/to/chat-model/chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return path


def test_every_listed_page_has_snippets() -> None:
    assert [page for page in PAGES if not snippets(page)] == []


def snippets(page: str) -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(page: str, folder: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SETTINGS + "".join(snippets(page))], cwd=folder, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.oracle
def test_snippets_of_training_run(folder: Path) -> None:
    """With one step instead of ten minutes; it needs PyTorch."""
    (source, *others), given = snippets("TRAINING"), "TrainingOptions(minutes=10)"
    assert not others and given in source
    source = source.replace(given, "TrainingOptions(steps=1, length=32, batch=2)")
    run = subprocess.run([sys.executable, "-c", source], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.oracle
def test_snippets_of_many_machines_run(folder: Path) -> None:
    """On a Ray cluster of this machine; the sweep is short and measures no times."""
    pytest.importorskip("ray")
    source, given = "".join(snippets("MANY_MACHINES")), 'formats=("bf16", "int8"))'
    assert source.count(given) == 1
    # local: not the cluster that a test in another process may have started
    how = '"local", num_cpus=2, include_dashboard=False, log_to_driver=False'
    start = f"import ray\nray.init({how})\n"
    source = start + source.replace(given, f"{given[:-1]}, n_tokens=20, timing=False)")
    run = subprocess.run([sys.executable, "-c", source], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert len((folder / "out.jsonl").read_text("utf-8").splitlines()) == 2


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site write them."""
    headings = re.findall(r"^#+ (.*)", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_headings_lead_somewhere() -> None:
    wrong = []
    for page in [*DOCS.glob("*.md"), *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md"))]:
        for path, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#([^)\s]+)\)", page.read_text("utf-8")):
            linked = page.parent / path if path else page
            if linked.suffix == ".md" and anchor not in slugs(linked):
                wrong.append(f"{page.name}: {path}#{anchor}")
    assert wrong == []


def test_how_it_works_names_what_exists() -> None:
    """Each function, file and folder of the core and the package that the page names."""
    page, csrc = (DOCS / "HOW_IT_WORKS.md").read_text("utf-8"), DOCS.parent / "csrc"
    sources = "\n".join(path.read_text("utf-8") for path in csrc.rglob("*.[ch]"))
    names = set(re.findall(r"\b(sd_\w+)", page)) | {"open_round", "propose", "forward", "commit"}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", sources)] == []
    files = re.findall(r"`((?:python|base|beam|decode|draft|model|verify)/[\w./*]*)`", page)
    assert len(files) > 20
    roots = {file: DOCS.parent if file.startswith("python/") else csrc for file in files}
    assert [file for file in files if not [*roots[file].glob(file.rstrip("/"))]] == []


def test_coming_from_names_what_exists() -> None:
    """Each option, name, setting and field of the right column, and the refused fields."""
    page = (DOCS / "COMING_FROM.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+) \| (.+) \|$", page, re.MULTILINE)
    pairs = [pair for pair in rows if pair[0] not in ("theirs", "---")]
    ours = [right if right != "the same" else left for left, right in pairs if "the same" not in right[1:]]
    known = "".join(command_line.run(verb, "--help").output for verb in ("serve", "generate", "chat"))
    options = {option for cell in ours for option in re.findall(r"`(--[a-z-]+)", cell)}
    assert len(options) > 25 and [one for one in sorted(options) if f"{one} " not in known] == []
    for name in re.findall(r"(?:specdec|drafts)\.(\w+)", " ".join(ours)):
        assert hasattr(specdec, name) or hasattr(drafts, name), name
    settings = {field.name for field in fields(specdec.DecodingOptions)}
    text = "".join(path.read_text("utf-8") for path in (DOCS.parent / "python/specdec/serve").glob("*.py"))
    words = {word for cell in ours for word in re.findall(r"`([a-z_]{5,})=?`", cell)}
    others = {"messages", "chat_template_kwargs"}
    assert [one for one in sorted(words - settings - others) if not re.search(rf"\b{one}\b", text)] == []
    for name in re.findall(r"`(\w+)`", page.partition("Refused: ")[2].partition("\n")[0]):
        assert f'"{name}"' in text


def test_troubleshooting_quotes_messages_that_exist() -> None:
    page = (DOCS / "TROUBLESHOOTING.md").read_text("utf-8")
    quoted = [
        part for line in page.splitlines() if line[:3] == "## " for part in re.findall(r'"(.+?)"', line)
    ]
    package = DOCS.parent / "python" / "specdec"
    code = " ".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    assert len(quoted) == 8
    assert [text for text in quoted if text.removesuffix(" ...").removeprefix("expected ") not in code] == []
