"""firesteel: speculative decoding with token trees sized by what they cost and what they earn.

    import firesteel

    model = firesteel.Model.load()
    engine = model.engine()
    params = firesteel.SamplingParams(temperature=0.0, max_tokens=64)
    print(model.complete(model.encode("one two three one two"), params, engine).text.text)

Names are loaded on first use: `import firesteel` alone imports no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Engine": "firesteel.engine.engine",
    "EngineConfig": "firesteel.engine.engine",
    "FiresteelError": "firesteel.errors",
    "Model": "firesteel.model",
    "Request": "firesteel.engine.request",
    "SamplingParams": "firesteel.sampling",
    "TokenTree": "firesteel.tree",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'firesteel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
