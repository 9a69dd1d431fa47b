"""HECA: bit for bit the result of all rows on the device, hot rows that stay, and staleness that is counted."""

import logging
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hotrows
from hotrows.batch import Batch, Jagged
from hotrows.cache.indexes.hashed import HashIndex
from hotrows.cache.policies import LFU, LRU, Policy
from hotrows.cli.show import show_run
from hotrows.loop.ticket import BatchTicket
from hotrows.profile.sampled_counts import sampled_counts
from hotrows.strategies import CacheSettings, KnownCounts, make_strategy
from hotrows.strategies.heca import HecaOptions, HecaStrategy
from hotrows.strategies.hot_set import TableCost, choose_hot
from hotrows.train.run import evaluate_run
from tests.invariants import check_maps
from tests.profile.memory_dataset import MemoryDataSet
from tests.scenarios import OPTIMIZERS, assert_equal, result_of
from tests.train.test_run import measured
from tests.train.test_run import train as run_training

TABLES = [hotrows.Table("a", 200), hotrows.Table("b", 100, features=("b1", "b2")), hotrows.Table("c", 7)]
SIZES = (200, 100, 100, 7)
CPU = torch.device("cpu")


def make_batches(num: int = 24, size: int = 6, seed: int = 0) -> list[Batch]:
    """Ids, a few of which are frequent."""
    random = torch.Generator().manual_seed(seed)
    skewed = [
        [(torch.rand(size, generator=random).pow(3) * rows).long() for rows in SIZES]
        for _ in range(num)
    ]  # fmt: skip
    return [Batch(torch.empty(size, 0), torch.stack(columns, 1), torch.zeros(size)) for columns in skewed]


def as_batches(*ids: list[int]) -> list[Batch]:
    """Batches of table "a" alone matter; the other features look up row 0."""
    return [
        Batch(torch.empty(len(a), 0), torch.stack([torch.tensor(a), *[torch.zeros(len(a), dtype=torch.int64)] * 3], 1),
              torch.zeros(len(a)))
        for a in ids
    ]  # fmt: skip


def counts_of(batches: list[Batch]) -> dict[str, Tensor]:
    ids = torch.cat([batch.ids for batch in batches if isinstance(batch.ids, Tensor)])
    parts = {"a": ids[:, 0], "b": ids[:, 1:3].flatten(), "c": ids[:, 3]}
    return {table.name: torch.bincount(parts[table.name], minlength=table.num_rows) for table in TABLES}


def make(
    cache: int | str = 90, batches: list[Batch] | None = None, **options: Any
) -> HecaStrategy:  # fmt: skip
    data = None if batches is None else KnownCounts(lambda: counts_of(batches))
    found = make_strategy("heca", CacheSettings(size=cache), HecaOptions(**options), data)
    assert isinstance(found, HecaStrategy)
    return found


def bags_of(strategy: Any, device: torch.device = CPU, optimizer: str = "adagrad") -> hotrows.EmbeddingBagCollection:
    found: hotrows.EmbeddingBagCollection = strategy.make_bags(TABLES, 4, OPTIMIZERS[optimizer](), device, seed=3)
    return found


def step(bags: hotrows.EmbeddingBagCollection, ids: Tensor | Jagged) -> None:
    (bags(ids) - 1.0).square().sum().backward()


def train(strategy: Any, batches: list[Batch], device: torch.device = CPU, optimizer: str = "adagrad") -> Any:
    bags = bags_of(strategy, device, optimizer)
    for batch in strategy.batches(batches, bags):
        step(bags, batch.ids)
    return bags


def on_the_device(batches: list[Batch], device: torch.device, optimizer: str = "adagrad") -> dict[str, Tensor]:
    return result_of(train(make_strategy("device", CacheSettings()), batches, device, optimizer))


# -- exact ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("cache", [1, 12, 45, 120])
def test_the_result_is_that_of_all_rows_on_the_device(optimizer: str, cache: int, device: torch.device) -> None:
    batches = make_batches()
    bags = train(make(cache, batches), batches, device, optimizer)
    assert_equal(result_of(bags), on_the_device(batches, device, optimizer))
    assert bags.stats().stale == 0
    check_maps(bags.caches[0])
    assert (bags.stats().overflow > 0) == (cache <= 12)


