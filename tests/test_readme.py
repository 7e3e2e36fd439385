"""The README is true: its snippet runs and its commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from firesteel.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_snippet_runs() -> None:
    snippet = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert snippet
    done = subprocess.run([sys.executable, "-c", snippet[1]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rounds=" in done.stdout


def shown_commands() -> list[str]:
    """Every command line of the README and of the documents about data, training and traces, without its comment."""
    names = ("data", "training", "explain")
    texts = [README, *((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in names)]
    found = (re.findall(r"^    (?:.* -m )?(firesteel(?:\.cli)? [^#\n]+)", text, re.MULTILINE) for text in texts)
    return sorted({line.strip() for lines in found for line in lines})


@pytest.mark.parametrize("line", shown_commands())
def test_every_command_and_option_shown_exists(line: str) -> None:
    command: Any = get_command(app)
    words = line.split()[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert set(re.findall(r"--[a-z-]+", " ".join(words))) <= known


def test_make_targets_named_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_lead_somewhere() -> None:
    for file in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), ROOT / "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\(([^)#]+)\)", file.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (file.parent / link).exists(), f"{file.name}: {link}"
