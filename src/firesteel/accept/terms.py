"""The terms of AdaSpark Eq. 6: what each candidate's score is made of, and the softmax that a family shares.

    pick       a0 + a1 logit h + a2 logit share                              + psi + b
    sibling    a3 + a4 log r + a5 logit h + a6 logit share                   + psi + b
    n-gram     logit p_src + w[bucket]                                       + psi + b
    agreed     its score as a drafter's candidate + max(0, logit p_src) + w[bucket]
    contradicted                the same          - max(0, logit p_src) + w[bucket]

A score is `fixed + features @ a + w[slot] + b`. At most one bucket touches a row: what agrees is not contradicted.

The prior, from the features' definitions: a pick scores ln 2 + logit h, a sibling log r, everything else is 0. The
siblings' exp(score) then sum to 1 as that of "none" is 1, so the pick's probability is h and the rest is halved
between its siblings and none of them.

Where the paper is silent:

- psi is one weight per source on log2(1 + context / 1024) and, for a drafter's, one per source on log2(depth): both
  are 0 where a reply or a block begins, so that they correct the constant and do not compete with it.
- Temperature is a known input, a further term of psi, one weight per source. Under `match` a label is whether the
  *drawn* token is the candidate, so the fit aims at the target's probability of it, averaged over rounds that look
  alike; at T = 0, at whether it is the argmax. Requests of both kinds share a model, and without the term either would
  be priced by their mixture, and every request's intercept would have to undo it. At T = 0 the term is 0 and the
  model is the paper's. (r and the share need no term: a drafter gives its probabilities at the request's temperature.)
- A block with one candidate per position has no siblings to make room for: its picks score logit h, so that their
  probability is h here too.
- Probabilities are cut to 0.0001 .. 0.9999 before logit and log.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, log2
from typing import Final

import numpy as np

from firesteel.accept.config import AcceptanceConfig
from firesteel.candidates import EVIDENCE_BUCKETS, NGRAM_BUCKETS, Candidates
from firesteel.tree import FloatArray, IntArray

# Places of the weights: a0 .. a6 where the paper has them, each source's psi behind its own.
PICK: Final = slice(0, 6)  # 1, logit h, logit share, context, temperature, log depth
SIBLING: Final = slice(6, 13)  # 1, log r, logit h, logit share, context, temperature, log depth
NGRAM: Final = slice(13, 15)  # context, temperature
PRIOR: Final = np.array([log(2.0), 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])

# Places of the bucket weights: n-gram rows by bucket; agreed and contradicted ones by evidence, pick before sibling
# (what stands beside drafter's candidates begins its chain, so nothing of the chain is above it).
AGREED: Final = NGRAM_BUCKETS
CONTRADICTED: Final = AGREED + 2 * EVIDENCE_BUCKETS
NO_BUCKET: Final = CONTRADICTED + 2 * EVIDENCE_BUCKETS  # of rows without one; its weight stays 0
SLOTS: Final = NO_BUCKET + 1

HOTTEST: Final = 2.0  # temperature that higher ones count as, lest one request bend a weight that all share
MOST: Final = 30.0  # of a score: beyond it a probability is 1, and far beyond it exp would overflow


@dataclass(frozen=True, eq=False)
class Terms:
    """What the scores of one request's candidates are made of.

    Fields:
        fixed: `float64[N]` the part without weights.
        features: `float64[N, 15]`.
        slots: `int64[N]` place of the row's bucket weight.
    """

    fixed: FloatArray
    features: FloatArray
    slots: IntArray

    def score(self, weights: FloatArray, buckets: FloatArray, intercept: float) -> FloatArray:
        """`float64[N]` s of Eq. 6; the anchor's means nothing."""
        scores: FloatArray = self.fixed + self.features @ weights + buckets[self.slots] + intercept
        return scores


def terms_of(candidates: Candidates, config: AcceptanceConfig) -> Terms:
    """The terms of every candidate."""
    view, n, drafted = candidates.view, candidates.tree.width, candidates.probs.size
    psi = (log2(1.0 + view.context / config.context_unit), min(view.temperature, HOTTEST))
    source = float(logit(np.array(candidates.p_src), config.least))
    fixed, features = np.zeros(n), np.zeros((n, len(PRIOR)))
    slots = np.full(n, NO_BUCKET)
    if drafted:
        _describe_block(candidates, config, psi, features[1 : drafted + 1])
        _connect(candidates, source, fixed[1 : drafted + 1], slots[1 : drafted + 1])
    if drafted + 1 < n:
        fixed[drafted + 1 :] = source
        features[drafted + 1 :, NGRAM] = psi
        slots[drafted + 1 :] = candidates.bucket[drafted + 1 :]
    return Terms(fixed, features, slots)


def _describe_block(
    candidates: Candidates, config: AcceptanceConfig, psi: tuple[float, float], features: FloatArray
) -> None:
    """Fill in the features of the drafter's rows; `psi` is context and temperature."""
    probs = candidates.probs
    positions, width = probs.shape
    rest = probs[:, 1:].sum(1)
    mass = np.maximum(probs[:, 0] + rest, 1e-300)
    numbers = np.ones((positions, 6))  # in the order of PICK
    numbers[:, 1:3] = logit(np.array([candidates.head, probs[:, 0] / mass]), config.least).T
    numbers[:, 3:5], numbers[:, 5] = psi, np.log2(np.arange(1, positions + 1))
    block = features.reshape(positions, width, -1)
    block[:, 0, PICK] = numbers
    block[:, 1:, SIBLING.start] = 1.0
    block[:, 1:, SIBLING.start + 1] = np.log(np.fmax(probs[:, 1:] / np.maximum(rest, 1e-300)[:, None], config.least))
    block[:, 1:, SIBLING.start + 2 : SIBLING.stop] = numbers[:, None, 1:]


def _connect(candidates: Candidates, source: float, fixed: FloatArray, slots: IntArray) -> None:
    """Fill in what the text says of the drafter's rows, and take back the picks' ln 2 where there are no siblings."""
    drafted, width = candidates.probs.size, candidates.probs.shape[1]
    if width == 1:
        fixed -= log(2.0)
    own = candidates.bucket[1 : drafted + 1]
    rival = candidates.rival[1 : drafted + 1]
    sibling = np.arange(drafted) % width != 0
    agreed, contradicted = own >= 0, rival > 0
    trust = max(0.0, source)  # a weak source does not count against what it agrees with
    fixed += trust * agreed - trust * contradicted
    slots[agreed] = AGREED + 2 * own[agreed] + sibling[agreed]
    slots[contradicted] = CONTRADICTED + 2 * candidates.bucket[rival[contradicted]] + sibling[contradicted]


def softmax(scores: FloatArray, parents: IntArray) -> FloatArray:
    """`float64[N]` q of Eq. 6: each family, and its "none" of score 0, share one softmax; 1 for the anchor."""
    weights = np.exp(np.minimum(scores, MOST))
    sums = 1.0 + np.bincount(parents[1:], weights[1:], minlength=1)
    q = weights
    q[1:] /= sums[parents[1:]]
    q[0] = 1.0
    return q


def logit(p: FloatArray, least: float) -> FloatArray:
    """ln p / (1 - p), with p cut to `least` .. 1 - `least`; what is no number is `least`, lest it spoil the weights."""
    cut = np.fmin(np.fmax(p, least), 1.0 - least)
    odds: FloatArray = np.log(cut / (1.0 - cut))
    return odds
