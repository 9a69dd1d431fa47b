"""Operations that fail at a chosen place: what comes after them is right."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import hotrows
from hotrows.nn.forward import OpenLoop
from hotrows.ops.hash_table import reference
from tests.faults.injection import InjectedError


def make(cache: int = 40, policy: str = "lru", index: str = "hash") -> hotrows.EmbeddingBagCollection:
    return hotrows.EmbeddingBagCollection(
        [hotrows.Table("a", 1000, 4)], cache=cache, index=index, policy=policy, optimizer=hotrows.optim.SGD(lr=0.1)
    )


def ids(start: int, stop: int) -> Tensor:
    return torch.arange(start, stop).unsqueeze(1)


def fail(*_: Any) -> None:
    raise InjectedError


def test_slots_that_a_failed_plan_has_marked_are_not_counted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bags, plain = make(), make(1000)
    first = ids(0, 30)
    for module in (bags, plain):
        module(first).sum().backward()
    opened = bags(ids(30, 40))  # in flight: the failed plan's slots cannot be evicted before it is released
    scheduler = bags.schedulers[0]
    with monkeypatch.context() as patch:
        patch.setattr(scheduler.cache.planner.index, "place", fail)
        with pytest.raises(InjectedError):
            bags(ids(0, 30))
    assert not scheduler.in_flight.surely_fits(20, 0, scheduler.cache.planner.plan_number + 1)
    out = bags(ids(100, 120))
    assert torch.equal(out, plain(ids(100, 120)))
    assert bags.stats().overflow == 20
    (out.sum() + opened.sum()).backward()
    assert scheduler.in_flight.surely_fits(20, 0, scheduler.cache.planner.plan_number + 1)


def test_reads_are_right_after_rebuilding_the_index_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    bags = make()
    bags(ids(0, 30)).sum().backward()
    with torch.no_grad():
        expected = bags(ids(0, 30)).clone()
    index = bags.caches[0].planner.index
    monkeypatch.setattr(index, "_erased", 10**6)  # the next plan rebuilds the table
    with monkeypatch.context() as patch:
        patch.setattr(reference, "insert", fail)
        with pytest.raises(InjectedError):
            bags(ids(500, 505))  # what takes the failed plan back needs the table too, and fails as well
    with torch.no_grad():
        assert torch.equal(bags(ids(0, 30)), expected)


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_a_loop_is_closed_leaves_nothing_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    bags = make(60, "lookahead")
    data = list(torch.randint(0, 1000, (6, 16, 1), generator=torch.Generator().manual_seed(0)))
    close = OpenLoop.close

    def interrupted(loop: OpenLoop, *arguments: Any) -> None:
        opened = loop._close

        def opened_late() -> None:
            signal.raise_signal(signal.SIGINT)
            assert opened is not None
            opened()

        if opened is not None and arguments in ((), (None,), (opened,)):
            loop._close = opened_late
            close(loop, opened_late)

    for batch in (loop := hotrows.lookahead(data, bags, depth=2, window=8, ids=lambda ids: ids)):
        bags(batch).sum().backward()
        break
    monkeypatch.setattr(OpenLoop, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.close()
    monkeypatch.undo()
    assert len(bags.schedulers[0].in_flight) == 0


def test_a_function_at_exit_that_was_registered_first_can_flush() -> None:
    """Functions at exit run in the reverse order, so by then the threads of hotrows have ended."""
    program = """
import atexit
atexit.register(lambda: (bags.flush(), print(float(bags.weight("a").sum()), flush=True)))
import torch, hotrows
bags = hotrows.EmbeddingBagCollection([hotrows.Table("a", 100, 4)], cache=20, optimizer=hotrows.optim.SGD(lr=0.1))
with torch.no_grad():
    expected = bags.weight("a")
ids = torch.arange(10).unsqueeze(1)
bags(ids).sum().backward()
expected[:10] -= 0.1
print(float(expected.sum()), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.split()
    assert float(first) == pytest.approx(float(second))