def test_batches_of_any_size_and_several_ids_per_bag(device: torch.device) -> None:
    random = torch.Generator().manual_seed(1)
    batches = make_batches(6) + make_batches(2, 40) + make_batches(6, 2, seed=4)
    for num in (3, 1, 8):
        lengths = torch.randint(0, 4, (4, num), generator=random)
        values = [
            torch.randint(0, rows, (int(n),), generator=random)
            for rows, n in zip(SIZES, lengths.sum(1), strict=True)
        ]  # fmt: skip
        batches.append(Batch(torch.empty(num, 0), Jagged(torch.cat(values), lengths), torch.zeros(num)))
    bags = train(make(40, batches[:6]), batches, device)
    assert_equal(result_of(bags), on_the_device(batches, device))


def test_a_loop_left_early_and_begun_again() -> None:
    batches, strategy = make_batches(), make(60, make_batches())
    bags = bags_of(strategy)
    for done, batch in enumerate(strategy.batches(batches, bags), start=1):
        step(bags, batch.ids)
        if done == 7:
            break
    assert not bags.schedulers[0].in_flight
    for batch in strategy.batches(batches[7:], bags):
        step(bags, batch.ids)
    assert_equal(result_of(bags), on_the_device(batches, CPU))


@pytest.mark.parametrize(("options", "policy"), [({}, LFU), ({"victims": "lru"}, LRU)])
def test_its_parts_are_the_papers(options: dict[str, Any], policy: type[Policy]) -> None:
    planner = bags_of(make(**options)).caches[0].planner
    assert isinstance(planner.index, HashIndex)  # type: ignore[attr-defined]
    assert isinstance(planner.policy, policy)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("victims", "gone"), [("lfu", 2), ("lru", 1)])
def test_the_victim_is_the_least_frequent_or_the_least_recent(victims: str, gone: int, device: torch.device) -> None:
    """Row 1 was looked up twice, then row 2 once, then row 0 more often; the cache is full when row 3 comes."""
    bags = bags_of(make(5, victims=victims), device)  # two of the slots are for the other tables' row 0
    for batch in as_batches([1, 1], [2], [0], [0], [0], [3]):
        step(bags, batch.ids)
    rows = bags.caches[0].planner.slots.row.tolist()  # type: ignore[union-attr]
    assert {0, 1, 2, 3} - set(rows) == {gone}


# -- hot rows and victims ---------------------------------------------------------------------------------------------


def test_hot_rows_are_there_before_training_and_never_leave(device: torch.device) -> None:
    batches = make_batches(40)
    strategy = make(60, batches, hot="60%")
    bags = bags_of(strategy, device)
    assert strategy.hot is not None
    num_hot = strategy.hot.num_rows
    assert 10 < num_hot <= 30
    assert sum(bags.cached_rows().values()) == num_hot
    hot = _rows(strategy, bags)
    slots = bags.caches[0].planner.slots.row  # type: ignore[union-attr]
    where = {row: slots.tolist().index(row) for row in hot}
    for batch in strategy.batches(batches, bags):
        step(bags, batch.ids)
        assert all(slots[slot] == row for row, slot in where.items())
    assert bags.stats().evictions > 50
    assert bags.stats().batches == len(batches)


