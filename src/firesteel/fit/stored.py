"""Reading back what an estimator stored as JSON values: the right shape and finite, or `DamagedState`."""

from __future__ import annotations

from typing import Any

import numpy as np

from firesteel.errors import DamagedState
from firesteel.tree import FloatArray


def field(state: Any, key: str) -> Any:
    """`state[key]` of a mapping that should have it."""
    if not isinstance(state, dict) or key not in state:
        raise DamagedState(f"stored state: no {key!r}")
    return state[key]


def floats(state: Any, key: str, shape: tuple[int, ...], *, least: float = -np.inf) -> FloatArray:
    """`float64[shape]` under `key`, all finite and at least `least`; a -1 in `shape` takes any length."""
    value = field(state, key)
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise DamagedState(f"stored state: {key!r} is not an array of numbers") from error
    if array.size == 0 and -1 in shape:
        array = array.reshape([0 if length == -1 else length for length in shape])
    if array.ndim != len(shape) or any(n not in (-1, m) for n, m in zip(shape, array.shape, strict=True)):
        raise DamagedState(f"stored state: {key!r} has shape {array.shape}, not {shape}")
    if not np.isfinite(array).all() or (array < least).any():
        raise DamagedState(f"stored state: {key!r} holds {value}, out of its range")
    return array


def number(state: Any, key: str, *, least: float = -np.inf) -> float:
    """The finite number under `key`, at least `least`."""
    return float(floats(state, key, (), least=least))


def whole(state: Any, key: str, *, least: int = 0) -> int:
    """The whole number under `key`, at least `least`."""
    value = number(state, key, least=least)
    if value != int(value):
        raise DamagedState(f"stored state: {key!r} is {value}, not a whole number")
    return int(value)
