"""FreqCache: rows ordered from hot to cold, the coldest evicted, moved in blocks, one batch after the other."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.cache.maintenance import preload_hottest
from hotrows.cache.transfer import BlockTransmitter
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.optim import RowOptimizer
from hotrows.stores.row_order import RowOrder
from hotrows.strategies.base import CacheSettings, Strategy
from hotrows.table import Table


@dataclass(frozen=True)
class FreqCacheOptions:
    """What a user chooses of FreqCache, with the published values.

    Args:
        warmup_ratio: the share of the slots that are filled with the hottest rows before training.
        buffer_rows: the most rows that are copied at once.
        sample: the share of the training samples on which frequencies are counted; None: the data set's own counts.
        sample_seed: of that sample.
    """

    warmup_ratio: float = 0.7
    buffer_rows: int = 50_000
    sample: float | None = None
    sample_seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_ratio <= 1:
            raise ValueError(f"freqcache.warmup_ratio is {self.warmup_ratio}, it must be from 0 to 1")
        if self.buffer_rows < 1:
            raise ValueError(f"freqcache.buffer_rows is {self.buffer_rows}, it must be 1 or more")
        if self.sample is not None and not 0 < self.sample <= 1:
            raise ValueError(f"freqcache.sample is {self.sample}, it must be more than 0 and at most 1")


class FreqCacheStrategy(Strategy):
    """A cache that knows how frequent rows are, and nothing of the batches to come (Fang et al., 2022).

    Takes the size and the index of the cache settings. The policy is the frequency known beforehand, the depth 0.
    """

    overrules = ("policy", "depth", "window")

    def __init__(
        self, cache: CacheSettings, options: Any = None, counts: Callable[[], dict[str, Tensor]] | None = None
    ) -> None:
        super().__init__(cache, FreqCacheOptions() if options is None else options, counts)

    def make_bags(
        self, tables: Sequence[Table], dim: int, optimizer: RowOptimizer, device: torch.device, seed: int
    ) -> EmbeddingBagCollection:
        bags = EmbeddingBagCollection(
            tables,
            dim,
            cache=self.cache.size,
            optimizer=optimizer,
            policy="frequency",
            index=self.cache.index,
            device=device,
            seed=seed,
            row_order=RowOrder(self._counts_of(tables)),
            transfer=BlockTransmitter(self.options.buffer_rows),
        )
        for group in bags.groups:
            # rounded first: 0.7 · 110 could be a little more than 77, and must not become 78
            preload_hottest(group, math.ceil(round(self.options.warmup_ratio * group.num_slots, 6)))
        return bags

    def batches(self, loader: Iterable[Batch], bags: EmbeddingBagCollection) -> Iterator[Batch]:
        # every batch is planned, and its rows are moved, when it is looked up
        return iter(loader)

    def _counts_of(self, tables: Sequence[Table]) -> dict[str, Tensor]:
        counted = self._count()
        missing = [table.name for table in tables if table.name not in counted]
        if missing:
            raise ValueError(
                f"strategy 'freqcache' orders rows by frequency, and the counts have no table {', '.join(missing)}: "
                f"they are of {', '.join(counted)}; give a count for every id of every table"
            )
        return {table.name: _fitted(counted[table.name], table.num_rows) for table in tables}

    def _count(self) -> dict[str, Tensor]:
        if self.options.sample is not None and self.sampled_counts is not None:
            return self.sampled_counts(self.options.sample, self.options.sample_seed)
        if self.counts is None:
            raise ValueError("strategy 'freqcache' orders rows by frequency: give it counts")
        return self.counts()


def _fitted(counts: Tensor, num_rows: int) -> Tensor:
    """Counts of as many ids as a table has rows: a model may be evaluated on data with fewer ids."""
    fitted = torch.zeros(num_rows, dtype=torch.int64)
    fitted[: counts.numel()] = counts[:num_rows]
    return fitted