@pytest.mark.parametrize("cache", [90, 48])
def test_victims_are_in_neither_the_current_batch_nor_the_next_nor_the_hot_set(
    cache: int, device: torch.device
) -> None:
    batches = make_batches(40)
    strategy = make(cache, batches, hot="60%")
    bags = bags_of(strategy, device)
    scheduler = bags.schedulers[0]
    scheduler.uses_graph = False  # a plan of the planning graph is the same, but leaves no list of its moves
    plan_ahead, resolve = scheduler.plan_ahead, scheduler.resolve
    iteration, made, victims_of = 0, {}, {}

    def planned(ticket: BatchTicket, soon: bool) -> list[BatchTicket]:
        (ticket,) = plan_ahead(ticket, soon)
        assert ticket.batch_number is not None
        assert ticket.plan is not None
        made[ticket.plan.plan_number] = iteration, ticket.batch_number
        return [ticket]

    def resolved(ticket: BatchTicket) -> bool:
        fits = resolve(ticket)
        if fits:
            assert ticket.counts is not None
            assert ticket.plan is not None
            left = ticket.plan.move_out[: ticket.counts.misses]
            victims_of.setdefault(made[ticket.plan.plan_number], left[left >= 0].tolist())
        return fits

    scheduler.plan_ahead, scheduler.resolve = planned, resolved  # type: ignore[method-assign]
    for batch in strategy.batches(batches, bags):
        step(bags, batch.ids)
        iteration += 1
    assert (bags.stats().rejected_plans > 0) == (cache < 90)
    assert len(victims_of) > 20
    if cache == 90:  # a smaller one has room for the current batch, and seldom for more
        assert sum(number > at for at, number in victims_of) > 20, "most batches are planned ahead"
    assert sum(map(len, victims_of.values())) > 50
    hot, rows = _rows(strategy, bags), [_rows_of(batch) for batch in batches]
    for (current, number), victims in victims_of.items():
        assert not hot & set(victims)
        for used in rows[current : number + 1]:
            assert not used & set(victims)


def _rows(strategy: HecaStrategy, bags: hotrows.EmbeddingBagCollection) -> set[int]:
    assert strategy.hot is not None
    first = bags._sets[0].first_row
    return {first[name] + int(id) for name, ids in strategy.hot.ids.items() for id in ids}


def _rows_of(batch: Batch) -> set[int]:
    assert isinstance(batch.ids, Tensor)
    return set((batch.ids + torch.tensor([0, 200, 200, 300])).flatten().tolist())


COUNTS = {"x": torch.tensor([50, 0, 20, 5]), "y": torch.tensor([20, 4, 1])}  # 100 in all
ROOMS = {"x": TableCost(0, 100), "y": TableCost(1, 10)}


@pytest.mark.parametrize(
    ("hot", "x", "y"),
    [
        (20, [0, 2], [0]),
        (1, [0, 2, 3], [0, 1, 2]),
        ("50%", [0], []),
        ("51%", [0, 2], []),
        ("90%", [0, 2], [0]),
        ("100%", [0, 2, 3], [0, 1, 2]),
        ("0%", [], []),
        ("0.21KB", [0, 2], [0]),
        ("0.2KB", [0, 2], []),
        ("1MB", [0, 2, 3], [0, 1, 2]),
    ],
)
def test_kinds_of_thresholds(hot: int | str, x: list[int], y: list[int]) -> None:
    found = choose_hot(COUNTS, hot, ROOMS, {0: 10, 1: 10})
    assert {name: ids.tolist() for name, ids in found.ids.items()} == {"x": x, "y": y}
    accesses = sum(int(COUNTS[name][ids].sum()) for name, ids in found.ids.items())
    assert found.share_of_accesses == pytest.approx(accesses / 100)


def test_hot_rows_leave_room_for_the_others() -> None:
    found = choose_hot(COUNTS, "100%", ROOMS, {0: 2, 1: 1})
    assert {name: ids.tolist() for name, ids in found.ids.items()} == {"x": [0, 2], "y": [0]}
    assert (found.num_rows, found.num_wanted) == (3, 6)


def test_a_hot_set_that_does_not_fit_is_cut_and_said(caplog: pytest.LogCaptureFixture) -> None:
    batches = make_batches()
    with caplog.at_level(logging.WARNING, logger="hotrows"):
        strategy = make(40, batches, hot="100%", dynamic=0.25)
        bags = bags_of(strategy)
    assert strategy.hot is not None
    assert strategy.hot.num_rows == 30
    assert "30 of them fill the static part of the cache (75% of it)" in caplog.text
    assert int(bags.caches[0].planner.slots.pinned.sum()) == 30  # type: ignore[union-attr]


def test_nothing_known_of_the_frequencies(caplog: pytest.LogCaptureFixture) -> None:
    bags_of(make(40))
    assert "nothing is known of the frequencies" in caplog.text


