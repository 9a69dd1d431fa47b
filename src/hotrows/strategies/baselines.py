"""Baselines: all rows in one place, which the other strategies are measured against."""

from collections.abc import Iterable, Iterator, Sequence

import torch

from hotrows.batch import Batch
from hotrows.loop.lookahead import lookahead
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.optim import RowOptimizer
from hotrows.strategies.base import Strategy
from hotrows.table import Table


class DeviceStrategy(Strategy):
    """All rows on the device: the fastest way, where they fit."""

    help = "All rows on the device. The fastest way, where they fit."

    def make_bags(
        self, tables: Sequence[Table], dim: int, optimizer: RowOptimizer, device: torch.device, seed: int
    ) -> EmbeddingBagCollection:
        return EmbeddingBagCollection(tables, dim, optimizer=optimizer, store="device", device=device, seed=seed)

    def batches(self, loader: Iterable[Batch], bags: EmbeddingBagCollection) -> Iterator[Batch]:
        # Rows need not be moved, but looking ahead lets the rows of a batch be sorted while earlier batches train.
        return lookahead(loader, bags, self.cache.depth, self.cache.depth + 3)


class HostStrategy(DeviceStrategy):
    """Rows and their optimizer on the CPU, whichever device the model is on: the slowest way."""

    help = "Rows and their optimizer on the CPU, whichever device the model is on. The slowest way."

    def make_bags(
        self, tables: Sequence[Table], dim: int, optimizer: RowOptimizer, device: torch.device, seed: int
    ) -> EmbeddingBagCollection:
        return super().make_bags(tables, dim, optimizer, torch.device("cpu"), seed)
