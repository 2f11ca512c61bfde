"""The documentation site: guides, notebooks, the public names, the changelog. `make docs` builds it.

The source folder is the root of the repository, so that links between Markdown files are the same on the site
and in the repository. The package is imported: signatures are those that Python shows.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode, math_block
from docutils.utils.math.latex2mathml import tex2mathml
from numpydoc.xref import DEFAULT_LINKS

import specdec

sys.path.insert(0, str(Path(__file__).parent))
import files

PAGES = {
    "Guides": [
        "docs/GETTING_STARTED",
        "docs/WHICH_DRAFT",
        "docs/MODELS",
        "docs/GENERATING",
        "docs/STRUCTURED_OUTPUT",
        "docs/SERVER",
        "docs/COMING_FROM",
        "docs/EVALUATION",
        "docs/TRAINING",
        "docs/MANY_MACHINES",
        "docs/COMMAND_LINE",
        "docs/HOW_IT_WORKS",
        "docs/NUMERICS",
        "docs/ARCHITECTURE",
        "docs/TROUBLESHOOTING",
        "docs/GLOSSARY",
    ],
    "Notebooks": [
        "notebooks/01_quickstart",
        "notebooks/02_why_it_is_exact",
        "notebooks/03_choosing_gamma",
        "notebooks/04_acceptance_rates",
        "notebooks/05_drafts",
        "notebooks/06_translation",
        "notebooks/07_evaluation",
        "notebooks/08_learning",
    ],
    "Reference": [
        "docs/site/api/generating",
        "docs/site/api/models",
        "docs/site/api/measuring",
        "docs/site/api/ray",
        "docs/site/api/drafts",
        "docs/site/api/training",
        "docs/site/api/verification",
        "docs/site/api/theory",
        "docs/site/api/plot",
        "docs/site/api/reference",
        "docs/site/api/errors",
    ],
    "Project": [
        "CHANGELOG",
        "CONTRIBUTING",
        "benchmarks/*",
        "tests/fuzz/README",
        "training/README",
        "python/specdec/embedded/README",
    ],
}
"""Every page but the first, which is README.md, under its heading in the sidebar."""

BELOW = {
    "benchmarks/README": {"Results": ["benchmarks/results/*/*"]},
    "docs/ARCHITECTURE": {"Rooms": ["docs/site/files", "csrc/*/README"]},
}
"""Pages listed under another page in the sidebar."""

project = "specdec"
author = "specdec authors"
version = release = specdec.__version__
project_copyright = "specdec authors, MIT license"

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc"]
root_doc = "README"
include_patterns = [
    f"{page}.*" for group in (PAGES, *BELOW.values()) for pages in group.values() for page in pages
]
include_patterns.append(f"{root_doc}.md")
exclude_patterns = ["build", "dist", ".*"]
suppress_warnings = ["myst.header"]  # a heading may be two levels below the one before it
nitpicky = True  # an unknown name is a warning, and `make docs` takes warnings for errors
highlight_language = "none"  # of a block that names no language

html_math_renderer = "mathml"
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

default_role = "py:obj"
add_module_names = False
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"  # the docstrings say the types
autodoc_mock_imports = ["torch", "transformers"]  # which only training needs
numpydoc_show_class_members = False  # autodoc shows them
numpydoc_attributes_as_param_list = True
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"  # but for the names in numpydoc_xref_aliases

html_theme = "furo"
html_title = f"specdec {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["redirect"]  # index.html leads to the first page
html_copy_source = False


def add_contents(app: Any, page: str, source: list[str]) -> None:
    """Append the sidebar's list of subordinate pages to a page, and the index to the file index."""
    groups = PAGES if page == root_doc else BELOW.get(page, {})
    if page == "docs/site/files":
        source[0] += f"\n{files.index()}\n"
    for caption, pages in groups.items():
        entries = "\n".join(f"/{entry}" for entry in pages)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n{entries}\n```\n"


def public_names() -> dict[object, str]:
    """Each public class and function with the name under which users reach it."""
    names = {}
    for space in ("specdec.checkpoints", "specdec.tokenizer", "specdec.drafts", "specdec"):
        module = find(space)
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                names[value] = f"{space}.{name}"
    return names


def find(name: str) -> Any:
    """The object of a dotted name.

    Raises
    ------
    AttributeError
        If there is none.
    """
    value: Any = specdec
    for part in name.split(".")[1:]:
        try:
            value = getattr(value, part)
        except AttributeError:
            if not hasattr(value, "__path__"):
                raise
            try:
                value = importlib.import_module(f"{value.__name__}.{part}")
            except ModuleNotFoundError as error:
                raise AttributeError(name) from error
    return value


def resolve(app: Any, env: Any, node: Any, content: Any) -> Any:
    """What stands for a name in backticks that is no entry of the page's module.

    A name that begins with `specdec.` must exist: it becomes a link if it has a public name, and is an error
    if there is no such object. A class is looked for in `specdec` and `specdec.drafts`. Other names are
    parameters, attributes and types of other packages; they stay as they are.
    """
    target = node["reftarget"]
    if node.get("refdomain") != "py":
        return None
    if target.startswith("specdec."):
        candidates = [target]
    elif target[:1].isupper():
        candidates = [f"specdec.{target}", f"specdec.drafts.{target}"]
    else:
        return content
    for name in candidates:
        try:
            value = find(name)
        except AttributeError:
            continue
        public = public_names().get(value, name) if isinstance(value, Hashable) else name
        domain = env.get_domain("py")
        link = domain.resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, content)
        return link or content
    return None if target.startswith("specdec.") else content


numpydoc_xref_aliases = {name: name for name in DEFAULT_LINKS}  # no links to other sites
numpydoc_xref_aliases |= {public.rpartition(".")[2]: public for public in public_names().values()}


def show_formula(writer: Any, node: Any) -> None:
    """Write a formula as MathML, which browsers draw without a script."""
    writer.body.append(tex2mathml(node.astext(), as_block=isinstance(node, math_block)))
    raise SkipNode


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (show_formula, None), (show_formula, None))
    app.connect("source-read", add_contents)
    app.connect("missing-reference", resolve)
