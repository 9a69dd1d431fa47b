"""The misses of an LRU cache of any size, from one pass over a sample of the rows (SHARDS, Waldspurger et al. 2015).

A row hits if fewer other rows than the cache has slots were used since its last use: its reuse distance. Which rows are
followed is decided by a hash of the row, so all uses of a followed row are seen, and each stands for 1/rate rows. The
rows that come again within the first batches are all followed: there are few of them, they make up most of the uses,
and whether some of them are in a sample or not is most of what makes a sample differ from the whole.

The caches here work on batches: a row is used once in a batch, and the rows of one batch are equally old. So the
distance of a row last used in batch s is known from how many rows were last used in each batch since: one number per
batch to keep up to date instead of a tree over all accesses. Among the equally old rows of batch s, any may have been
evicted first: the row's place among them is spread evenly.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotrows.profile.lookups import Rows

CALIBRATION = 16  # batches: a row that comes in two of them is always followed


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
        """The distinct rows of the next batch, ascending."""
        if self._frequent is not None:
            self._follow(unique, self._frequent)
            return
        self._first.append(unique)
        if len(self._first) == CALIBRATION:
            self._calibrate()

    def curve(self) -> "MissRatioCurve":
        """The misses by cache size of the batches so far, from an empty cache on."""
        if self._frequent is None:
            self._calibrate()
        frequent, others = self._frequent_uses, _uses(self._others)
        num_frequent, num_followed = (sum(uses.num for uses in part) for part in (frequent, others))
        if self._num_others and not num_followed:
            raise ValueError(f"sample_rate is {self.rate}, and no row was followed: give a higher rate")
        weights = np.array([1.0, 1 / self.rate])  # rows that a followed one stands for
        uses_each = self._num_others / max(1, num_followed)  # uses that a use of a followed row stands for
        last_used = np.zeros((2, len(frequent)), dtype=np.int64)  # by batch: followed rows whose last use it is
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
    """A set of rows that is known beforehand, with the last use of each.

    Args:
        rows: ascending.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._last = np.full(rows.size, -1, dtype=np.int64)
        self._batch = 0

    def use(self, unique: Rows) -> tuple[Uses, Rows]:
        """The uses by the next batch, and those of its rows that are not in the set."""
        place = np.searchsorted(self._rows, unique)
        mine = place < self._rows.size
        mine[mine] = self._rows[place[mine]] == unique[mine]
        place = place[mine]
        uses = _counted(self._last[place])
        self._last[place] = self._batch
        self._batch += 1
        return uses, unique[~mine]


def _uses(batches: list[Rows]) -> list[Uses]:
    """The uses by each batch of a whole trace."""
    if not batches:
        return []
    rows, lengths = np.concatenate(batches), np.array([batch.size for batch in batches])
    number = np.repeat(np.arange(lengths.size), lengths)
    # a stable sort by row leaves the uses of each row in order of time: the use before is the entry before
    order = np.argsort(rows, kind="stable")
    again = rows[order][1:] == rows[order][:-1]
    previous = np.full(rows.size, -1, dtype=np.int64)
    previous[order[1:][again]] = number[order[:-1][again]]
    return [_counted(part) for part in np.split(previous, np.cumsum(lengths)[:-1])]


def _counted(previous: NDArray[np.int64]) -> Uses:
    """Uses from the batch in which each row was used before, -1 at its first use."""
    times = np.bincount(previous[previous >= 0], minlength=1)
    since = np.flatnonzero(times)
    return Uses(previous.size, since, times[since])


@dataclass(frozen=True, eq=False)
class MissRatioCurve:
    """The share of the distinct rows of a batch that an LRU cache misses, by its number of slots."""

    sizes: NDArray[np.float64]  # ascending; between two of them the curve is straight
    misses: NDArray[np.float64]

    @classmethod
    def from_distances(
        cls, num_uses: int, closest: NDArray[np.float64], spread: NDArray[np.float64], num: NDArray[np.float64]
    ) -> "MissRatioCurve":
        """From groups of reuses: `num` of them with distances evenly between closest and closest + spread."""
        if not num.size:
            return cls(np.zeros(1), np.ones(1))
        sizes, place = np.unique(np.concatenate([closest, closest + spread]), return_inverse=True)
        slope = num / spread
        change = np.bincount(place, weights=np.concatenate([slope, -slope]))
        hits = np.cumsum(np.cumsum(change)[:-1] * np.diff(sizes))
        hits = np.maximum.accumulate(np.concatenate([[0.0], hits]))
        return cls(sizes, np.clip(1 - hits / num_uses, 0.0, 1.0))

    def at(self, rows: float) -> float:
        """The share of misses of a cache of so many rows."""
        return float(np.interp(rows, self.sizes, self.misses))

    @property
    def fewest(self) -> float:
        """The misses of a cache that keeps everything: the first use of each row."""
        return float(self.misses[-1])

    @property
    def largest(self) -> int:
        """The size from which on a larger cache does not help."""
        return int(np.ceil(self.sizes[np.searchsorted(-self.misses, -self.misses[-1])]))

    def size_for(self, hit_rate: float) -> int | None:
        """The fewest rows with this hit rate; None if no size has it."""
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
