"""The misses of an LRU cache of any size, from one pass over a sample of the rows (SHARDS, Waldspurger et al. 2015).

The reuse distance of a row is the number of other rows that were used since its last use. The row hits if this is less
than the number of slots. A hash of the row decides whether the row is followed, so all uses of a followed row are seen,
and each of them stands for 1/rate rows. Rows that are used again within the first batches are all followed: there are
few of them, they make up most of the uses, and a sample that has more or fewer of them than its share is what makes a
sample differ from the whole.

The caches here work on batches: a row is used once in a batch, and the rows of one batch are equally old. So the
distance of a row last used in batch s follows from how many rows were last used in each batch since. That is one number
per batch to keep up to date, instead of a tree over all accesses. Any of the equally old rows of batch s may have been
evicted first, so the row's rank among them counts as uniformly distributed.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotrows.profile.lookups import Rows

CALIBRATION = 16  # the first batches; a row that is in two of them is always followed


class Uses(NamedTuple):
    """The uses of followed rows by one batch."""

    num: int
    since: NDArray[np.int64]  # batches in which some of them were last used
    again: NDArray[np.int64]  # how many of them, for each of these batches


class Sampler:
    """Follows a share of the rows through the batches.

    Args:
        rate: the share of the rows to follow, more than 0 and at most 1.
    """

    def __init__(self, rate: float, seed: int = 0) -> None:
        if not 0 < rate <= 1:
            raise ValueError(f"sample_rate is {rate!r}, it must be more than 0 and at most 1")
        self.rate = rate
        self._seed = seed
        self._first: list[Rows] = []
        self._frequent: _Followed | None = None
        self._frequent_uses: list[Uses] = []
        self._others: list[Rows] = []
        self._num_others = 0  # uses of rows that are not frequent, followed or not

    def add(self, unique: Rows) -> None:
        """Add the next batch: its unique rows, ascending."""
        if self._frequent is not None:
            self._follow(unique, self._frequent)
            return
        self._first.append(unique)
        if len(self._first) == CALIBRATION:
            self._calibrate()

    def curve(self) -> "MissRatioCurve":
        """The misses of the batches so far by cache size, for a cache that is empty at first."""
        if self._frequent is None:
            self._calibrate()
        frequent, others = self._frequent_uses, _uses(self._others)
        num_frequent, num_followed = (sum(uses.num for uses in part) for part in (frequent, others))
        if self._num_others and not num_followed:
            raise ValueError(f"sample_rate is {self.rate}, and no row was followed: give a higher rate")
        weights = np.array([1.0, 1 / self.rate])  # how many rows a followed row stands for
        uses_each = self._num_others / max(1, num_followed)  # how many uses a use of a followed row stands for
        last_used = np.zeros((2, len(frequent)), dtype=np.int64)  # by batch, the followed rows last used in it
        closest, spread, num = [], [], []
        for batch, parts in enumerate(zip(frequent, others, strict=True)):
            again = np.zeros((2, batch), dtype=np.int64)
            for part, uses in enumerate(parts):
                again[part, uses.since] = uses.again
            rows = weights @ last_used[:, :batch]
            newer = rows[::-1].cumsum()[::-1] - rows
            since = np.flatnonzero(again.any(axis=0))
            closest.append(newer[since])
            spread.append(rows[since])
            num.append(again[0, since] + uses_each * again[1, since])
            last_used[:, :batch] -= again
            last_used[:, batch] = [uses.num for uses in parts]
        distances = [np.concatenate([np.zeros(0), *part]) for part in (closest, spread, num)]
        return MissRatioCurve.from_distances(num_frequent + self._num_others, *distances)

    def _calibrate(self) -> None:
        rows = np.concatenate([np.zeros(0, dtype=np.int32), *self._first])
        found, times = np.unique(rows, return_counts=True)
        self._frequent = _Followed(found[times > 1])
        for batch in self._first:
            self._follow(batch, self._frequent)
        self._first.clear()

    def _follow(self, unique: Rows, frequent: "_Followed") -> None:
        uses, others = frequent.use(unique)
        self._frequent_uses.append(uses)
        self._num_others += others.size
        self._others.append(others if self.rate == 1 else others[_hash(others, self._seed) < self.rate * 2.0**64])


class _Followed:
    """A known set of rows, with the batch in which each was last used.

    Args:
        rows: the set, ascending.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._last = np.full(rows.size, -1, dtype=np.int64)
        self._batch = 0

    def use(self, unique: Rows) -> tuple[Uses, Rows]:
        """The uses of the set by the next batch, and the batch's rows that are not in the set."""
        position = np.searchsorted(self._rows, unique)
        is_member = position < self._rows.size
        is_member[is_member] = self._rows[position[is_member]] == unique[is_member]
        position = position[is_member]
        uses = _counted(self._last[position])
        self._last[position] = self._batch
        self._batch += 1
        return uses, unique[~is_member]


