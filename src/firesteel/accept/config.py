"""The constants of the acceptance model: AdaSpark's Table 14, and what it leaves open."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.errors import InvalidParameter
from firesteel.fit.adagrad import AdaGradConfig
from firesteel.fit.ftrl import FtrlConfig


@dataclass(frozen=True, kw_only=True)
class AcceptanceConfig:
    """Constants of the acceptance model, at the paper's values.

    Raises:
        InvalidParameter: a value is out of range.
    """

    # Eq. 6's weights on the drafter's numbers, context and depth (Table 14, "acceptance model (§3.3)")
    rate: float = 0.05
    stabiliser: float = 1.0
    l2: float = 0.01
    gate: float = 3.0  # on leaving the prior: 3 sqrt m after m updates
    cap: float = 400.0  # of squared gradients
    # Eq. 6's n-gram, agreed and contradicted buckets (Table 14): another rate, the rest as above
    bucket_rate: float = 0.5
    # b_req of Eq. 6 (Table 14)
    intercept_rate: float = 0.15
    intercept_band: float = 2.0
    intercept_cap: float = 16.0
    # the head-based estimate's offset (§3.3, Table 14)
    offset_rate: float = 0.15
    offset_band: float = 2.0
    # the guard's memory, in labelled parents (§3.3, Table 14)
    half_life: float = 256.0
    # exploration: tree rounds with n-gram candidates from one to the next (§3.3, Table 14)
    period: int = 16
    # not in the paper: tokens at which the context term is 1, and where probabilities are cut before logit and log
    context_unit: float = 1024.0
    least: float = 1e-4
    # not in the paper: requests remembered, if nobody says that they have ended
    requests: int = 1024

    def __post_init__(self) -> None:
        if not (self.half_life > 0.0 and self.context_unit > 0.0 and 0.0 < self.least < 0.5):
            raise InvalidParameter(f"half_life and context_unit must be above 0, least in (0, 0.5), got {self}")
        if not (self.period >= 1 and self.requests >= 1):
            raise InvalidParameter(f"period and requests must be at least 1, got {self.period} and {self.requests}")

    @property
    def terms(self) -> FtrlConfig:
        """Of the drafter's, context and depth terms."""
        return FtrlConfig(rate=self.rate, stabiliser=self.stabiliser, l2=self.l2, cap=self.cap, gate=self.gate)

    @property
    def buckets(self) -> FtrlConfig:
        """Of the bucket weights."""
        return FtrlConfig(rate=self.bucket_rate, stabiliser=self.stabiliser, l2=self.l2, cap=self.cap, gate=self.gate)

    @property
    def intercept(self) -> AdaGradConfig:
        """Of a request's intercept."""
        return AdaGradConfig(rate=self.intercept_rate, band=self.intercept_band, cap=self.intercept_cap)

    @property
    def offset(self) -> AdaGradConfig:
        """Of a request's offset of the head-based estimate."""
        return AdaGradConfig(rate=self.offset_rate, band=self.offset_band)
