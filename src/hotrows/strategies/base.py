"""What a strategy decides: how the embedding bags are made, and how batches come to them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from hotrows.batch import Batch
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.optim import RowOptimizer
from hotrows.table import Table


@dataclass(frozen=True)
class CacheSettings:
    """What a user chooses of a cache; a strategy may overrule it."""

    size: int | str = "1.5%"
    policy: str = "lookahead"
    index: str = "auto"
    depth: int = 4
    window: int = 32


class Strategy(ABC):
    """A way to train with rows that do not all fit on the device."""

    def __init__(self, cache: CacheSettings) -> None:
        self.cache = cache

    @abstractmethod
    def make_bags(
        self, tables: Sequence[Table], dim: int, optimizer: RowOptimizer, device: torch.device, seed: int
    ) -> EmbeddingBagCollection:
        """The embedding bags of a model."""

    @abstractmethod
    def batches(self, loader: Iterable[Batch], bags: EmbeddingBagCollection) -> Iterator[Batch]:
        """The batches to train on, in the order of the loader."""
