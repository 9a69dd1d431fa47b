"""Axes: from which value to which, and where the ticks are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_UNITS = ((1e9, " B"), (1e6, " M"), (1e3, " k"))


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    ticks: tuple[float, ...]

    def fraction(self, value: float) -> float:
        """Where `value` lies: 0 at the low end, 1 at the high end. A value outside is put at the nearest end."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def texts(self) -> list[str]:
        """The ticks as text. All of them have the same unit and the same number of decimals."""
        largest = max(abs(tick) for tick in self.ticks)
        factor, unit = next(((f, u) for f, u in _UNITS if largest >= f), (1.0, ""))
        step = (self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else largest or 1.0) / factor
        if largest and largest / factor < 1e-3:
            return [f"{tick:.3g}" for tick in self.ticks]
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        if round(step, decimals) != round(step, decimals + 1):  # steps of 0.25 and 2.5 need one decimal more
            decimals += 1
        return ["0" if tick == 0 else f"{tick / factor:,.{decimals}f}{unit}" for tick in self.ticks]


def value_axis(
    values: Sequence[float], *, zero: bool = False, min_span: float = 0.0, highest: float | None = None
) -> Axis:
    """An axis for `values`. A few values far from all others (a first loss, a pause) do not stretch it.

    Args:
        zero: begin at 0, for amounts.
        min_span: the axis covers at least this much, so that noise does not look like a change.
        highest: the largest possible value, such as 100%. All values are shown then, however far apart.
    """
    low, high = _usual_range(values) if highest is None else (min(values), max(values))
    if zero:
        low = 0.0
    if high - low < min_span:
        low = max(low - (min_span - high + low) / 2, 0.0 if low >= 0 else -math.inf)
        high = low + min_span
    if highest is not None and high > highest:
        low, high = min(low, highest - min(min_span, highest)), highest
    if high <= low:
        high = low + (abs(low) or 1.0) * 0.1
    step = _nice_step((high - low) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(index * step for index in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def position_axis(end: float) -> Axis:
    """An axis from 0 to exactly `end`, so that curves reach the right edge in every chart."""
    end = end or 1.0
    step = _nice_step(end / 4)
    return Axis(0.0, end, tuple(index * step for index in range(math.floor(end / step + 1e-9) + 1)))


def _usual_range(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    if len(ordered) >= 20:
        inner_low, inner_high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
        margin = 3 * (inner_high - inner_low)
        if margin > 0:
            low, high = max(low, inner_low - margin), min(high, inner_high + margin)
    return low, high


def _nice_step(rough: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(
        (factor * magnitude for factor in (1, 2, 2.5, 5) if rough <= factor * magnitude * 1.001), 10 * magnitude
    )
