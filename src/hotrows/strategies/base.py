"""What a strategy decides: how the embedding bags are made, and how batches come to them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
    """A way to train with rows that do not all fit on the device.

    Args:
        options: the strategy's own section of a run file; None takes its defaults.
        counts: how often each id of each table occurs in what will be trained on, int64 [rows] by table.
    """

    loads_ahead = False  # takes batches from the loader in a thread of its own
    overrules: tuple[str, ...] = ()  # cache settings that it chooses by itself, where it has a cache

    def __init__(
        self, cache: CacheSettings, options: Any = None, counts: Callable[[], dict[str, Tensor]] | None = None
    ) -> None:
        self.cache = cache
        self.options = options
        self.counts = counts
        # the same from a random share of it only: (share, seed) → counts
        self.sampled_counts: Callable[[float, int], dict[str, Tensor]] | None = None

    def overruled(self) -> dict[str, Any]:
        """Cache settings that were chosen and are not used."""
        default = CacheSettings()
        chosen = {name: getattr(self.cache, name) for name in self.overrules}
        return {name: value for name, value in chosen.items() if value != getattr(default, name)}

    @abstractmethod
    def make_bags(
        self, tables: Sequence[Table], dim: int, optimizer: RowOptimizer, device: torch.device, seed: int
    ) -> EmbeddingBagCollection:
        """The embedding bags of a model."""

    @abstractmethod
    def batches(self, loader: Iterable[Batch], bags: EmbeddingBagCollection) -> Iterator[Batch]:
        """The batches to train on, in the order of the loader."""

    def warmed_up(self) -> None:
        """What it measures of itself begins here: before, kernels were compiled and steps recorded."""

    def outcome(self, bags: EmbeddingBagCollection) -> dict[str, Any]:
        """What it has to say of itself after a run, for the run's summary."""
        return {}
