"""FreqCache: rows ordered from hot to cold, the coldest evicted, moved in blocks, one batch after the other."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.cache.transfer import BlockTransmitter
from hotrows.loop.preload import preload_hottest
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.optim import RowOptimizer
from hotrows.options import check_options, option
from hotrows.stores.row_order import RowOrder
from hotrows.strategies.base import Strategy
from hotrows.table import Table


@dataclass(frozen=True)
class FreqCacheOptions:
    """Section [freqcache] of a run file. The defaults are the published values."""

    warmup_ratio: float = option(
        0.7, "Share of the slots that are filled with the hottest rows before training.", least=0, most=1
    )
    buffer_rows: int = option(50_000, "The most rows that are copied at once; more go in several passes.", least=1)
    sample: float | None = option(
        None,
        "Share of the training samples on which frequencies are counted; left out, the data set's own counts.",
        above=0,
        most=1,
    )
    sample_seed: int = option(0, "Seed of that sample.")

    def __post_init__(self) -> None:
        check_options(self, "freqcache")


class FreqCacheStrategy(Strategy):
    """A cache that knows how frequent rows are, and nothing about later batches (Fang et al., 2022).

    It takes the size and the index from the cache settings. The policy is the known frequency, and the depth is 0.
    """

    help = "Orders rows by frequency and evicts the coldest, one batch after the other (FreqCache, 2022)."
    options_type = FreqCacheOptions
    overrules = ("policy", "depth", "window")

    options: FreqCacheOptions

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
        for scheduler in bags.schedulers:
            # Round before ceil: 0.7 · 110 may be slightly more than 77 in floating point, and must not become 78.
            num_rows = math.ceil(round(self.options.warmup_ratio * scheduler.cache.num_slots, 6))
            preload_hottest(scheduler, num_rows)
        return bags

    def batches(self, loader: Iterable[Batch], bags: EmbeddingBagCollection) -> Iterator[Batch]:
        # Without lookahead, every batch is planned and its rows are moved when it is looked up.
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
        if self.data is None:
            raise ValueError("strategy 'freqcache' orders rows by frequency: give it counts")
        if self.options.sample is not None:
            return self.data.sampled_counts(self.options.sample, self.options.sample_seed)
        return self.data.counts()


def _fitted(counts: Tensor, num_rows: int) -> Tensor:
    """One count per row of the table. A model may be evaluated on data with fewer ids than its tables have rows."""
    fitted = torch.zeros(num_rows, dtype=torch.int64)
    fitted[: counts.numel()] = counts[:num_rows]
    return fitted
