"""How often ids occur: a bounded power law, sampled by its inverse distribution function in whole numbers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

QUANTILE_BITS = 11
NUM_QUANTILES = 1 << QUANTILE_BITS
POINT_BITS = 16  # quantiles are fixed-point numbers with so many bits behind the point


@dataclass(frozen=True)
class Skew:
    """The density over [0, num_ids) falls as (x + offset) ** -exponent, and an id has that of [id, id + 1).

    (A Zipf-Mandelbrot law.) A larger exponent gives the first ids more, a larger offset makes them more alike.
    """

    exponent: float
    offset: float

    def quantiles(self, num_ids: int) -> NDArray[np.int64]:
        """Where each of NUM_QUANTILES equal parts of all lookups begins, and the end: int64 [NUM_QUANTILES + 1].

        Within a part ids are equally likely, so that drawing one takes a look into this table and nothing that is
        rounded: every device draws the same ids, and the memory it takes does not grow with the number of ids.
        """
        share = np.linspace(0.0, 1.0, NUM_QUANTILES + 1)
        power = 1.0 - self.exponent
        if abs(power) < 1e-6:
            x = self.offset * ((num_ids + self.offset) / self.offset) ** share - self.offset
        else:
            low, high = self.offset**power, (num_ids + self.offset) ** power
            with np.errstate(divide="ignore"):  # where the last ids hardly ever occur, rounding may lead beyond them
                x = (low + share * (high - low)) ** (1.0 / power) - self.offset
        quantiles = np.rint(np.clip(x, 0, num_ids) * 2.0**POINT_BITS).astype(np.int64)
        quantiles[0], quantiles[-1] = 0, num_ids << POINT_BITS
        return quantiles


def cumulative_share(quantiles: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """The share of lookups that go to smaller ids than each of these."""
    whole = np.arange(len(quantiles)) / (len(quantiles) - 1)
    return np.interp(ids.astype(np.float64) * 2.0**POINT_BITS, quantiles.astype(np.float64), whole)
