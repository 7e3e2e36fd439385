"""The pure layer stays pure, and the public names are exactly these."""

from __future__ import annotations

import subprocess
import sys

import firesteel

PURE = [
    "errors",
    "default_target",
    "processor",
    "tree",
    "rounds",
    "candidates",
    "race",
    "sampling",
    "ngram",
    "paths",
    "accept.multinomial",
    "accept.raw",
    "policy",
    "cost.base",
    "cost.clock",
    "cost.config",
    "cost.ladder",
    "cost.law",
    "cost.online",
    "engine.record",
    "explain.page",
    "fit.adagrad",
    "fit.ftrl",
    "fit.quantile",
    "fit.scores",
    "fit.stored",
    "store.file",
    "store.memory",
    "store.owner",
    "verify.rules",
]


def test_layer_a_needs_no_torch() -> None:
    script = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
    script += "\n".join(f"import firesteel.{name}" for name in PURE)
    script += "\nfrom firesteel.policy import make; [make(name) for name in ('off', 'chain', 'tree', 'auto')]"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_importing_firesteel_imports_no_torch() -> None:
    script = "import sys, firesteel; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_pure_module_that_imports_torch_would_be_caught() -> None:
    script = "import sys; sys.modules['torch'] = None\nimport firesteel.models.rows"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "torch" in done.stderr


def test_public_names() -> None:
    assert firesteel.__all__ == [
        "Engine",
        "EngineConfig",
        "FiresteelError",
        "Model",
        "Request",
        "SamplingParams",
        "TokenTree",
    ]
    assert all(getattr(firesteel, name).__name__ == name for name in firesteel.__all__)
