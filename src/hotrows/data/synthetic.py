"""Synthetic click logs of the papers' shapes: every sample is a function of the seed and its number.

So splits, ranks, batch sizes and resuming need no bookkeeping, and no sample is ever stored. All arithmetic is in
integers, so a CPU and a GPU make the same samples, bit for bit.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.data.drift import Drift
from hotrows.data.hidden_model import HiddenModel
from hotrows.data.quantiles import dense_quantiles
from hotrows.data.read_ahead import read_ahead
from hotrows.data.resumable import ResumableLoader
from hotrows.data.schema import SPLITS, Column, Schema
from hotrows.data.shapes import SHAPES, Shape
from hotrows.data.share import Share
from hotrows.data.skew import NUM_QUANTILES, POINT_BITS, QUANTILE_BITS, cumulative_share
from hotrows.ops.hash_table.reference import mix
from hotrows.stores.init import GOLDEN, table_key

PREFIX = "synthetic:"
_PARAMETERS: dict[str, type] = {"samples": int, "seed": int, "scale": float, "drift": float, "device": str}
_KEPT_ROWS = 10
_WITHIN_BITS = 20  # the position within a quantile is drawn with this many bits
_TILE = 512  # on a CPU, this many samples at a time fit its cache, and are too few for torch to start threads
_SAMPLES_AHEAD = 8192
_CALIBRATED_ON = 32_768


def open_synthetic(name: str) -> "SyntheticDataSet":
    """`synthetic:SHAPE?samples=N&seed=N&scale=X&drift=X&device=NAME`, each parameter as in `SyntheticDataSet`."""
    shape, _, query = name.removeprefix(PREFIX).partition("?")
    if shape not in SHAPES:
        known = ", ".join(PREFIX + s for s in SHAPES)
        raise ValueError(f"there is no data set {PREFIX}{shape!s}: give one of {known}, or a prepared directory")
    given: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in _PARAMETERS:
            raise ValueError(f"{name}: there is no parameter {key!r}, the known ones are {', '.join(_PARAMETERS)}")
        try:
            given[key] = _PARAMETERS[key](value)
        except ValueError:
            kind = {"int": "a whole number", "float": "a number"}[_PARAMETERS[key].__name__]
            raise ValueError(f"{name}: {key} is {value!r}, give {kind}") from None
    return SyntheticDataSet(shape, **given)


class SyntheticDataSet:
    """Samples that look like those of a well-known log, made when they are asked for.

    Args:
        shape: a name in SHAPES: the columns, the sizes of the tables, and how skewed the lookups in each are.
        samples: the samples of all splits, by default as many as the log has. Half of the last day is valid, half test.
        scale: shrinks the tables to this share of their rows, but not below 10 rows.
        drift: the share of ids, frequent and rare ones, that exchange their popularity with others each day.
        device: the device that makes the samples. A GPU is much faster than a CPU, and its batches stay on it.

    Labels come from a hidden model (`HiddenModel`).
    """

    def __init__(
        self,
        shape: str,
        *,
        samples: int | None = None,
        seed: int = 0,
        scale: float = 1.0,
        drift: float = 0.0,
        device: str | torch.device = "cpu",
    ) -> None:
        form = SHAPES[shape]
        total = form.num_samples if samples is None else samples
        if total < form.num_days:
            raise ValueError(f"samples is {total}, it must be {form.num_days} or more, one a day")
        if not 0.0 < scale <= 1.0:
            raise ValueError(f"scale is {scale:g}, it must be more than 0 and at most 1")
        self.name = PREFIX + shape
        self.schema = Schema(
            tuple(f"I{i + 1}" for i in range(form.num_dense)),
            tuple(Column(c.name, _scaled(c.num_ids, scale)) for c in form.columns),
        )
        held_out = total // form.num_days
        sizes = (total - held_out, held_out - held_out // 2, held_out // 2)
        self._num_samples = dict(zip(SPLITS, sizes, strict=True))
        self._first = dict(zip(SPLITS, itertools.accumulate((0, *sizes[:2])), strict=True))
        self._days = _Days(form.num_days, total)
        self._drift = Drift([c.num_ids for c in self.schema.categorical], drift, torch.device(device))
        self._generator = _Generator(form, self.schema, self._days, self._drift, seed, torch.device(device))
        self._key = {"data": self.name, "samples": total, "data_seed": seed, "scale": scale, "drift": drift}

    def num_samples(self, split: str) -> int:
        return self._num_samples[_known_split(split)]

    def samples(self, split: str, numbers: Tensor) -> Batch:
        """The samples of these numbers, int64 [B] from 0 to num_samples - 1."""
        return self._generator(numbers + self._first[_known_split(split)])

    def click_probability(self, split: str, numbers: Tensor) -> Tensor:
        """The probability with which the label of each sample was drawn, float64 [B]. No model can predict better."""
        return self._generator.click_probability(numbers + self._first[_known_split(split)])

    def loader(
        self,
        split: str,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
    ) -> "SyntheticLoader":
        share = Share(self.num_samples(split), batch_size, rank, world_size, drop_last)
        return SyntheticLoader(self, split, share, shuffle=shuffle, seed=seed)

    def counts(self) -> dict[str, Tensor]:
        """Expected counts, rounded; their memory is in proportion to the tables."""
        return {
            column.name: torch.from_numpy(self._column_counts(f)) for f, column in enumerate(self.schema.categorical)
        }

    def _column_counts(self, feature: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        num_ids = self.schema.categorical[feature].num_ids
        share = np.diff(cumulative_share(self._generator.quantiles[feature], np.arange(num_ids + 1)))
        expected = np.zeros(num_ids)
        for day, num_samples in enumerate(self._days.samples_by_day(self._num_samples["train"])):
            expected[self._drift.ids_of_day(feature, day)] += share * num_samples
        return np.rint(expected).astype(np.int64)

    @property
    def device(self) -> torch.device:
        return self._generator.device

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that decide the samples: two data sets with equal ones have the same samples."""
        return dict(self._key)


