"""Looking ahead: every batch once and in order, rows there in time, and a loop that can be left at any time."""

import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hotrows

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def make(cache: int | str = 60, device: str = "cpu", **arguments: object) -> hotrows.EmbeddingBagCollection:
    arguments.setdefault("optimizer", hotrows.optim.Adagrad(lr=0.1))
    return hotrows.EmbeddingBagCollection(
        [hotrows.Table("a", 200), hotrows.Table("b", 100)], dim=4, cache=cache, device=device, **arguments
    )


def batches(num: int = 30, size: int = 5, seed: int = 0) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [
        torch.stack([torch.randint(0, rows, (size,), generator=random) for rows in (200, 100)], 1) for _ in range(num)
    ]


def look(data: object, bags: hotrows.EmbeddingBagCollection, **arguments: int) -> Iterator[torch.Tensor]:
    return hotrows.lookahead(data, bags, ids=lambda ids: ids, **arguments)


def step(bags: hotrows.EmbeddingBagCollection, ids: torch.Tensor) -> None:
    (bags(ids) - 1.0).square().sum().backward()


def train_all(loop: Iterator[torch.Tensor], bags: hotrows.EmbeddingBagCollection, done: list[torch.Tensor]) -> None:
    for ids in loop:
        step(bags, ids)
        done.append(ids)


def weights(bags: hotrows.EmbeddingBagCollection) -> torch.Tensor:
    return torch.cat([bags.weight("a"), bags.weight("b")])


def plain(data: list[torch.Tensor], device: str = "cpu") -> torch.Tensor:
    bags = make("100%", device)
    for ids in data:
        step(bags, ids)
    return weights(bags)


@pytest.mark.parametrize("depth", range(9))
def test_every_batch_once_and_in_order(depth: int) -> None:
    data, bags = batches(), make()
    seen = []
    for ids in look(data, bags, depth=depth):
        seen.append(ids)
        step(bags, ids)
    assert len(seen) == len(data)
    assert all(a is b for a, b in zip(seen, data, strict=True))
    assert torch.equal(weights(bags), plain(data))


@pytest.mark.parametrize("device", DEVICES)
def test_with_a_window_that_fits_every_batch_is_planned_ahead(device: str) -> None:
    data, bags = batches(), make(cache=120, device=device)
    for ids in look(data, bags, depth=4, window=16):
        step(bags, ids)
    stats = bags.stats()
    assert stats.batches == len(data)
    assert (stats.immediate_plans, stats.overflow, stats.rejected_plans) == (0, 0, 0)


def test_moves_run_beside_the_training() -> None:
    """With slow moves and slow training, a pipeline takes the longer of the two, not the sum."""
    data = batches(20)

    def seconds(depth: int) -> float:
        bags = make(cache=150)
        threads = set()
        transfer = bags.caches[0].transfer
        move = transfer.move

        def noted(*arguments: Any) -> None:
            threads.add(threading.current_thread())
            time.sleep(0.01)
            move(*arguments)

        transfer.move = noted  # type: ignore[method-assign]
        start = time.perf_counter()
        for ids in look(data, bags, depth=depth):
            loss = (bags(ids) - 1.0).square().sum()
            time.sleep(0.01)
            loss.backward()
        taken = time.perf_counter() - start
        assert threads != {threading.current_thread()}
        return taken

    assert seconds(4) < 0.8 * seconds(0)


def test_depth_shrinks_and_grows_by_itself() -> None:
    small, large = batches(12, size=2), batches(3, size=25, seed=1)
    data = small[:6] + large + small[6:]
    bags = make(cache=60)
    in_flight = []
    for ids in look(data, bags, depth=6):
        step(bags, ids)
        in_flight.append(len(bags.schedulers[0].in_flight))
    assert bags.stats().rejected_plans > 0
    assert bags.stats().overflow == 0
    assert max(in_flight[:3]) >= 6
    assert min(in_flight[6:9]) <= 3
    assert max(in_flight[9:12]) >= 4
    assert torch.equal(weights(bags), plain(data))


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_larger_than_the_cache_completes_exactly(device: str) -> None:
    data = batches(4, 3) + batches(2, 40) + batches(4, 3, seed=2)
    bags = make(cache=10, device=device)
    for ids in look(data, bags, depth=3):
        step(bags, ids)
    assert bags.stats().overflow > 0
    assert torch.equal(weights(bags), plain(data, device))


