"""The distribution of ids: a bounded power law, sampled by its inverse distribution function in integer arithmetic."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

QUANTILE_BITS = 11
NUM_QUANTILES = 1 << QUANTILE_BITS
POINT_BITS = 16  # fractional bits of quantiles, which are fixed-point numbers


@dataclass(frozen=True)
class Skew:
    """A Zipf-Mandelbrot law: the density at x in [0, num_ids) is proportional to (x + offset) ** -exponent.

    An id has the probability of [id, id + 1). A larger exponent concentrates lookups on the first ids, a larger offset
    makes the probabilities of the first ids more equal.
    """

    exponent: float
    offset: float

    def quantiles(self, num_ids: int) -> NDArray[np.int64]:
        """The bounds of NUM_QUANTILES parts that have equal shares of all lookups: int64 [NUM_QUANTILES + 1].

        Within a part all ids are equally likely, so drawing an id takes one read of this table and integer arithmetic:
        every device draws the same ids, and the size of the table does not depend on the number of ids.
        """
        share = np.linspace(0.0, 1.0, NUM_QUANTILES + 1)
        power = 1.0 - self.exponent
        if abs(power) < 1e-6:
            x = self.offset * ((num_ids + self.offset) / self.offset) ** share - self.offset
        else:
            low, high = self.offset**power, (num_ids + self.offset) ** power
            with np.errstate(divide="ignore"):  # if the last ids are very rare, rounding may give a bound beyond them
                x = (low + share * (high - low)) ** (1.0 / power) - self.offset
        quantiles = np.rint(np.clip(x, 0, num_ids) * 2.0**POINT_BITS).astype(np.int64)
        quantiles[0], quantiles[-1] = 0, num_ids << POINT_BITS
        return quantiles


def cumulative_share(quantiles: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each of these ids, the share of lookups of smaller ids."""
    whole = np.arange(len(quantiles)) / (len(quantiles) - 1)
    return np.interp(ids.astype(np.float64) * 2.0**POINT_BITS, quantiles.astype(np.float64), whole)