def test_frequencies_are_counted_on_a_random_sample() -> None:
    random = torch.Generator().manual_seed(0)
    ids = torch.stack([(torch.rand(5000, generator=random).pow(3) * rows).long() for rows in (50, 9)], 1)
    data = MemoryDataSet.of(ids, (50, 9))
    everything = sampled_counts(data, 1.0)
    assert all(torch.equal(everything[name], counts) for name, counts in data.counts().items())
    part = sampled_counts(data, 0.2)
    assert 1000 <= int(part["c0"].sum()) <= 1024
    assert int(part["c0"].argmax()) == 0

    asked = []

    class Asked(KnownCounts):
        def counts(self) -> dict[str, Tensor]:
            pytest.fail("all samples were counted")

        def sampled_counts(self, share: float, seed: int = 0) -> dict[str, Tensor]:
            asked.append((share, seed))
            return {}

    bags_of(make_strategy("heca", CacheSettings(size=30), data=Asked(dict)))
    assert asked == [(0.05, 0)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hot": 0}, "hot is 0"),
        ({"hot": "many"}, "hot is 'many': give a count"),
        ({"hot": "101%"}, "at most 100%"),
        ({"sample": 0.0}, "heca.sample is 0.0"),
        ({"dynamic": 0.0}, "heca.dynamic is 0.0"),
        ({"victims": "fifo"}, "heca.victims is 'fifo': known are lfu, lru"),
        ({"consistency": "eventual"}, "heca.consistency is 'eventual': known are exact, stale"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HecaOptions(**options)


# -- stale ------------------------------------------------------------------------------------------------------------


def test_a_stale_read_is_one_update_old(device: torch.device) -> None:
    """Row 5 is used by all batches: the second computes its gradient from the first value, not from the updated one."""
    batches = as_batches([5], [5], [5])
    bags = bags_of(make("100%", consistency="stale"), device, "sgd")
    values = [bags.weight("a")[5]]
    seen = []
    strategy = make("100%", consistency="stale")
    for batch in strategy.batches(batches, bags):
        out = bags(batch.ids)
        seen.append(out[0, 0].detach().cpu())
        (out - 1.0).square().sum().backward()
        values.append(bags.weight("a")[5])
    assert torch.equal(torch.stack(seen), torch.stack([values[0], values[0], values[1]]))
    for number in range(3):  # every update is made, on the record as it is then
        expected = values[number] - 0.3 * 2 * (seen[number] - 1.0)
        assert torch.allclose(values[number + 1], expected, atol=1e-6)
    stats = bags.stats()
    # of tables a, b and c one row each, in the second and the third batch
    assert (stats.unique, stats.stale) == (9, 6)
    assert stats.stale_share == pytest.approx(6 / 9)


def test_nothing_is_stale_where_consecutive_batches_share_no_row(device: torch.device) -> None:
    """Rows that come again a batch later, or are evicted and fetched again, are read with all their updates."""
    tables = [hotrows.Table("a", 60)]
    batches = [
        Batch(torch.empty(4, 0), (torch.arange(4) + 4 * (i % 7)).unsqueeze(1), torch.zeros(4)) for i in range(30)
    ]
    results = []
    for consistency in ("exact", "stale"):
        strategy = make(14, consistency=consistency)
        bags = strategy.make_bags(tables, 4, OPTIMIZERS["adam"](), device, seed=3)
        for batch in strategy.batches(batches, bags):
            step(bags, batch.ids)
        assert bags.stats().evictions > 50
        assert bags.stats().stale == 0
        results.append(result_of(bags))
    assert_equal(*results)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_stale_training_counts_what_consecutive_batches_share_and_repeats_itself(
    optimizer: str, device: torch.device
) -> None:
    batches = make_batches(30)
    first, second = (
        train(make(90, batches, consistency="stale", hot="60%"), batches, device, optimizer) for _ in range(2)
    )
    stats = first.stats()
    assert stats.immediate_plans == stats.rejected_plans == 0
    rows = [_rows_of(batch) for batch in batches]
    assert stats.stale == sum(len(before & after) for before, after in pairwise(rows))
    assert_equal(result_of(second), result_of(first))
    exact = on_the_device(batches, device, optimizer)
    assert not torch.equal(result_of(first)["a"], exact["a"])
    check_maps(first.caches[0])


def test_slow_moves_and_slow_training_change_nothing_of_a_stale_run() -> None:
    batches = make_batches(16)
    expected = result_of(train(make(90, batches, consistency="stale"), batches))
    for slow in ("moves", "training"):
        strategy = make(90, batches, consistency="stale")
        bags = bags_of(strategy)
        if slow == "moves":
            _slow_down(bags, 0.004)
        for batch in strategy.batches(batches, bags):
            out = bags(batch.ids)
            if slow == "trainer":
                time.sleep(0.004)
            (out - 1.0).square().sum().backward()
        assert_equal(result_of(bags), expected)


def test_reads_without_training_are_never_stale() -> None:
    bags = bags_of(make("100%", consistency="stale"))
    for batch in make("100%", consistency="stale").batches(as_batches([5], [5], [5]), bags):
        with torch.no_grad():
            assert torch.equal(bags(batch.ids)[0, 0], bags.weight("a")[5])
        step(bags, batch.ids)
    assert bags.stats().stale > 0


def test_a_stale_loop_through_tiny_caches_and_loaded_weights() -> None:
    """Batches that are planned in their own iteration are read in it; weights set from outside are read at once."""
    batches = make_batches()
    bags = train(make(3, batches, consistency="stale"), batches)
    assert_equal(result_of(bags), on_the_device(batches, CPU))
    strategy = make("100%", consistency="stale")
    bags = bags_of(strategy)
    for batch in strategy.batches(as_batches([5], [5]), bags):
        bags.load_weight("a", torch.full((200, 4), 2.0))
        assert torch.equal(bags(batch.ids)[0, 0].detach(), torch.full((4,), 2.0))


# -- deduplication ----------------------------------------------------------------------------------------------------


def test_unique_ids_and_inverse_give_the_batch_back(device: torch.device) -> None:
    bags = bags_of(make(), device)
    ids = make_batches(1, 50)[0].ids
    assert isinstance(ids, Tensor)
    found = bags.deduplicate(ids)
    assert list(found) == ["a", "b", "c"]
    for name, columns in (("a", [0]), ("b", [1, 2]), ("c", [3])):
        unique, inverse = found[name].unique_ids.cpu(), found[name].inverse.cpu()
        assert torch.equal(unique[inverse], ids[:, columns])
        assert torch.equal(unique, ids[:, columns].unique())


def test_several_ids_per_bag_and_dims_are_deduplicated() -> None:
    tables = [hotrows.Table("a", 20, dim=4), hotrows.Table("b", 30, dim=8), hotrows.Table("c", 5, dim=4)]
    bags = hotrows.EmbeddingBagCollection(tables, cache=10, optimizer=hotrows.optim.SGD(lr=0.1))
    ids = torch.tensor([[3, 29, 1], [3, 0, 1], [1, 29, 4]])
    jagged = Jagged(torch.tensor([3, 3, 1, 29, 0, 29, 29, 1, 4]), torch.tensor([[1, 2, 0], [2, 1, 1], [0, 0, 2]]))
    for batch, parts in ((ids, ids.T.unsqueeze(2)), (jagged, jagged.values.split([3, 4, 2]))):
        for part, expected in zip(bags.deduplicate(batch).values(), parts, strict=True):
            assert torch.equal(part.unique_ids[part.inverse], expected)
    with pytest.raises(ValueError, match="there is no current batch"):
        bags.deduplicate()


def test_the_current_batch_of_a_loop_is_deduplicated_as_it_was_planned(device: torch.device) -> None:
    strategy = make(60)
    bags = bags_of(strategy, device)
    for batch in strategy.batches(make_batches(8), bags):
        assert isinstance(batch.ids, Tensor)
        found = bags.deduplicate()
        assert torch.equal(found["b"].unique_ids[found["b"].inverse].cpu(), batch.ids[:, 1:3])
        step(bags, batch.ids)
    stats = bags.stats()
    assert stats.bytes_in == stats.misses * bags.caches[0].store.layout.num_bytes


# -- stages -----------------------------------------------------------------------------------------------------------


def test_stages_overlap_and_their_times_are_reported() -> None:
    """The stages overlap: a batch takes as long as the longest stage, not as long as the sum of all."""
    batches, strategy = make_batches(16), make(120)
    bags = bags_of(strategy)
    assert strategy.stage_times is None
    _slow_down(bags, 0.01)
    threads = set()

    def loader() -> Iterator[Batch]:
        for batch in batches:
            threads.add(threading.current_thread())
            time.sleep(0.02)
            yield batch

    for batch in strategy.batches(loader(), bags):
        loss = (bags(batch.ids) - 1.0).square().sum()
        time.sleep(0.015)
        loss.backward()
    assert threading.current_thread() not in threads
    times = strategy.stage_times
    assert times is not None
    assert times.batches == 16
    assert times.loader >= 0.02
    assert times.collector >= 0.01
    assert times.trainer >= 0.015
    assert times.wall < 0.8 * times.sum


def test_evaluating_in_between_is_not_part_of_a_stage() -> None:
    batches, strategy = make_batches(8), make(120)
    bags = bags_of(strategy)
    for number, batch in enumerate(strategy.batches(batches, bags)):
        step(bags, batch.ids)
        if number == 5:
            bags.eval()
            with torch.no_grad():
                bags(batches[0].ids)
            time.sleep(1.0)
            bags.train()
    times = strategy.stage_times
    assert times is not None
    assert times.batches == 7
    assert max(times.trainer, times.wall, times.collector) < 0.1


def test_the_warm_up_is_not_part_of_a_stage() -> None:
    batches, strategy = make_batches(8), make(120)
    bags = bags_of(strategy)
    strategy.warmed_up()  # nothing is timed yet
    for number, batch in enumerate(strategy.batches(batches, bags)):
        step(bags, batch.ids)
        if number < 3:
            time.sleep(0.5)
        elif number == 3:
            strategy.warmed_up()
    times = strategy.stage_times
    assert times is not None
    assert times.batches == 5  # the one that ends the warm-up ends after it
    assert 0 < max(times.trainer, times.wall) < 0.1


def test_an_exception_in_the_loader_comes_after_the_batches_before_it() -> None:
    batches, strategy = make_batches(6), make(120)
    bags = bags_of(strategy)
    done = []

    def loader() -> Iterator[Batch]:
        yield from batches
        raise OSError("the disk")

    def loop() -> None:
        for batch in strategy.batches(loader(), bags):
            step(bags, batch.ids)
            done.append(batch)

    with pytest.raises(OSError, match="the disk"):
        loop()
    assert len(done) == 6
    assert_equal(result_of(bags), on_the_device(batches, CPU))


def _slow_down(bags: hotrows.EmbeddingBagCollection, seconds: float) -> None:
    transfer = bags.caches[0].transfer
    move = transfer.move

    def slow(*arguments: Any) -> None:
        time.sleep(seconds)
        move(*arguments)

    transfer.move = slow  # type: ignore[method-assign]


# -- whole runs -------------------------------------------------------------------------------------------------------


def test_a_run_is_the_same_as_on_the_device_and_reports_hot_rows_and_stages(tmp_path: Path) -> None:
    whole = run_training(tmp_path / "whole", strategy="device")
    cached = run_training(tmp_path / "cached", strategy="heca", cache={"size": 3000}, heca={"sample": 0.2, "hot": 4})
    assert measured(cached) == measured(whole)
    outcome = cached.summary["strategy_outcome"]
    assert 0 < outcome["hot_rows"] <= 1500
    assert 0.1 < outcome["hot_share_of_accesses"] < 1
    assert set(outcome["stages_ms"]) == {"loader", "collector", "trainer", "wall"}
    assert all(ms > 0 for ms in outcome["stages_ms"].values())
    assert "stale_share" not in outcome
    assert evaluate_run(cached.directory)["test"] == cached.summary["test"]


def test_a_stale_run_reports_its_share_of_stale_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished = run_training(tmp_path / "run", strategy="heca", cache={"size": 3000}, heca={"consistency": "stale"})
    outcome = finished.summary["strategy_outcome"]
    assert 0.01 < outcome["stale_share"] < 0.9
    assert outcome["stale_reads"] == round(outcome["stale_share"] * outcome["reads"])
    show_run(finished)
    assert f"{outcome['stale_share']:.1%} of" in capsys.readouterr().out
