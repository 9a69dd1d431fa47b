"""Baselines: what the strategies are measured against."""

from collections.abc import Iterable, Iterator, Sequence

import torch

from hotrows.batch import Batch
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.optim import RowOptimizer
from hotrows.strategies.base import Strategy
from hotrows.strategies.lookahead import lookahead
from hotrows.table import Table


class DeviceStrategy(Strategy):
    """All rows on the device: the ceiling."""

    def make_bags(
        self, tables: Sequence[Table], dim: int, optimizer: RowOptimizer, device: torch.device, seed: int
    ) -> EmbeddingBagCollection:
        return EmbeddingBagCollection(tables, dim, optimizer=optimizer, store="device", device=device, seed=seed)

    def batches(self, loader: Iterable[Batch], bags: EmbeddingBagCollection) -> Iterator[Batch]:
        # a batch's rows are sorted while earlier ones train
        return lookahead(loader, bags, self.cache.depth, self.cache.depth + 3)


class HostStrategy(DeviceStrategy):
    """Rows and their optimizer on the CPU, whatever the device of the model: the floor."""

    def make_bags(
        self, tables: Sequence[Table], dim: int, optimizer: RowOptimizer, device: torch.device, seed: int
    ) -> EmbeddingBagCollection:
        return super().make_bags(tables, dim, optimizer, torch.device("cpu"), seed)
