"""FreqCache: which rows are in the cache, and when."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hotrows
from hotrows.batch import Batch
from hotrows.profile.sampled_counts import sampled_counts
from hotrows.strategies import KnownCounts
from hotrows.strategies.base import CacheSettings
from hotrows.strategies.freqcache import FreqCacheOptions, FreqCacheStrategy
from hotrows.train.config import RunConfig
from hotrows.train.run import run, strategy_of

TABLES = [hotrows.Table("a", 70), hotrows.Table("b", 130)]


def counts() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(2)
    return {table.name: torch.randint(0, 1000, (table.num_rows,), generator=random) for table in TABLES}


def make(
    size: int, options: FreqCacheOptions | None = None, device: str = "cpu"
) -> tuple[FreqCacheStrategy, hotrows.EmbeddingBagCollection]:
    strategy = FreqCacheStrategy(CacheSettings(size=size), options, KnownCounts(counts))
    return strategy, strategy.make_bags(TABLES, 4, hotrows.optim.SGD(lr=0.1), torch.device(device), 0)


def ranks() -> Tensor:
    """The rank of every row, table after table, from hot to cold."""
    return torch.argsort(torch.argsort(torch.cat(list(counts().values())), descending=True, stable=True))


def cached(bags: hotrows.EmbeddingBagCollection) -> set[int]:
    """The ranks in the cache, which are the rows of the store."""
    return set(bags.caches[0].cached_rows().tolist())


def batches(num: int, size: int) -> list[Batch]:
    random = torch.Generator().manual_seed(4)
    ids = [torch.stack([torch.randint(n, (size,), generator=random) for n in (70, 130)], 1) for _ in range(num)]
    return [Batch(torch.empty(0), each, torch.empty(0)) for each in ids]


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.7, 1.0])
def test_the_hottest_rows_are_there_before_training(ratio: float, device: torch.device) -> None:
    _, bags = make(110, FreqCacheOptions(warmup_ratio=ratio), device.type)
    num = round(ratio * 110)
    assert cached(bags) == set(range(num))
    hottest = set((ranks() < num).nonzero().flatten().tolist())
    assert bags.cached_rows() == {"a": sum(row < 70 for row in hottest), "b": sum(row >= 70 for row in hottest)}
    stats = bags.stats()
    assert stats.bytes_in == num * bags.caches[0].store.layout.num_bytes
    assert (stats.batches, stats.lookups, stats.misses, stats.immediate_plans) == (0, 0, 0, 0)
    assert not bags.caches[0].planner.slots.pinned.any()


def test_seven_tenths_are_the_default() -> None:
    _, bags = make(50)
    assert cached(bags) == set(range(35))


def test_victims_are_the_coldest_that_the_batch_does_not_need(device: torch.device) -> None:
    """The cache after every batch is that of the published algorithm, in plain Python."""
    strategy, bags = make(60, device=device.type)
    expected = set(range(42))
    rank = ranks().tolist()
    num_evicted = 0
    for batch in strategy.batches(batches(30, 14), bags):
        needed = {rank[int(id) + first] for column, first in ((0, 0), (1, 70)) for id in batch.ids[:, column]}
        missing = needed - expected
        room = 60 - len(expected)
        victims = sorted(expected - needed, reverse=True)[: max(0, len(missing) - room)]
        expected = expected - set(victims) | missing
        num_evicted += len(victims)
        bags(batch.ids).sum().backward()
        assert cached(bags) == expected
    assert bags.stats().evictions == num_evicted > 100


def test_it_is_synchronous_and_moves_blocks() -> None:
    strategy, bags = make(60, FreqCacheOptions(buffer_rows=4))
    data = batches(5, 14)
    for number, batch in enumerate(strategy.batches(iter(data), bags), start=1):
        bags(batch.ids).sum().backward()
        assert bags.stats().batches == bags.stats().immediate_plans == number
    transfer = bags.caches[0].transfer
    assert transfer.buffer_rows == 4
    assert transfer.bytes_in == bags.stats().bytes_in
    assert transfer.passes >= math.ceil(transfer.bytes_in / bags.caches[0].store.layout.num_bytes / 4)


@pytest.mark.parametrize(
    ("make_options", "message"),
    [
        (lambda: FreqCacheOptions(warmup_ratio=1.1), "freqcache.warmup_ratio is 1.1, it must be from 0 to 1"),
        (lambda: FreqCacheOptions(buffer_rows=0), "freqcache.buffer_rows is 0, it must be 1 or more"),
        (lambda: FreqCacheOptions(sample=0.0), "freqcache.sample is 0.0"),
        (lambda: RunConfig.from_dict({"freqcache": {"sample": 2}}, "test"), "freqcache.sample is 2.0"),
    ],
)
def test_options_that_cannot_be(make_options: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_options()


def test_counts_that_lack_a_table_are_named() -> None:
    strategy = FreqCacheStrategy(CacheSettings(), data=KnownCounts(lambda: {"a": counts()["a"]}))
    with pytest.raises(ValueError, match="the counts have no table b: they are of a"):
        strategy.make_bags(TABLES, 4, hotrows.optim.SGD(lr=0.1), torch.device("cpu"), 0)


def test_device_memory_has_the_block_in_it() -> None:
    sizes = {}
    for buffer_rows in (1, 40):
        strategy, bags = make(60, FreqCacheOptions(buffer_rows=buffer_rows))
        for batch in strategy.batches(batches(4, 20), bags):
            bags(batch.ids).sum().backward()
        (cache,) = bags.caches
        sizes[buffer_rows] = cache.device_bytes
        assert cache.device_bytes > cache.records.nbytes + cache.planner.slots.row.nbytes
    assert sizes[40] - sizes[1] == 39 * cache.records[0].nbytes


def test_a_warning_names_the_cache_settings_that_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    strategy_of(RunConfig(strategy="freqcache", cache=CacheSettings(size=10, index="hash")))
    assert not caplog.records
    strategy_of(RunConfig(strategy="freqcache", cache=CacheSettings(policy="lru", depth=2)))
    assert "chooses these settings itself and does not use cache.policy = 'lru', cache.depth = 2" in caplog.text


def test_without_counts_there_is_no_order() -> None:
    with pytest.raises(ValueError, match="'freqcache' orders rows by frequency: give it counts"):
        FreqCacheStrategy(CacheSettings()).make_bags(TABLES, 4, hotrows.optim.SGD(lr=0.1), torch.device("cpu"), 0)


def test_a_run_file_sets_the_options_and_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {
        "data": "synthetic:criteo-kaggle?scale=0.0005&samples=3000", "device": "cpu", "strategy": "freqcache",
        "out": str(tmp_path / "run"), "model": {"name": "dlrm:rmc2", "dim": 4}, "cache": {"size": "10%"},
        "freqcache": {"warmup_ratio": 0.5, "buffer_rows": 64, "sample": 0.2}, "train": {"batch_size": 128},
    }  # fmt: skip
    config = RunConfig.from_dict(content, "test")
    strategy = strategy_of(config)
    assert strategy.options == FreqCacheOptions(0.5, 64, 0.2)
    asked = []

    def noted(*arguments: Any) -> dict[str, Tensor]:
        asked.append(arguments[1:])
        return sampled_counts(*arguments)

    monkeypatch.setattr("hotrows.strategies.data_knowledge.sampled_counts", noted)
    assert run(config, progress=False).summary["cache"]["hit_rate"] > 0.1
    assert asked == [(0.2, 0)]
