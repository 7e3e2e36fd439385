"""The pages that lead from a paper to the code lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs/papers").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_reference_of_a_papers_page_exists(page: Path) -> None:
    """`file.py:name` or `file.py:Class.name`, below src/firesteel: each part is defined in that file."""
    references = re.findall(r"`([\w/]+\.py):([\w.]+)`", page.read_text(encoding="utf-8"))
    assert references
    for file, name in references:
        source = (ROOT / "src/firesteel" / file).read_text(encoding="utf-8")
        for part in name.split("."):
            defined = rf"^\s*((def|class) {part}\b|{part}\b\s*[:=])"
            assert re.search(defined, source, re.MULTILINE), f"{page.name}: {file} defines no {part}"