def _uses(batches: list[Rows]) -> list[Uses]:
    """The uses by each batch of a whole trace."""
    if not batches:
        return []
    rows, lengths = np.concatenate(batches), np.array([batch.size for batch in batches])
    number = np.repeat(np.arange(lengths.size), lengths)
    # A stable sort by row keeps the uses of each row in order of time, so the previous use is the previous entry.
    order = np.argsort(rows, kind="stable")
    again = rows[order][1:] == rows[order][:-1]
    previous = np.full(rows.size, -1, dtype=np.int64)
    previous[order[1:][again]] = number[order[:-1][again]]
    return [_counted(part) for part in np.split(previous, np.cumsum(lengths)[:-1])]


def _counted(previous: NDArray[np.int64]) -> Uses:
    """Count uses by the batch in which each row was used before, which is -1 at its first use."""
    times = np.bincount(previous[previous >= 0], minlength=1)
    since = np.flatnonzero(times)
    return Uses(previous.size, since, times[since])


@dataclass(frozen=True, eq=False)
class MissRatioCurve:
    """The share of the unique rows of a batch that an LRU cache misses, by its number of slots."""

    sizes: NDArray[np.float64]  # ascending; the curve is linear between two of them
    misses: NDArray[np.float64]

    @classmethod
    def from_distances(
        cls, num_uses: int, closest: NDArray[np.float64], spread: NDArray[np.float64], num: NDArray[np.float64]
    ) -> "MissRatioCurve":
        """Make the curve from arrays of reuses: `num` of them have distances evenly in closest … closest + spread."""
        if not num.size:
            return cls(np.zeros(1), np.ones(1))
        sizes, position = np.unique(np.concatenate([closest, closest + spread]), return_inverse=True)
        slope = num / spread
        change = np.bincount(position, weights=np.concatenate([slope, -slope]))
        hits = np.cumsum(np.cumsum(change)[:-1] * np.diff(sizes))
        hits = np.maximum.accumulate(np.concatenate([[0.0], hits]))
        return cls(sizes, np.clip(1 - hits / num_uses, 0.0, 1.0))

    def at(self, rows: float) -> float:
        """The share of misses of a cache with this many rows."""
        return float(np.interp(rows, self.sizes, self.misses))

    @property
    def fewest(self) -> float:
        """The share of misses of a cache that keeps everything. It misses each row once, at its first use."""
        return float(self.misses[-1])

    @property
    def largest(self) -> int:
        """The smallest size that no larger cache improves on."""
        return int(np.ceil(self.sizes[np.searchsorted(-self.misses, -self.misses[-1])]))

    def size_for(self, hit_rate: float) -> int | None:
        """The fewest rows that reach this hit rate; None if no size does."""
        wanted = 1 - hit_rate
        if self.fewest > wanted + 1e-9:
            return None
        above = int(np.searchsorted(-self.misses, -wanted - 1e-12))
        if above == 0:
            return max(1, int(np.ceil(self.sizes[0])))
        if above == self.sizes.size:
            return self.largest
        fall = self.misses[above - 1] - self.misses[above]
        part = (self.misses[above - 1] - wanted) / fall
        return int(np.ceil(self.sizes[above - 1] + part * (self.sizes[above] - self.sizes[above - 1])))


def _hash(rows: Rows, seed: int) -> NDArray[np.uint64]:
    """Splitmix64, uniform over 64 bits."""
    x = rows.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