@pytest.mark.parametrize("device", DEVICES)
def test_a_loop_left_early_loses_nothing(device: str) -> None:
    data = batches()
    bags = make(device=device)
    for done, ids in enumerate(look(data, bags, depth=5), start=1):
        step(bags, ids)
        if done == 7:
            break
    assert not bags.schedulers[0].in_flight
    assert torch.equal(weights(bags), plain(data[:7], device))
    stats = bags.stats()
    assert (stats.batches, stats.lookups) == (7, 7 * data[0].numel())  # without the batches that were only planned
    assert stats.hits + stats.misses == stats.unique
    for ids in look(data[7:], bags, depth=5):
        step(bags, ids)
    assert torch.equal(weights(bags), plain(data, device))


def test_a_loop_that_is_collected_while_a_plan_is_made_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may end a loop at any moment, also in the middle of a change of state."""
    data, bags, plain = batches(), make(), make("100%")
    loop = look(data, bags, depth=3)
    for ids in (next(loop), data[7]):
        step(bags, ids)
        step(plain, ids)
    cycle: list[object] = [loop]
    cycle.append(cycle)
    del loop, cycle
    planner = bags.schedulers[0].cache.planner
    plan, ended_inside = planner.plan, []

    def collect_and_plan(*arguments: object) -> object:
        gc.collect()
        ended_inside.append(bags.current is None)
        return plan(*arguments)

    monkeypatch.setattr(planner, "plan", collect_and_plan)
    step(bags, data[20])
    step(plain, data[20])
    assert ended_inside == [False]
    for ids in look(data[:5], bags):
        step(bags, ids)
        step(plain, ids)
    assert bags.current is None
    assert all(torch.equal(bags.weight(name), plain.weight(name)) for name in "ab")


def test_an_exception_in_the_loop_loses_nothing() -> None:
    data, bags = batches(), make()

    def loop() -> None:
        for number, ids in enumerate(look(data, bags, depth=5)):
            if number == 7:
                raise KeyError("the user's")
            step(bags, ids)

    with pytest.raises(KeyError):
        loop()
    assert torch.equal(weights(bags), plain(data[:7]))


def test_an_exception_in_the_loader_comes_after_the_batches_before_it() -> None:
    data, bags = batches(10), make()

    def loader() -> Iterator[torch.Tensor]:
        yield from data
        raise OSError("the disk")

    done: list[torch.Tensor] = []
    with pytest.raises(OSError, match="the disk"):
        train_all(look(loader(), bags, depth=3, window=4), bags, done)
    assert len(done) == 10
    assert torch.equal(weights(bags), plain(data))


def test_a_bad_batch_raises_in_its_own_iteration() -> None:
    data, bags = batches(8), make()
    bad = data[5].clone()
    bad[2, 1] = 100
    done: list[torch.Tensor] = []
    with pytest.raises(hotrows.BadIdError, match="feature 'b', sample 2: id 100"):
        train_all(look([*data[:5], bad, *data[6:]], bags, depth=3), bags, done)
    assert len(done) == 5
    assert torch.equal(weights(bags), plain(data[:5]))


def test_skipping_batches_is_fine() -> None:
    data, bags = batches(), make()
    for number, ids in enumerate(look(data, bags, depth=4)):
        if number % 3:
            step(bags, ids)
    assert torch.equal(weights(bags), plain([ids for number, ids in enumerate(data) if number % 3]))


def test_training_on_other_ids_in_between() -> None:
    data, others = batches(20), batches(20, 8, seed=5)
    bags = make(cache=40)
    for ids, other in zip(look(data, bags, depth=4), others, strict=True):
        step(bags, other)
        step(bags, ids)
    assert torch.equal(weights(bags), plain([ids for pair in zip(others, data, strict=True) for ids in pair]))


def test_other_ids_are_mentioned_once(caplog: pytest.LogCaptureFixture) -> None:
    data, bags = batches(4), make()
    with caplog.at_level(logging.WARNING, logger="hotrows"):
        for _ in look(data, bags):
            step(bags, data[0].roll(1, 0))
    assert caplog.text.count("not the tensor that lookahead() was given") == 1


def test_ids_changed_in_place_are_noticed() -> None:
    data, bags = batches(6), make()
    changed = [ids.clone() for ids in data]
    for ids in look(changed, bags, depth=3):
        ids.fill_(3)
        step(bags, ids)
    assert torch.equal(weights(bags), plain([torch.full_like(ids, 3) for ids in data]))


def test_the_same_batch_twice_in_one_step() -> None:
    data, bags, other = batches(10), make(cache=25), make("100%")
    for ids in look(data, bags, depth=3):
        ((bags(ids) + bags(ids)) - 1.0).square().sum().backward()
    for ids in data:
        ((other(ids) + other(ids)) - 1.0).square().sum().backward()
    assert torch.equal(weights(bags), weights(other))


def test_a_new_loop_ends_the_old_one() -> None:
    data, bags = batches(20), make()
    first = look(data, bags, depth=4)
    step(bags, next(first))
    second = look(data[1:], bags, depth=4)
    for ids in second:
        step(bags, ids)
    assert torch.equal(weights(bags), plain(data))
    step(bags, next(first))  # it goes on, with batches planned when they are looked up
    first.close()
    assert not bags.schedulers[0].in_flight


def test_in_eval_mode_batches_pass_through() -> None:
    data, bags = batches(5), make().eval()
    rows = bags.caches[0].planner.slots.row.clone()
    assert list(look(data, bags)) == data
    assert torch.equal(bags.caches[0].planner.slots.row, rows)


def test_validation_within_the_loop_leaves_it_open() -> None:
    data, bags = batches(12), make(cache=120)
    for number, ids in enumerate(look(data, bags, depth=3)):
        step(bags, ids)
        if number == 4:
            bags.eval()
            for other in look(batches(3, seed=9), bags):
                bags(other)
            bags.train()
    assert bags.stats().immediate_plans == 0
    assert torch.equal(weights(bags), plain(data))


def test_a_pass_thrown_away_near_the_end_does_not_hold_up_the_rest() -> None:
    data, bags = batches(16), make(cache=60)
    for number, ids in enumerate(look(data, bags, depth=2, window=16)):
        if number == 1:
            bags(ids)
        else:
            step(bags, ids)
    assert bags.stats().overflow == 0
    assert bags.stats().immediate_plans == 0


def test_a_program_that_ends_within_a_loop_ends_well() -> None:
    code = """
