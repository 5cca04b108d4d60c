"""The site of these pages, made by Sphinx and MyST: `.venv/bin/sphinx-build -W docs build/site`.

The site is whole by itself: a browser loads nothing from elsewhere, and pages open from a folder, without a server. A
link to a file outside this folder leads to a copy in the site. The build fails for a link to a page, a heading or a
file that is not there, and for a page that would load something.
"""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

DOCS = Path(__file__).resolve().parent

project = "quiltstream"
version = release = version_of("quiltstream")
extensions = ["myst_parser"]
myst_heading_anchors = 4  # headings are named as in the repository's own viewer
suppress_warnings = ["myst.header"]  # a page may leave a level of headings out
html_theme = "furo"
html_title = "quiltstream"
html_copy_source = False
html_use_index = False
html_show_copyright = False

#: The kinds of page, with the pages of this folder that are of each. Pages that are named nowhere are reference.
KINDS = {
    "Tutorials": ["tutorials/london-feeder", "tutorials/activity"],
    "How-to guides": [
        "planning",
        "show",
        "files",
        "messages",
        "streaming",
        "kafka",
        "pubsub",
        "gateway",
        "guides/one-machine",
        "guides/operate-with-compose",
        "guides/*",
    ],
    "Reference": ["settings", "cli", "releases", "ledger", "model"],
    "Explanation": [
        "explanation/why-dp-fails",
        "explanation/*",
        "promise",
        "threat-model",
        "beliefs",
        "mechanisms",
        "composition",
        "mathematics",
        "audit",
    ],
}

_MARKDOWN_LINK = re.compile(r"\]\((?P<file>[^)\s#:]+\.md)(?:#[^)\s]*)?\)")

#: What a browser loads by itself, from another host.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["'](?:https?:)?//"""
    r"""|<link\b(?=[^>]*\brel=["'](?:stylesheet|preload|preconnect|icon))[^>]*\bhref=["'](?:https?:)?//"""
    r"""|@import\s+(?:url\()?["']?(?:https?:)?//|\burl\(["']?(?:https?:)?//""",
    re.IGNORECASE,
)


def kinds() -> dict[str, list[str]]:
    """The pages of each kind, every page of the folder once."""
    left = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")} - {"index"}
    found: dict[str, list[str]] = {}
    for kind, patterns in KINDS.items():
        pages = [page for pattern in patterns for page in sorted(left) if Path(page).match(pattern)]
        found[kind] = list(dict.fromkeys(pages))
        left.difference_update(pages)
    found["Reference"] += sorted(left)
    return found


def complete(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add the table of contents to the first page, and make links to pages outside the folder links to files."""

    def outside(link: re.Match[str]) -> str:
        inside = (DOCS / page).parent.joinpath(link["file"]).resolve().is_relative_to(DOCS)
        return link[0] if inside else f"](path:{link['file']})"

    source[0] = _MARKDOWN_LINK.sub(outside, source[0])
    if page == "index":
        for kind, pages in kinds().items():
            source[0] += f"\n```{{toctree}}\n:caption: {kind}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def check(app: Sphinx, error: Exception | None) -> None:
    """Look for what the site would load from elsewhere.

    Raises:
        ExtensionError: a page or a style sheet loads something from another host.
    """
    made = [file for file in Path(app.outdir).rglob("*") if file.suffix in {".html", ".css"}]
    loading = [file for file in made if "_downloads" not in file.parts and _LOADED.search(file.read_text("utf-8"))]
    if error is None and loading:
        raise ExtensionError(f"these files would load something from another host: {', '.join(map(str, loading))}")


def setup(app: Sphinx) -> None:
    """Register the hooks."""
    app.connect("source-read", complete)
    app.connect("build-finished", check)
