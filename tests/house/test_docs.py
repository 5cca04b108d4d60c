"""Every block of Python and every `quiltstream` command in the documents runs."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from quiltstream.pipelines.report.words import WORDS

from .pages import BlockError, blocks, commands, run_console, run_page
from .tree import ROOT

PAGES = [str(p.relative_to(ROOT)) for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if p.is_file()]
ALL_BLOCKS = [block for page in PAGES for block in blocks(page, (ROOT / page).read_text(encoding="utf-8"))]
LEFT_OUT = [block for block in ALL_BLOCKS if block.key == "no-run"]


#: Pages whose blocks take seconds.
LONG = {f"docs/{name}.md" for name in ("ledger", "mathematics", "model", "planning", "report", "show")}

# A tutorial runs in test_tutorials.py, which looks at what it published, too.
RUN = [
    pytest.param(page, marks=pytest.mark.night if page in LONG else ())
    for page in PAGES
    if not page.startswith("docs/tutorials/") and any(block.runs for block in ALL_BLOCKS if block.page == page)
]


@pytest.mark.parametrize("page", RUN)
def test_the_examples_of_a_page_run_as_documented(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(page, (ROOT / page).read_text(encoding="utf-8"), tmp_path) > 0


def test_the_glossary_has_the_words_of_the_report() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert len(WORDS) == 25
    assert page.partition("\n### ")[2].split("\n### ") == [
        f"{word}\n\n{meaning[0].upper()}{meaning[1:]}.\n" for word, meaning in WORDS.items()
    ]


def test_every_skipped_block_has_a_reason() -> None:
    assert [block.where for block in LEFT_OUT if len(block.value) <= len("because")] == [], "give a reason after no-run"
    pytest.skip("not run: " + "; ".join(f"{block.where} ({block.value})" for block in LEFT_OUT))


PAGE = """
```python
x = 1
def f():
    return x
```
<!-- no-run: needs a cluster of its own -->
```python
raise SystemExit
```
```python
>>> f() + 1
2
```
"""


def run(text: str, folder: Path) -> int:
    return run_page("page.md", text, folder)


def test_the_blocks_of_a_page_share_a_namespace(tmp_path: Path) -> None:
    assert run(PAGE, tmp_path) == 2


def test_a_wrong_result_on_a_page_is_found(tmp_path: Path) -> None:
    with pytest.raises(BlockError, match=r"(?s)page\.md:12.*Got:"):
        run(PAGE.replace("\n2\n", "\n3\n"), tmp_path)


CONSOLE = """
<!-- exit: 3 -->
```console
$ touch made
$ test -e made && \\
> exit 3
what a command prints
```
"""


def test_a_console_block_exits_with_the_documented_code(tmp_path: Path) -> None:
    (block,) = blocks("page.md", CONSOLE)
    assert commands(block.body) == ["touch made", "test -e made && \\\nexit 3"]
    assert not block.runs  # only blocks that show `$ quiltstream` are run
    run_console(block, tmp_path, dict(os.environ))
    with pytest.raises(BlockError, match=r"(?s)page\.md:4: .* ended with 3, not 2"):
        run_console(dataclasses.replace(block, value="2"), tmp_path, dict(os.environ))
