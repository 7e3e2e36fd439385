"""The head-based estimate: what the fitted model has to beat (AdaSpark §3.3, "Learning").

A pick is worth its confidence head, a sibling its share of the top-K softmax mass, an n-gram node its source's
precision, all shifted by one offset per request on the logit. Agreement and contradiction have no part in it.
"""

from __future__ import annotations

import numpy as np

from firesteel.accept.terms import logit
from firesteel.candidates import Candidates
from firesteel.tree import FloatArray


def head_based(candidates: Candidates, offset: float, least: float) -> FloatArray:
    """`float64[N]` the estimate; 1 for the anchor.

    The children of a parent are estimated each by itself and may sum to more than 1: `share_out` makes prices of them.
    """
    probs, drafted = candidates.probs, candidates.probs.size
    raw = np.full(candidates.tree.width, candidates.p_src)
    if drafted:
        block = raw[1 : drafted + 1].reshape(probs.shape)
        block[:] = probs / np.maximum(probs.sum(1, keepdims=True), 1e-300)
        block[:, 0] = candidates.head
    estimate: FloatArray = 1.0 / (1.0 + np.exp(-offset - logit(raw, least)))
    estimate[0] = 1.0
    return estimate