class SyntheticLoader(ResumableLoader):
    """Batches of a synthetic split. On a CPU a thread makes them ahead; on a GPU they are made when they are read.

    Shuffling permutes the numbers of the samples by n → (a·n + b) mod N, with a and b drawn from (seed, epoch).
    Samples do not depend on their neighbors, so this is as good as any other order.
    """

    def __init__(self, dataset: SyntheticDataSet, split: str, share: Share, *, shuffle: bool, seed: int) -> None:
        super().__init__(share, shuffle=shuffle, seed=seed)
        self._dataset = dataset
        self._split = split

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), **self._dataset.identity, "split": self._split}

    def _batches(self, epoch: int, first: int) -> Iterator[Batch]:
        num = max(1, _SAMPLES_AHEAD // self.share.batch_size)  # batches that are made at once
        runs = (range(i, min(i + num, len(self))) for i in range(first, len(self), num))
        make = partial(self._make, self._permutation(epoch))
        ahead = self._dataset.device.type == "cpu"
        for made in read_ahead(make, runs, threads=1) if ahead else map(make, runs):
            yield from made

    def _make(self, permutation: tuple[int, int], batches: range) -> list[Batch]:
        bounds = [self.share.bound(i) for i in range(batches.start, batches.stop + 1)]
        numbers = torch.arange(bounds[0], bounds[-1], device=self._dataset.device) + self.share.start
        factor, shift = permutation
        numbers = (numbers * factor + shift) % self.share.num_samples
        samples = self._dataset.samples(self._split, numbers)
        assert isinstance(samples.ids, Tensor)
        sizes = [stop - start for start, stop in itertools.pairwise(bounds)]
        parts = zip(
            *(torch.split_with_sizes(t, sizes) for t in (samples.dense, samples.ids, samples.label)), strict=True
        )
        return [Batch(*part) for part in parts]

    def _permutation(self, epoch: int) -> tuple[int, int]:
        total = self.share.num_samples
        if not self.shuffle or total < 3:
            return 1, 0
        random = np.random.default_rng([self.seed % 2**64, epoch])
        limit = min(total, 2**30)  # so that the product stays within 63 bits
        factor = int(random.integers(limit // 3, limit))
        while math.gcd(factor, total) != 1:
            factor = factor % (limit - 1) + 1
        return factor, int(random.integers(total))


@dataclass(frozen=True)
class _Days:
    """Days of equal length, one after the other over all splits."""

    num_days: int
    num_samples: int

    def __call__(self, numbers: Tensor) -> Tensor:
        return numbers * self.num_days // self.num_samples

    def samples_by_day(self, stop: int) -> list[int]:
        """How many of the samples before `stop` each day has."""
        starts = [-(-day * self.num_samples // self.num_days) for day in range(self.num_days + 1)]
        return [max(0, min(b, stop) - a) for a, b in itertools.pairwise(starts)]


class _Generator:
    """Makes samples from their numbers."""

    def __init__(
        self, shape: Shape, schema: Schema, days: _Days, drift: Drift, seed: int, device: torch.device
    ) -> None:
        self.device = device
        self._days, self._drift = days, drift
        self._num_features, self._num_dense = len(schema.categorical), len(schema.dense)
        self._key = table_key(seed, "synthetic samples")
        self.quantiles = np.stack(
            [c.skew.quantiles(n.num_ids) for c, n in zip(shape.columns, schema.categorical, strict=True)]
        )
        low = torch.from_numpy(self.quantiles)
        self._low = low[:, :-1].flatten().to(device)  # [F * NUM_QUANTILES]
        self._width = low.diff(dim=1).flatten().to(device)
        dense = dense_quantiles(self._num_dense)  # [number of dense features, NUM_QUANTILES]
        self._dense = torch.from_numpy(dense).flatten().to(device)
        columns = torch.arange(self._num_features + self._num_dense + 1, device=device)
        self._columns = columns
        self._table_start = columns[: max(self._num_features, self._num_dense)] * NUM_QUANTILES
        self._model = HiddenModel([c.num_ids for c in schema.categorical], dense, seed, device)
        some = mix(torch.arange(_CALIBRATED_ON, device=device) + self._key) % days.num_samples
        self._model.calibrate(self._scores(some), shape.click_rate)

    def __call__(self, numbers: Tensor) -> Batch:
        if self.device.type != "cpu" or numbers.numel() <= _TILE:
            return Batch(*self._make(numbers))
        total = numbers.numel()
        dense, label = torch.empty(total, self._num_dense), torch.empty(total)
        ids = torch.empty(total, self._num_features, dtype=torch.int64)
        for start in range(0, total, _TILE):
            tile = slice(start, start + _TILE)
            dense[tile], ids[tile], label[tile] = self._make(numbers[tile])
        return Batch(dense, ids, label)

    def click_probability(self, numbers: Tensor) -> Tensor:
        return self._model.probability(self._scores(numbers))

    def _make(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dense, ids, which, noise = self._draw(numbers)
        return (dense, ids, self._model.label(self._model.score(ids, which), noise))

    def _scores(self, numbers: Tensor) -> Tensor:
        tiles = (numbers[start : start + _TILE] for start in range(0, numbers.numel(), _TILE))
        return torch.cat([self._model.score(*self._draw(tile)[1:3]) for tile in tiles])

    def _draw(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Dense values, ids, the quantiles of the dense values [B, number of dense features] and of the noise [B]."""
        counter = numbers.unsqueeze(1) * self._columns.numel() + (self._columns + self._key)
        bits = mix(counter * GOLDEN)
        quantile = bits >> (64 - QUANTILE_BITS) & (NUM_QUANTILES - 1)
        features = slice(self._num_features)
        index = quantile[:, features] + self._table_start[: self._num_features]
        within = bits[:, features] >> 8 & ((1 << _WITHIN_BITS) - 1)
        ids = (self._low.take(index) + (self._width.take(index) * within >> _WITHIN_BITS)) >> POINT_BITS
        ids = self._drift(ids, self._days(numbers))
        which = quantile[:, self._num_features : -1] + self._table_start[: self._num_dense]
        return self._dense.take(which), ids, which, quantile[:, -1]


def _scaled(num_ids: int, scale: float) -> int:
    return min(num_ids, max(_KEPT_ROWS, math.ceil(num_ids * scale)))


def _known_split(split: str) -> str:
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}: give one of {', '.join(SPLITS)}")
    return split
