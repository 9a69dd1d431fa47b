"""What a strategy decides: how the embedding bags are built, and in which order and how batches reach them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hotrows.batch import Batch
from hotrows.cache.indexes import INDEXES
from hotrows.cache.policies import POLICIES
from hotrows.cache.policies.next_use import WINDOW_LIMIT
from hotrows.data.schema import Loader
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.optim import RowOptimizer
from hotrows.options import option
from hotrows.strategies.data_knowledge import DataKnowledge
from hotrows.table import Table


@dataclass(frozen=True)
class CacheSettings:
    """Section [cache]: the settings of the cache. A strategy may overrule some of them."""

    size: int | str = option(
        "1.5%", "Rows on the device.", also='a number (500000), a share ("1.5%") or memory ("2GB")'
    )
    policy: str = option("lookahead", "Which rows stay.", choices=POLICIES)
    index: str = option("auto", "How a row's slot is found.", choices=("auto", *INDEXES))
    depth: int = option(4, "How many batches ahead rows are moved.", least=0)
    window: int = option(
        32,
        "How many batches ahead the policy knows the ids, the current batch included.",
        least=1,
        most=WINDOW_LIMIT,
    )


@dataclass(frozen=True)
class NoOptions:
    """The options of a strategy that has no settings of its own. Such a strategy has no section in a run file."""


class Strategy(ABC):
    """A way to train with rows that do not all fit on the device.

    To add one, write a subclass in a file of its own and name it in `hotrows.strategies.STRATEGIES`. Run files,
    `hotrows train --help` and the report take everything else from the class attributes.

    Args:
        cache: the settings of the cache.
        options: the strategy's own settings, an `options_type`. None takes the defaults.
        data: what is known about the training split. None where nothing is known.
    """

    help: str = ""  # one sentence for `hotrows train --help` and the report
    options_type: type[Any] = NoOptions  # a dataclass, see `option`; its section in a run file has the strategy's name
    overrules: tuple[str, ...] = ()  # the cache settings that the strategy chooses itself
    loads_ahead = False  # True if `batches` already reads the loader in a thread of its own

    options: Any

    def __init__(self, cache: CacheSettings, options: Any = None, data: DataKnowledge | None = None) -> None:
        if options is not None and not isinstance(options, self.options_type):
            raise ValueError(
                f"the options of {type(self).__name__} are {options!r}, they must be a {self.options_type.__name__}"
            )
        self.cache = cache
        self.options = self.options_type() if options is None else options
        self.data = data

    def overruled(self) -> dict[str, Any]:
        """The cache settings that the user changed from their defaults and that this strategy does not use."""
        default = CacheSettings()
        chosen = {name: getattr(self.cache, name) for name in self.overrules}
        return {name: value for name, value in chosen.items() if value != getattr(default, name)}

    @abstractmethod
    def make_bags(
        self, tables: Sequence[Table], dim: int, optimizer: RowOptimizer, device: torch.device, seed: int
    ) -> EmbeddingBagCollection:
        """Build the embedding bags of a model."""

    def loader(self, loader: Loader) -> Loader:
        """Return the loader to train with: the one that is given, or one that wraps, reorders or repacks its batches.

        Called once, before the first epoch. The length of the result is the number of batches of an epoch, and
        `set_epoch` is called on it before each epoch. Batches are read up to `window` batches before they train, so a
        loader that decides the order while it is iterated decides that much earlier.
        """
        return loader

    @abstractmethod
    def batches(self, loader: Iterable[Batch], bags: EmbeddingBagCollection) -> Iterator[Batch]:
        """Iterate over one epoch, in the order of the loader, and have the rows of each batch ready when it trains.

        Args:
            loader: the batches of `self.loader(…)`. For a model on a GPU they are in pinned memory.
        """

    def evaluated(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        """Called after every evaluation during training, and after the final one on the test split.

        Args:
            split: "valid" or "test".
            step: the number of steps trained so far.
            metrics: "auc", "logloss" and "accuracy".
        """

    def warmed_up(self) -> None:
        """Called when the warm-up of a measured run ends. Compiling and capturing are over, so timing can begin."""

    def outcome(self, bags: EmbeddingBagCollection) -> dict[str, Any]:
        """What the strategy reports about itself after a run, as JSON values for the run's summary."""
        return {}

    @classmethod
    def describe_outcome(cls, outcome: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The outcome as lines for people: a name and a text each."""
        return [(name.replace("_", " "), str(value)) for name, value in outcome.items()]
