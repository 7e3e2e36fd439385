"""Scores of probabilities, on cases worked out by hand and against the definition."""

from __future__ import annotations

import numpy as np
import pytest

from firesteel.fit.scores import auc, brier, ece


def test_brier() -> None:
    assert brier([1.0, 0.5, 0.0], [1, 1, 1]) == pytest.approx((0 + 0.25 + 1) / 3)


def test_ece_weighs_bins_by_what_falls_in() -> None:
    """Two bins of two: one says 0.2 and is right half the time, the other says 1 and always is."""
    assert ece([0.2, 0.2, 1.0, 1.0], [0, 1, 1, 1]) == pytest.approx(0.5 * 0.3)
    assert ece([0.25, 0.35], [0, 1], bins=1) == pytest.approx(0.2)


def test_auc_is_the_share_of_pairs_in_order() -> None:
    chance = np.random.default_rng(0)
    p, y = chance.integers(0, 6, 60) / 5, chance.integers(0, 2, 60)
    ones, zeros = p[y == 1], p[y == 0]
    pairs = (ones[:, None] > zeros).mean() + 0.5 * (ones[:, None] == zeros).mean()
    assert auc(p, y) == pytest.approx(pairs)
    assert auc([0.1, 0.9], [0, 1]) == 1.0
    assert auc([0.9, 0.1], [0, 1]) == 0.0
    assert auc([0.3, 0.4], [1, 1]) is None
