"""HECA: hot rows stay on the device, the rest comes and goes, and loading, collecting and training overlap.

A Heterogeneous Embedding Caching Algorithm for Multi-GPU CTR Prediction Model Training (2024). Where the paper's
Algorithm 1 is silent, its cache is ours: the hash index probes a bounded number of cells, every victim is written back,
and a batch for which there are too few victims goes through the overflow buffer. Among the rows that may go, the paper
names no order; here the one looked up least often since it came goes first, or the least recently used (`victims`).
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.cache.stats import Stats
from hotrows.cache.transfer import ZeroCopy
from hotrows.data.read_ahead import iterate_ahead_if_slow
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.optim import RowOptimizer
from hotrows.strategies.base import CacheSettings, Strategy
from hotrows.strategies.hot_set import HotSet, Room, check_threshold, choose_hot
from hotrows.strategies.lookahead import lookahead
from hotrows.strategies.stage_times import StageClock, StageTimes
from hotrows.table import Table

logger = logging.getLogger("hotrows")

CONSISTENCIES = ("exact", "stale")
VICTIMS = ("lfu", "lru")
DEPTH = 1  # the next batch's rows are fetched while the current one trains
HASTE = 2.0  # of the moves, which have what planning leaves of the current batch's time
WINDOW = 4  # batches taken from the loader ahead: the next ones' plans are made a turn or two before they move


@dataclass(frozen=True)
class HecaOptions:
    """Section [heca] of a run file.

    Args:
        hot: which rows are hot: those that occur so often in the sample (10), the most frequent ones that get this
            share of its accesses ("90%"), or as many of them as this memory holds ("256MB").
        sample: share of the training samples that frequencies are counted on.
        sample_seed: of that sample.
        dynamic: share of the cache, at least, for rows that come and go; hot rows beyond the rest are left out.
        victims: which of them goes first: "lfu", the one looked up least often since it came, which keeps more of a
            click log's rows, or "lru", the least recently used, for logs whose users and items come and go.
        consistency: "exact", or "stale": the next batch reads its rows when they are fetched, before the current one
            has updated them, as published.
    """

    hot: int | str = "90%"
    sample: float = 0.05
    sample_seed: int = 0
    dynamic: float = 0.5
    victims: str = "lfu"
    consistency: str = "exact"

    def __post_init__(self) -> None:
        check_threshold(self.hot)
        if not 0 < self.sample <= 1:
            raise ValueError(f"heca.sample is {self.sample}, it must be above 0 and at most 1: 0.05 for 5%")
        if not 0 < self.dynamic <= 1:
            raise ValueError(f"heca.dynamic is {self.dynamic}, it must be above 0 and at most 1: 0.5 for half")
        if self.victims not in VICTIMS:
            raise ValueError(f"heca.victims is {self.victims!r}: known are {', '.join(VICTIMS)}")
        if self.consistency not in CONSISTENCIES:
            raise ValueError(f"heca.consistency is {self.consistency!r}: known are {', '.join(CONSISTENCIES)}")


class HecaStrategy(Strategy):
    """A static part of the cache for hot rows, a dynamic one for the next batch's misses, three overlapping stages.

    Of the cache's settings only its size counts: index, policy and depth are HECA's own.
    """

    loads_ahead = True
    overrules = ("policy", "index", "depth", "window")

    def __init__(
        self, cache: CacheSettings, options: Any = None, counts: Callable[[], dict[str, Tensor]] | None = None
    ) -> None:
        super().__init__(cache, options, counts)
        self.options: HecaOptions = HecaOptions() if options is None else options
        self.hot: HotSet | None = None  # once the bags are made
        self._clock: StageClock | None = None

    def make_bags(
        self, tables: Sequence[Table], dim: int, optimizer: RowOptimizer, device: torch.device, seed: int
    ) -> EmbeddingBagCollection:
        bags = EmbeddingBagCollection(
            tables, dim, cache=self.cache.size, optimizer=optimizer, policy=self.options.victims, index="hash",
            device=device, seed=seed, transfer=ZeroCopy(HASTE),
        )  # fmt: skip
        self.hot = self._choose_hot(bags)
        preload(bags, self.hot)
        if self.options.consistency == "stale":
            for group in bags.groups:
                group.read_rows_early()
        return bags

    def batches(self, loader: Iterable[Batch], bags: EmbeddingBagCollection) -> Iterator[Batch]:
        """The three stages: a loader in a thread, a collector in the lanes of the cache, the caller as the trainer.

        A loader that takes less than handing over its batches is not kept in a thread of its own.
        """
        if self._clock is None or not self._clock.is_of(bags):
            self._clock = StageClock(bags)
        loaded = iterate_ahead_if_slow(self._clock.loading(loader))
        return self._clock.training(lookahead(loaded, bags, DEPTH, WINDOW))

    @property
    def stage_times(self) -> StageTimes | None:
        """Of the batches so far, or since the warm-up; None before the first loop."""
        return None if self._clock is None else self._clock.times()

    def warmed_up(self) -> None:
        if self._clock is not None:
            self._clock.restart()

    def outcome(self, bags: EmbeddingBagCollection) -> dict[str, Any]:
        stats, times = bags.stats(), self.stage_times
        found: dict[str, Any] = {"consistency": self.options.consistency}
        if self.hot is not None:
            found |= {"hot_rows": self.hot.num_rows, "hot_share_of_accesses": self.hot.share_of_accesses}
        if self.options.consistency == "stale":
            found |= {"reads": stats.unique, "stale_reads": stats.stale, "stale_share": stats.stale_share}
        if times is not None:
            found["stages_ms"] = times.to_json()
        return found

    def _choose_hot(self, bags: EmbeddingBagCollection) -> HotSet:
        counts = self._count()
        rooms = {
            table.name: Room(bags.groups.index(group), group.store.layout.num_bytes)
            for table in bags.tables
            for group in [bags.group_of(table.name)]
        }
        limits = {i: int((1 - self.options.dynamic) * group.num_slots) for i, group in enumerate(bags.groups)}
        hot = choose_hot(counts, self.options.hot, rooms, limits)
        if hot.num_rows < hot.num_wanted:
            logger.warning(
                "heca: %d rows are hot by the threshold %s, but %d of them fill the static part of the cache (%d%% of "
                "it): only these stay, with %.1f%% of the accesses; raise the threshold or make the cache larger",
                hot.num_wanted, self.options.hot, hot.num_rows, round(100 * (1 - self.options.dynamic)),
                100 * hot.share_of_accesses,
            )  # fmt: skip
        return hot

    def _count(self) -> dict[str, Tensor]:
        """On a sample where there is one, else on all that is known."""
        if self.sampled_counts is not None:
            return self.sampled_counts(self.options.sample, self.options.sample_seed)
        if self.counts is not None:
            return self.counts()
        logger.warning("heca: nothing is known of the frequencies, so no row is hot and the whole cache is dynamic")
        return {}


def preload(bags: EmbeddingBagCollection, hot: HotSet) -> None:
    """Bring the hot rows into the cache, never to be evicted. That is no training: only the bytes are counted."""
    for name, ids in hot.ids.items():
        if ids.numel():
            bags.pin(name, ids)
    for group in bags.groups:
        group.stats = Stats(bytes_in=group.totals().bytes_in)
