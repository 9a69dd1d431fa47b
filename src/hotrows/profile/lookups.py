"""The lookups of a batch as rows of all tables, sample by sample."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotrows.batch import Jagged
from hotrows.data.schema import Schema

Rows = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, eq=False)
class Lookups:
    """The rows that consecutive samples look up: those of sample i are rows[starts[i] : starts[i + 1]]."""

    rows: Rows
    starts: NDArray[np.int64]

    @property
    def num_samples(self) -> int:
        return len(self.starts) - 1

    def first(self, num: int) -> "Lookups":
        """The lookups of the first `num` samples."""
        if num >= self.num_samples:
            return self
        return Lookups(self.rows[: self.starts[num]], self.starts[: num + 1])

    def batches(self, size: int, *, drop_last: bool) -> Iterator[Rows]:
        """The rows of each `size` consecutive samples."""
        end = self.num_samples - (self.num_samples % size if drop_last else 0)
        for first in range(0, end, size):
            last = min(first + size, self.num_samples)
            yield self.rows[self.starts[first] : self.starts[last]]


class RowNumbers:
    """Numbers the rows through all tables, as a cache that is shared by all tables sees them."""

    def __init__(self, schema: Schema) -> None:
        sizes = schema.tables
        ends = np.cumsum(list(sizes.values()), dtype=np.int64)
        first = dict(zip(sizes, [0, *ends[:-1].tolist()], strict=True))
        self.num_rows = int(ends[-1])
        # 32-bit numbers sort in half the time.
        dtype = np.int32 if self.num_rows < 2**31 else np.int64
        self._offsets = np.array([first[column.table] for column in schema.categorical], dtype=dtype)

    def lookups(self, ids: torch.Tensor | Jagged) -> Lookups:
        if isinstance(ids, Jagged):
            return self._jagged(ids)
        num_samples, num_features = ids.shape
        rows = ids.cpu().numpy().astype(self._offsets.dtype) + self._offsets
        return Lookups(rows.ravel(), np.arange(num_samples + 1, dtype=np.int64) * num_features)

    def _jagged(self, ids: Jagged) -> Lookups:
        num_features, num_samples = ids.lengths.shape
        lengths = ids.lengths.cpu().numpy()
        rows = ids.values.cpu().numpy().astype(self._offsets.dtype) + np.repeat(self._offsets, lengths.sum(1))
        sample = np.repeat(np.tile(np.arange(num_samples), num_features), lengths.ravel())
        starts = np.concatenate([[0], np.cumsum(lengths.sum(0))]).astype(np.int64)
        return Lookups(rows[np.argsort(sample, kind="stable")], starts)
