"""Batches of a prepared split: threads read shards ahead, and batches are copied from them without a loop over rows."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from hotrows.batch import Batch
from hotrows.data.block import Block, Int64, Span, make_batch
from hotrows.data.read_ahead import read_ahead
from hotrows.data.resumable import ResumableLoader
from hotrows.data.schema import Schema
from hotrows.data.shards import BlockReader, ParquetRowGroup, Piece
from hotrows.data.share import Share


class ShardLoader(ResumableLoader):
    """Batches from the row groups of a split, or from a rank's share of them.

    With shuffling, the order of the row groups is drawn from (seed, epoch), and the samples of each `groups_per_block`
    successive row groups are shuffled together. A rank has a contiguous range of that order, so over the epochs it
    sees all samples.

    Args:
        threads: the number of blocks that are read at the same time, ahead of the batches. At most one more block is
            held that is read and not yet used.
        groups_per_block: row groups per block. More of them shuffle the samples better and take more memory.
    """

    def __init__(
        self,
        row_groups: Sequence[ParquetRowGroup],
        schema: Schema,
        share: Share,
        *,
        shuffle: bool = False,
        seed: int = 0,
        threads: int = 2,
        groups_per_block: int = 4,
    ) -> None:
        super().__init__(share, shuffle=shuffle, seed=seed)
        if threads < 1 or groups_per_block < 1:
            raise ValueError(f"threads is {threads}, groups_per_block is {groups_per_block}: both must be 1 or more")
        self._row_groups = row_groups
        self._schema = schema
        self._threads = threads
        self._groups_per_block = groups_per_block if shuffle else 1

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "groups_per_block": self._groups_per_block}

    def _batches(self, epoch: int, first: int) -> Iterator[Batch]:
        blocks = self._blocks(epoch)
        ends = list(accumulate(sum(p.stop - p.start for p in block) for block in blocks))
        position = self.share.bound(first)  # in samples, over all blocks
        number = bisect_right(ends, position)
        reader = BlockReader(self._schema)
        reads = read_ahead(
            lambda i: reader.read(blocks[i], self._order(epoch, i, blocks[i])),
            range(number, len(blocks)),
            self._threads,
        )
        block: Block | None = None
        for batch in range(first, len(self)):
            spans, finished = [], []
            while position < self.share.bound(batch + 1):
                if block is None:
                    block = next(reads)
                stop = min(self.share.bound(batch + 1), ends[number])
                begin = ends[number] - len(block.rows)
                spans.append(Span(block, position - begin, stop - begin))
                position = stop
                if position == ends[number]:
                    finished.append(block)
                    block = None
                    number += 1
            made = make_batch(spans)
            for each in finished:
                reader.recycle(each)
            yield made

    def _blocks(self, epoch: int) -> list[list[Piece]]:
        """This rank's pieces of row groups in the order of the epoch, one list for each block."""
        order: Sequence[int] = range(len(self._row_groups))
        if self.shuffle:
            order = self._random(epoch).permutation(len(self._row_groups)).tolist()
        pieces = []
        begin = 0
        for number in order:
            group = self._row_groups[number]
            start, stop = max(self.share.start - begin, 0), min(self.share.stop - begin, group.num_rows)
            if start < stop:
                pieces.append(Piece(group, start, stop))
            begin += group.num_rows
        size = self._groups_per_block
        return [pieces[i : i + size] for i in range(0, len(pieces), size)]

    def _order(self, epoch: int, number: int, pieces: Sequence[Piece]) -> Int64 | None:
        """The order of the samples of a block."""
        if not self.shuffle:
            return None
        total = sum(piece.stop - piece.start for piece in pieces)
        return self._random(epoch, self.share.rank, number).permutation(total)

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed % 2**64, *key])
