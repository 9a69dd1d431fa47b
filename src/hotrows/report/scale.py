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

    def place(self, value: float) -> float:
        """Where `value` lies, 0 at the low end and 1 at the high one; what is outside is put on the edge."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def texts(self) -> list[str]:
        """The ticks in words, with one unit and equally many decimals for all of them."""
        largest = max(abs(tick) for tick in self.ticks)
        factor, unit = next(((f, u) for f, u in _UNITS if largest >= f), (1.0, ""))
        step = (self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else largest or 1.0) / factor
        if largest and largest / factor < 1e-3:
            return [f"{tick:.3g}" for tick in self.ticks]
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        if round(step, decimals) != round(step, decimals + 1):  # 0.25 and 2.5 need one more
            decimals += 1
        return ["0" if tick == 0 else f"{tick / factor:,.{decimals}f}{unit}" for tick in self.ticks]


def value_axis(
    values: Sequence[float], *, zero: bool = False, min_span: float = 0.0, highest: float | None = None
) -> Axis:
    """An axis for `values`, not stretched by the few that lie far from all others (a first loss, a pause).

    Args:
        zero: begin at 0, for amounts.
        min_span: what it covers at least, so that noise does not look like a change.
        highest: the end of what is possible, such as 100%: then nothing lies too far away to be shown.
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
    """From 0 to exactly `end`, so that curves reach the right edge in every chart."""
    end = end or 1.0
    step = _nice_step(end / 4)
    return Axis(0.0, end, tuple(index * step for index in range(math.floor(end / step + 1e-9) + 1)))


def _usual_range(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    if len(ordered) >= 20:
        inner_low, inner_high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
        room = 3 * (inner_high - inner_low)
        if room > 0:
            low, high = max(low, inner_low - room), min(high, inner_high + room)
    return low, high


def _nice_step(rough: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(
        (factor * magnitude for factor in (1, 2, 2.5, 5) if rough <= factor * magnitude * 1.001), 10 * magnitude
    )
