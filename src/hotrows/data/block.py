"""A run of samples in memory, in the order in which they are handed out; batches are cut from it."""

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
        """Sample order[i] of this becomes sample i."""
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

    The bits of float32 values stand there as int32: so a sample is one piece of memory, which is what shuffling moves.
    It is shuffled when a batch is cut: sample i is row order[i]. Where nothing is shuffled, the rows are a view of
    columns, and cutting a batch turns them.
    Where samples have any number of ids, the rows have none, and `ragged` has a column per feature, in order already.
    """

    rows: Int32  # [n, F + number of dense features + 1]
    num_dense: int
    order: Int64 | None = None  # [n]
    ragged: tuple[RaggedColumn, ...] | None = None
    memory: Int32 | None = None  # where the rows are, for another block to use after this one


@dataclass(frozen=True)
class Span:
    """Samples `start` to `stop` of a block."""

    block: Block
    start: int
    stop: int


def make_batch(spans: Sequence[Span]) -> Batch:
    """One batch, with memory of its own, of samples that lie in one block or, at its end, in several."""
    # numpy only: for copies of this size torch would wake threads, which then are in the way of those that read ahead
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
