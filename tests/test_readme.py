"""The README is true: its snippet runs and its commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_snippet_runs() -> None:
    snippet = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert snippet
    done = subprocess.run([sys.executable, "-c", snippet[1]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rounds=" in done.stdout


@pytest.mark.parametrize("line", sorted(set(re.findall(r"^    (firesteel [^#\n]+)", README, re.MULTILINE))))
def test_every_command_and_option_shown_exists(line: str) -> None:
    words = line.split('"')[0].split()[1:] or []
    command = [word for word in words if not word.startswith("-")][:2]
    if command[0] != "bench":
        command = command[:1]
    done = subprocess.run(
        [sys.executable, "-m", "firesteel.cli", *command, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    for option in re.findall(r"--[a-z-]+", line):
        assert option in plain, f"{line}: {option}"


def test_make_targets_named_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_lead_somewhere() -> None:
    for file in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), ROOT / "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\(([^)#]+)\)", file.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (file.parent / link).exists(), f"{file.name}: {link}"
