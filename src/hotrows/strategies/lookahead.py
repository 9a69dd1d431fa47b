"""The default strategy: it knows the ids of the batches to come, and moves rows while earlier batches train."""

from collections.abc import Iterable, Iterator, Sequence

import torch

from hotrows.batch import Batch
from hotrows.loop.lookahead import lookahead
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.optim import RowOptimizer
from hotrows.strategies.base import Strategy
from hotrows.table import Table


class LookaheadStrategy(Strategy):
    """A cache of any size, with the rows of the next batches moved while the current one trains."""

    help = "Knows the ids of the next batches and moves their rows while the current one trains. The default."

    def make_bags(
        self, tables: Sequence[Table], dim: int, optimizer: RowOptimizer, device: torch.device, seed: int
    ) -> EmbeddingBagCollection:
        return EmbeddingBagCollection(
            tables,
            dim,
            cache=self.cache.size,
            optimizer=optimizer,
            policy=self.cache.policy,
            index=self.cache.index,
            device=device,
            seed=seed,
        )

    def batches(self, loader: Iterable[Batch], bags: EmbeddingBagCollection) -> Iterator[Batch]:
        return lookahead(loader, bags, self.cache.depth, self.cache.window)
