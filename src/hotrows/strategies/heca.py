"""HECA: hot rows stay on the device, all others are cached on demand, and loading, collecting and training overlap.

A Heterogeneous Embedding Caching Algorithm for Multi-GPU CTR Prediction Model Training (2024). Where the paper's
Algorithm 1 is silent, this strategy does what our cache does: the hash index probes a bounded number of cells, every
victim is written back, and rows without a slot go through the overflow buffer. The paper names no order among the rows
that may be evicted. Here the row looked up least often since it was fetched is evicted first, or the least recently
used one (`victims`).
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.cache.stats import Stats
from hotrows.cache.transfer import ZeroCopy
from hotrows.data.read_ahead import iterate_ahead_if_slow
from hotrows.loop.lookahead import lookahead
from hotrows.loop.ticket_updates import switch_on_early_reads
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.optim import RowOptimizer
from hotrows.options import check_options, option
from hotrows.strategies.base import CacheSettings, Strategy
from hotrows.strategies.data_knowledge import DataKnowledge
from hotrows.strategies.hot_set import HotSet, TableCost, check_threshold, choose_hot
from hotrows.strategies.stage_times import StageTimer, StageTimes
from hotrows.table import Table

logger = logging.getLogger("hotrows")

DEPTH = 1  # the rows of the next batch are fetched while the current batch trains
HASTE = 2.0  # moves must finish in the part of the current batch's time that planning leaves, so they are hurried
WINDOW = 4  # batches read ahead from the loader, so that plans are made one or two iterations before their moves


@dataclass(frozen=True)
class HecaOptions:
    """Section [heca] of a run file."""

    hot: int | str = option(
        "90%",
        "Which rows are hot.",
        also="rows that occur at least this often in the sample (10), the most frequent rows that get this share of "
        'its accesses ("90%"), or as many of them as fit into this much memory ("256MB")',
    )
    sample: float = option(
        0.05, "Share of the training samples on which frequencies are counted: 0.05 for 5%.", above=0, most=1
    )
    sample_seed: int = option(0, "Seed of that sample.")
    dynamic: float = option(
        0.5,
        "Least share of the cache for rows that are not hot. Hot rows that do not fit into the rest are left out.",
        above=0,
        most=1,
    )
    victims: str = option(
        "lfu",
        'Which row is evicted first: "lfu", the one looked up least often since it was fetched, which suits most click '
        'logs, or "lru", the least recently used one, for logs whose users and items change.',
        choices=("lfu", "lru"),
    )
    consistency: str = option(
        "exact",
        '"exact", or as published "stale": the rows of the next batch are read when they are fetched, before the '
        "current batch has updated them.",
        choices=("exact", "stale"),
    )

    def __post_init__(self) -> None:
        check_threshold(self.hot)
        check_options(self, "heca")


class HecaStrategy(Strategy):
    """A static part of the cache for hot rows, a dynamic part for the next batch's misses, three overlapping stages.

    It takes only the size from the cache settings. Index, policy and depth are HECA's own.
    """

    help = "Keeps hot rows on the device, and overlaps loading, collecting rows and training (HECA, 2024)."
    options_type = HecaOptions
    overrules = ("policy", "index", "depth", "window")
    loads_ahead = True

    options: HecaOptions

    def __init__(self, cache: CacheSettings, options: Any = None, data: DataKnowledge | None = None) -> None:
        super().__init__(cache, options, data)
        self.hot: HotSet | None = None  # chosen when the bags are made
        self._timer: StageTimer | None = None

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
            for scheduler in bags.schedulers:
                switch_on_early_reads(scheduler)
        return bags

    def batches(self, loader: Iterable[Batch], bags: EmbeddingBagCollection) -> Iterator[Batch]:
        """Run the three stages: the loader in a thread, the collector in the cache's streams, the caller as trainer.

        The loader gets no thread of its own if making a batch takes less time than handing it over to another thread.
        """
        if self._timer is None or not self._timer.is_of(bags):
            self._timer = StageTimer(bags)
        loaded = iterate_ahead_if_slow(self._timer.loading(loader))
        return self._timer.training(lookahead(loaded, bags, DEPTH, WINDOW))

    @property
    def stage_times(self) -> StageTimes | None:
        """The times of all batches so far, or of those since the warm-up. None before the first loop."""
        return None if self._timer is None else self._timer.times()

    def warmed_up(self) -> None:
        if self._timer is not None:
            self._timer.restart()

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

    @classmethod
    def describe_outcome(cls, outcome: Mapping[str, Any]) -> list[tuple[str, str]]:
        lines = []
        if "hot_rows" in outcome:
            share = outcome["hot_share_of_accesses"]
            lines.append(("hot rows", f"{outcome['hot_rows']:,}, never evicted ({share:.1%} of accesses)"))
        if "stale_share" in outcome:
            share = outcome["stale_share"]
            lines.append(("stale reads", f"{share:.1%} of {outcome['reads']:,} rows read were one update old"))
        if "stages_ms" in outcome:
            lines.append(("stages, ms", ", ".join(f"{name} {ms:.2f}" for name, ms in outcome["stages_ms"].items())))
        return lines

    def _choose_hot(self, bags: EmbeddingBagCollection) -> HotSet:
        counts = self._count()
        costs = {
            table.name: TableCost(bags.caches.index(cache), cache.store.layout.num_bytes)
            for table in bags.tables
            for cache in [bags.cache_of(table.name)]
        }
        limits = {i: int((1 - self.options.dynamic) * cache.num_slots) for i, cache in enumerate(bags.caches)}
        hot = choose_hot(counts, self.options.hot, costs, limits)
        if hot.num_rows < hot.num_wanted:
            logger.warning(
                "heca: %d rows are hot by the threshold %s, but %d of them fill the static part of the cache (%d%% of "
                "it): only these stay, with %.1f%% of the accesses; raise the threshold or make the cache larger",
                hot.num_wanted, self.options.hot, hot.num_rows, round(100 * (1 - self.options.dynamic)),
                100 * hot.share_of_accesses,
            )  # fmt: skip
        return hot

    def _count(self) -> dict[str, Tensor]:
        if self.data is not None:
            return self.data.sampled_counts(self.options.sample, self.options.sample_seed)
        logger.warning("heca: nothing is known of the frequencies, so no row is hot and the whole cache is dynamic")
        return {}


def preload(bags: EmbeddingBagCollection, hot: HotSet) -> None:
    """Fetch the hot rows into the cache and pin them. Only the bytes count in the stats, because no batch trained."""
    for name, ids in hot.ids.items():
        if ids.numel():
            bags.pin(name, ids)
    for scheduler in bags.schedulers:
        scheduler.cache.stats = Stats(bytes_in=scheduler.totals().bytes_in)
