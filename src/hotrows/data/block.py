"""Consecutive samples in memory, from which batches are copied."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotrows.batch import Batch, Jagged

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class RaggedColumn:
    """A column with any number of ids per sample: sample i has values[offsets[i] : offsets[i + 1]]."""

    values: Int32  # [N]
    offsets: Int64  # [n + 1]

    def reordered(self, order: Int64) -> "RaggedColumn":
        """The same column with sample order[i] at position i."""
        lengths = np.diff(self.offsets)[order]
        offsets = _offsets(lengths)
        source = np.repeat(self.offsets[:-1][order] - offsets[:-1], lengths) + np.arange(len(self.values))
        return RaggedColumn(self.values[source], offsets)

    @staticmethod
    def joined(values: Sequence[Int32], lengths: Sequence[Int64]) -> "RaggedColumn":
        return RaggedColumn(np.concatenate(values), _offsets(np.concatenate(lengths)))


@dataclass(frozen=True)
class Block:
    """n samples, each of them one row of `rows`: ids, then dense values, then the label.

    The bits of float32 values are stored as int32, so that a sample is contiguous and one copy moves it. Samples are
    shuffled when a batch is copied: sample i is row order[i]. Without shuffling the rows are a transposed view of
    columns, and copying a batch transposes them.
    If a sample may have any number of ids per column, the rows hold no ids, and `ragged` has one column per feature,
    which is already shuffled.
    """

    rows: Int32  # [n, F + number of dense features + 1]
    num_dense: int
    order: Int64 | None = None  # [n]
    ragged: tuple[RaggedColumn, ...] | None = None
    memory: Int32 | None = None  # the buffer behind `rows`, for reuse by a later block


@dataclass(frozen=True)
class Span:
    """Samples `start` to `stop` of a block."""

    block: Block
    start: int
    stop: int


def make_batch(spans: Sequence[Span]) -> Batch:
    """Copy one batch from samples of one block, or of several where a block ends within the batch."""
    # This uses numpy, because torch would copy with several threads, which would compete with those that read ahead.
    rows = _join([_rows(s) for s in spans])
    num_ids = rows.shape[1] - spans[0].block.num_dense - 1
    dense = torch.from_numpy(rows[:, num_ids:-1].copy().view(np.float32))
    label = torch.from_numpy(rows[:, -1].copy().view(np.float32))
    if spans[0].block.ragged is not None:
        return Batch(dense, _jagged(spans), label)
    return Batch(dense, torch.from_numpy(rows[:, :num_ids].astype(np.int64, order="C")), label)


def _rows(span: Span) -> Int32:
    rows, order = span.block.rows, span.block.order
    if order is None:
        return rows[span.start : span.stop]
    return rows.take(order[span.start : span.stop], axis=0)


def _jagged(spans: Sequence[Span]) -> Jagged:
    values, lengths = [], []
    for columns in zip(*(s.block.ragged or () for s in spans), strict=True):
        offsets = [c.offsets[s.start : s.stop + 1] for c, s in zip(columns, spans, strict=True)]
        values += [c.values[o[0] : o[-1]] for c, o in zip(columns, offsets, strict=True)]
        lengths.append(_join([np.diff(o) for o in offsets]))
    return Jagged(torch.from_numpy(np.concatenate(values, dtype=np.int64)), torch.from_numpy(np.stack(lengths)))


def _join(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _offsets(lengths: Int64) -> Int64:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