import torch, hotrows
bags = hotrows.EmbeddingBag(200_000, 64, mode="sum", cache=60_000, optimizer=hotrows.optim.SGD(lr=0.1))
data = [torch.randint(0, 200_000, (5000, 1)) for _ in range(20)]
for ids in hotrows.lookahead(data, bags, depth=6, ids=lambda ids: ids):
    bags(ids).sum().backward()
    break
"""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], check=True)


def test_no_more_is_read_from_the_loader_than_the_window() -> None:
    read = []

    def loader() -> Iterator[torch.Tensor]:
        for number, ids in enumerate(batches()):
            read.append(number)
            yield ids

    loop = look(loader(), make(), depth=2, window=6)
    next(loop)
    assert len(read) == 6


def test_one_bag_with_offsets() -> None:
    bag = hotrows.EmbeddingBag(50, 4, cache=12, optimizer=hotrows.optim.SGD(lr=0.1))
    data = [(torch.randint(0, 50, (8,)), torch.tensor([0, 3, 3])) for _ in range(10)]
    for input, offsets in hotrows.lookahead(data, bag, ids=lambda batch: batch):
        bag(input, offsets).sum().backward()
    assert bag.stats().immediate_plans == 0
    for input, offsets in hotrows.lookahead(data, bag, ids=lambda batch: batch[0]):
        bag(input, offsets).sum().backward()
    assert bag.stats().immediate_plans == 0


def test_bags_are_freed_after_use() -> None:
    import weakref

    bags = make()
    for ids in look(batches(6), bags):
        step(bags, ids)
    gone = weakref.ref(bags.caches[0].store)
    del bags, ids
    gc.collect()
    assert gone() is None


def test_bad_calls() -> None:
    for arguments, message in [
        ({"depth": -1}, "depth is -1"),
        ({"window": 0}, "window is 0"),
        ({"window": 65}, "window is 65, it must be a whole number from 1 to 64"),
    ]:
        with pytest.raises(ValueError, match=message):
            look([], make(), **arguments)
    with pytest.raises(ValueError, match="bags are a Linear"):
        hotrows.lookahead([], torch.nn.Linear(1, 1))  # type: ignore[arg-type]
