"""Every constant of the online verify-cost model (AdaSpark Table 14, "cost model"), in one place."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.errors import InvalidParameter
from firesteel.fit.ftrl import FtrlConfig


@dataclass(frozen=True, kw_only=True)
class CostConfig:
    """What `OnlineCost` may be told; nothing needs to be. Sections are AdaSpark's; "ours" is where it is silent.

    Raises:
        InvalidParameter: a value is out of range.
    """

    # the context law
    tau: float = 0.15  # §3.2, Prop. 3: the quantile fitted
    context_unit: int = 8192  # §3.2: tokens of context at which u = 1
    l1: float = 0.002  # §3.2, Eq. 4: on time in units of a width's scale
    l2: float = 0.01  # §3.2, Eq. 4
    rate: float = 0.05  # §3.2, Table 14: FTRL rate
    stabiliser: float = 1.0  # §3.2, Table 14: FTRL stabiliser
    square_cap: float = 400.0  # §3.2, Table 14: cap on squared gradients, which floors the rate
    law_clamp: tuple[float, float] = (0.5, 3.0)  # §3.2: of a width's lowest time
    law_samples: int = 3  # §3.2, Table 14: samples before a law is fitted
    bank: int = 16  # §3.2: newest samples kept per context band
    held_out: int = 4  # §3.2: 1/4 of a band is held out, in bands of at least 4
    refit_steps: int = 300  # ours: steps of a refit

    # the price
    level_window: int = 8  # §3.2: verifies behind a level
    level_clamp: tuple[float, float] = (0.5, 2.0)  # §3.2
    clock_window: int = 8  # ours: rounds behind a reading of the clock; the level's window

    # the widths
    measurements: int = 3  # §3.2: before a width is priced
    ladder: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)  # §3.2, and one row: no speculation is a width too (ours)
    hold: int = 8  # §3.2: rounds the chooser holds a width before a split
    steep: float = 1.25  # §3.2: top over bottom of a class that is split next to the held width
    most_widths: int = 24  # §3.2: widths learned
    reach_rounds: int = 16  # ours: rounds without a tree wide enough, until the widest of them is the reach

    def __post_init__(self) -> None:
        counts = [self.law_samples, self.bank, self.refit_steps, self.level_window, self.clock_window]
        counts += [self.measurements, self.hold, self.reach_rounds, self.context_unit]
        if not 0.0 < self.tau < 1.0 or min(counts) < 1 or self.held_out < 2:
            raise InvalidParameter(f"tau must lie in (0, 1) and every count be positive, got {self}")
        if self.law_samples > self.bank or list(self.ladder) != sorted({*self.ladder}) or self.ladder[0] < 1:
            raise InvalidParameter(f"law_samples must fit the bank and the ladder must rise, got {self}")

    def solver(self) -> FtrlConfig:
        """The settings of FTRL for a law."""
        return FtrlConfig(rate=self.rate, stabiliser=self.stabiliser, l1=self.l1, l2=self.l2, cap=self.square_cap)
