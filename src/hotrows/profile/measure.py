"""One pass over a data set: how its ids are used, and what a cache of its rows would do."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.data.schema import DataSet, Schema
from hotrows.profile.frequencies import Skew
from hotrows.profile.lookups import Lookups, RowNumbers, Rows
from hotrows.profile.miss_ratio import MissRatioCurve, Sampler
from hotrows.profile.suggest import Suggestion, check_wanted, suggest

TOP_SHARES = (0.001, 0.01, 0.1)
HOT_SHARE = 0.9  # hot ids are the most frequent ids that together get this share of the accesses
DEDUPLICATION_SIZES = (1024, 2048, 4096, 8192)
NUM_SAMPLES = 2**20
FOLLOWED_LOOKUPS = 4_000_000  # for the miss-ratio curve: this takes seconds and is right to less than a point
NUM_SIZES = 16


@dataclass(frozen=True, eq=False)
class ColumnProfile:
    """One categorical column. Columns that share a table share its frequencies too."""

    name: str
    table: str
    skew: Skew


@dataclass(frozen=True, eq=False)
class Profile:
    """What `profile` found out."""

    data: str
    num_samples: int  # as many as were read
    batch_size: int
    sample_rate: float
    columns: tuple[ColumnProfile, ...]
    pooled: Skew  # all tables as one
    deduplication: dict[int, float]  # by batch size: unique rows over lookups
    curve: MissRatioCurve
    cache_sizes: tuple[int, ...]
    suggestion: Suggestion

    @property
    def miss_ratio(self) -> dict[int, float]:
        """By rows of an LRU cache: the share of the unique rows of a batch that it misses."""
        return {rows: self.curve.at(rows) for rows in self.cache_sizes}

    def to_json(self) -> dict[str, Any]:
        """The profile as JSON values. A JSON file of it reads back equal."""
        return {
            "data": self.data,
            "samples": self.num_samples,
            "batch_size": self.batch_size,
            "rows": self.pooled.num_ids,
            "columns": [{"name": c.name, "table": c.table, **_skew_json(c.skew)} for c in self.columns],
            "all": _skew_json(self.pooled),
            "deduplication": {str(size): share for size, share in self.deduplication.items()},
            "miss_ratio": {str(rows): share for rows, share in self.miss_ratio.items()},
            "first_uses": self.curve.fewest,
            "sample_rate": self.sample_rate,
            "suggestion": self.suggestion.to_json(),
        }


def profile(
    dataset: DataSet,
    *,
    batch_size: int = 4096,
    num_samples: int | None = None,
    sample_rate: float | None = None,
    seed: int = 0,
    shuffle: bool = False,
    hit_rate: float | None = None,
    memory: int | str | None = None,
    record_bytes: int = 512,
    progress: Callable[[str, float], None] = lambda step, done: None,
) -> Profile:
    """Read the training split once and measure how its ids are used.

    Frequencies are the data set's own counts. Deduplication and misses come from the samples that are read.

    Args:
        batch_size: the batch size of the training that is planned.
        num_samples: how many samples to read, from the start. None reads a million, or all if there are fewer.
        sample_rate: the share of the rows that is followed for the miss-ratio curve. None follows enough rows for a
            curve that is right to a point.
        shuffle: read in shuffled order, as a training that shuffles does.
        hit_rate: the hit rate that the suggested cache should reach; 0.9 if neither this nor `memory` is given.
        memory: the memory that the suggested cache should fit into.
        record_bytes: the bytes of a row with its optimizer state. 512 is dim 128 with SGD.
        progress: called with the name of the current step and the share of it that is done, 0 to 1.

    Example::

        found = profile(open_dataset("synthetic:criteo-kaggle"), hit_rate=0.8)
        found.deduplication  # {1024: 0.26, 2048: 0.21, …}
        found.suggestion.rows
    """
    check_wanted(hit_rate, memory)
    wanted = _num_to_read(dataset, num_samples, batch_size)
    numbers = RowNumbers(dataset.schema)
    sample_rate = _sample_rate(dataset.schema, wanted) if sample_rate is None else sample_rate
    # A block has whole batches, and is long enough for the largest of DEDUPLICATION_SIZES.
    block = batch_size * -(-max(DEDUPLICATION_SIZES) // batch_size)
    samples = _Samples(batch_size, Sampler(sample_rate, seed))
    for batch in dataset.loader("train", block, shuffle=shuffle, seed=seed):
        samples.add(numbers.lookups(batch.ids).first(wanted - samples.num))
        progress("reading", samples.num / wanted)
        if samples.num == wanted:
            break
    curve = samples.sampler.curve()
    by_table = {table: Skew.of(counts.cpu().numpy()) for table, counts in dataset.counts().items()}
    return Profile(
        data=dataset.name,
        num_samples=samples.num,
        batch_size=batch_size,
        sample_rate=sample_rate,
        columns=tuple(ColumnProfile(c.name, c.table, by_table[c.table]) for c in dataset.schema.categorical),
        pooled=Skew.pooled(list(by_table.values())),
        deduplication=samples.deduplication.shares(),
        curve=curve,
        cache_sizes=_sizes(samples.largest_batch, curve.largest),
        suggestion=suggest(curve, numbers.num_rows, record_bytes, hit_rate=hit_rate, memory=memory),
    )


def _num_to_read(dataset: DataSet, num_samples: int | None, batch_size: int) -> int:
    available = dataset.num_samples("train")
    wanted = min(available, NUM_SAMPLES if num_samples is None else num_samples)
    for name, value in [("batch_size", batch_size), ("num_samples", wanted)]:
        if value < 1:
            raise ValueError(f"{name} is {value}, it must be a whole number from 1 up (there are {available} samples)")
    return wanted


def _sample_rate(schema: Schema, num_samples: int) -> float:
    num_lookups = num_samples * sum(column.max_length for column in schema.categorical)
    return min(1.0, max(0.01, FOLLOWED_LOOKUPS / num_lookups))


def unique_rows(rows: Rows) -> Rows:
    """Each row once, ascending."""
    rows = np.sort(rows)
    return rows[np.concatenate([[True], rows[1:] != rows[:-1]])] if rows.size else rows


class _Samples:
    """What is measured over the samples that are read."""

    def __init__(self, batch_size: int, sampler: Sampler) -> None:
        self._batch_size = batch_size
        self.sampler = sampler
        self.deduplication = _Deduplication()
        self.num = 0
        self.largest_batch = 1  # the most unique rows of a batch

    def add(self, lookups: Lookups) -> None:
        self.num += lookups.num_samples
        for rows in lookups.batches(self._batch_size, drop_last=False):
            unique = unique_rows(rows)
            self.sampler.add(unique)
            self.largest_batch = max(self.largest_batch, unique.size)
        for size in DEDUPLICATION_SIZES:
            self.deduplication.add(size, lookups)


class _Deduplication:
    """The share of the lookups that is left after deduplication, by batch size. Only whole batches count."""

    def __init__(self) -> None:
        self._lookups: dict[int, int] = defaultdict(int)
        self._unique: dict[int, int] = defaultdict(int)

    def add(self, size: int, lookups: Lookups) -> None:
        for rows in lookups.batches(size, drop_last=True):
            self._lookups[size] += rows.size
            self._unique[size] += unique_rows(rows).size

    def shares(self) -> dict[int, float]:
        return {size: self._unique[size] / max(1, num) for size, num in self._lookups.items()}


def _sizes(smallest: int, largest: int) -> tuple[int, ...]:
    """Cache sizes from one that holds any batch to one that holds everything, evenly spaced by ratio."""
    spaced = np.geomspace(smallest, max(smallest, largest), NUM_SIZES)
    return tuple(sorted({int(np.ceil(size)) for size in spaced}))


def _skew_json(skew: Skew) -> dict[str, Any]:
    return {
        "rows": skew.num_ids,
        "accesses": skew.num_accesses,
        "top": {f"{share:.4g}": skew.share_of_top(share) for share in TOP_SHARES},
        "ids_for_90_percent": skew.ids_for(HOT_SHARE),
    }
