"""How unevenly ids are used: which share of the accesses goes to which share of the ids."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

_SMALL = 1 << 16  # counts below it are tallied and only the others sorted: sorting 40 M counts would take seconds


class Skew:
    """The use of the ids of one table, or of several pooled, from how often each id occurs."""

    def __init__(self, values: NDArray[np.int64], num_ids: NDArray[np.int64]) -> None:
        order = np.argsort(-values, kind="stable")
        self._values, self._num = values[order], num_ids[order]
        # Entry i counts the ids, and their accesses, of the i highest frequencies.
        self._ids = np.concatenate([[0], np.cumsum(self._num)])
        self._accesses = np.concatenate([[0], np.cumsum(self._num * self._values)])

    @classmethod
    def of(cls, counts: ArrayLike) -> "Skew":
        """Make it from the number of accesses of each id, 0 for one that was not seen."""
        array = np.asarray(counts, dtype=np.int64).ravel()
        small = np.bincount(array[array < _SMALL], minlength=1)
        seen = np.flatnonzero(small)
        large = array[array >= _SMALL]
        return cls(np.concatenate([seen, large]), np.concatenate([small[seen], np.ones_like(large)]))

    @classmethod
    def pooled(cls, skews: Sequence["Skew"]) -> "Skew":
        """The use of the ids of all tables taken as one."""
        return cls(np.concatenate([s._values for s in skews]), np.concatenate([s._num for s in skews]))

    @property
    def num_ids(self) -> int:
        return int(self._ids[-1])

    @property
    def num_accesses(self) -> int:
        return int(self._accesses[-1])

    def share_of_top(self, share_of_ids: float) -> float:
        """The share of all accesses that goes to the most frequent ids, at least one of them."""
        # Round before ceil: 0.1 · 70 may be slightly more than 7 in floating point, and must not become 8.
        top = max(1, math.ceil(round(share_of_ids * self.num_ids, 6)))
        return float(np.interp(top, self._ids, self._accesses)) / max(1, self.num_accesses)

    def ids_for(self, share_of_accesses: float) -> float:
        """The smallest share of the ids that gets this share of the accesses: that of the most frequent ids."""
        wanted = share_of_accesses * self.num_accesses
        num_values = int(np.searchsorted(self._accesses, wanted * (1 - 1e-12)))
        if num_values == 0:
            return 0.0
        missing = wanted - self._accesses[num_values - 1]
        ids = self._ids[num_values - 1] + math.ceil(round(missing / self._values[num_values - 1], 6))
        return float(ids / max(1, self.num_ids))
