"""Every constant of AdaSpark's width choice (Table 14), and ours beside them."""

from __future__ import annotations

from dataclasses import dataclass, field

from firesteel.accept.config import AcceptanceConfig
from firesteel.cost.config import CostConfig
from firesteel.errors import InvalidParameter
from firesteel.policy.base import MAX_WIDTH, check_width


@dataclass(frozen=True, kw_only=True)
class AdaSparkConfig:
    """What `AdaSpark` may be told; nothing needs to be. Sections are AdaSpark's; "ours" is where it is silent.

    Raises:
        InvalidParameter: a value is out of range.
    """

    cost: CostConfig = field(default_factory=CostConfig)
    acceptance: AcceptanceConfig = field(default_factory=AcceptanceConfig)

    # the width (§3.4)
    half_life: int = 64  # rounds after which a band's rate has forgotten half
    rate_rounds: int = 8  # rounds before a band's rate is used
    gain_clamp: tuple[float, float] = (0.25, 4.0)
    gain_shrink: float = 0.02  # ridge, times each regressor's sum of squares
    gain_half_life: int = 1024  # ours: rounds after which a gain has forgotten half
    context_unit: int = 8192  # tokens of context at which u = 1
    reference: int = 8  # n0, rows per request
    ratio_margin: float = 0.04  # by which a ratio must be better while a band has no rate
    margin: float = 0.04  # the same of a value, in parts of the incumbent's expected tokens
    width: int = MAX_WIDTH  # ours: most rows of one request's tree

    # for experiments
    pinned: bool = False  # `width` rows in every round, nothing chosen (Table 3)
    fitted: bool = True  # False: the head-based estimate prices everything (Table 6)
    text: bool = True  # False: no candidates from the text (Table 6)

    # what may be skipped, for the host's time (ours)
    request_learned: int = 32  # the first rounds of a request teach acceptance,
    request_every: int = 3  # then one in so many
    plain_learned: int = 16  # of a run of rounds without candidates the first teach their cost,
    plain_every: int = 4  # then one in so many
    refit_every: int = 64  # rounds at least from one refit to the next: requests may end in every round

    # whether to measure a width now (ours)
    measuring_share: float = 0.01  # of all time, that measurements may lose
    row_slope: float = 0.03  # cost of a row while one width is priced, as a share of it

    # whether to draft at all (ours: the paper always drafts)
    trial: int = 4  # drafted rounds before they are judged
    judged: int = 16  # newest rounds that a judgement rests on
    doubt: float = 2.0  # deviations above what they committed that their expectation is believed to
    first_rest: int = 8  # rounds without a draft after the first that did not pay
    longest_rest: int = 256  # each rest is twice as long as the one before, up to this

    def __post_init__(self) -> None:
        check_width(self.width)
        counts = (self.half_life, self.rate_rounds, self.gain_half_life, self.context_unit, self.reference)
        if min(*counts, self.trial, self.judged, self.first_rest, self.longest_rest) < 1:
            raise InvalidParameter(f"every count must be positive, got {self}")
        if min(self.gain_shrink, self.ratio_margin, self.margin) < 0.0 or not 0.0 < self.gain_clamp[0] <= 1.0:
            raise InvalidParameter(f"margins must not be negative, and the gains' clamp must hold 1, got {self}")
