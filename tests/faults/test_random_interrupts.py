"""Real SIGINTs at random moments of a loop: every row has its value before or after a step, none another's.

HOTROWS_SIGINTS=N tries N interrupts in all. After each, training goes on from the step that the rows are of, and must
end with the rows of a loop that was never interrupted.
"""

import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

import hotrows
from hotrows.runtime.defer_sigint import is_deferring
from tests.faults.test_interrupts import NUM_ROWS, OPTIMIZERS, PROGRAMS, Bags, Program, loop, make, rows_of, same

NUM_SIGINTS = int(os.environ.get("HOTROWS_SIGINTS", "20"))
NUM_GPU_SIGINTS = int(os.environ.get("HOTROWS_SIGINTS", "100"))
NUM_BATCHES = 12
REPLAYED = Program(40, index="direct")
Train = Callable[[Bags, list[Tensor], list[Tensor]], None]


class OneTable(hotrows.EmbeddingBagCollection):
    """A collection whose only table needs no name. Steps of an `EmbeddingBag` are not replayed from graphs."""

    def weight(self, name: str = "weight") -> Tensor:
        return super().weight(name)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests were started with SIGINT ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()  # collecting after every interrupt takes a tenth of the time then
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.unfreeze()
    for number, handler in before.items():
        signal.signal(number, handler)


class Interrupts:
    """SIGINT after some seconds, and perhaps a second one while the first is still being handled."""

    def __init__(self, seconds: float, number: int) -> None:
        self._seconds = seconds
        self._number = number
        self.num_sent = 0

    def start(self) -> None:
        signal.signal(signal.SIGALRM, self._send)
        signal.setitimer(signal.ITIMER_REAL, self._seconds, 0.0003 if self._number > 1 else 0)

    def _send(self, number: int, frame: FrameType | None) -> None:
        if self.num_sent < self._number:
            self.num_sent += 1
            if self.num_sent == self._number:
                signal.setitimer(signal.ITIMER_REAL, 0)
            signal.raise_signal(signal.SIGINT)

    def stop(self) -> None:
        """No signal comes any more behind this."""
        self._number = self.num_sent
        signal.setitimer(signal.ITIMER_REAL, 0)


def batches(program: Program) -> list[Tensor]:
    random = torch.Generator().manual_seed(2)
    return [(torch.rand(program.num_ids, 1, generator=random).pow(2) * NUM_ROWS).long() for _ in range(NUM_BATCHES)]


def eagerly(program: Program) -> Train:
    def train(bag: Bags, data: list[Tensor], trained: list[Tensor]) -> None:
        for ids in loop(bag, program, data):
            (bag(ids) - 1.0).square().sum().backward()
            trained.append(ids)

    return train


def replayed(program: Program, num_replayed: list[int]) -> Train:
    def train(bag: Bags, data: list[Tensor], trained: list[Tensor]) -> None:
        def step(ids: Tensor) -> Tensor:
            loss = (bag(ids) - 1.0).square().sum()
            loss.backward()
            return loss.detach()

        with hotrows.graphed(step, bag) as one:
            try:
                for ids in loop(bag, program, data):
                    one(ids)
                    trained.append(ids)
            finally:
                num_replayed.append(one.num_replayed)

    return train


@cache
def states(program: Program, device: str) -> tuple[Tensor, ...]:
    """All rows after each number of batches, with all of them in the cache."""
    bag = make_on(program, device, "100%")
    found = [rows_of(bag).cpu()]
    for ids in batches(program):
        (bag(ids) - 1.0).square().sum().backward()
        found.append(rows_of(bag).cpu())
    return tuple(found)


def make_on(program: Program, device: str, cache_rows: int | str) -> Bags:
    if device == "cpu":
        return make(program, cache_rows)
    arguments: dict[str, Any] = {
        "mode": "sum", "cache": cache_rows, "index": program.index, "policy": program.policy, "device": device,
        "optimizer": OPTIMIZERS[program.optimizer](),
    }  # fmt: skip
    if program is REPLAYED:
        return OneTable([hotrows.Table("weight", NUM_ROWS)], 4, **arguments)
    bag = hotrows.EmbeddingBag(NUM_ROWS, 4, **arguments)
    bag.schedulers[0].coalesce = program.coalesce
    return bag


def interrupt_at_random(program: Program, train: Train, device: str, num: int, seed: int) -> Counter[str]:
    """Train and interrupt until `num` interrupts have arrived. Returns how many of each kind there were."""
    random = torch.Generator().manual_seed(seed)
    data, expected, outcomes = batches(program), states(program, device), Counter[str]()
    seconds = duration(program, train, device)
    unraisable, sys.unraisablehook = sys.unraisablehook, lambda _: outcomes.update(["swallowed by a finalizer"])
    try:
        while outcomes["SIGINTs"] < num:
            two = float(torch.rand((), generator=random)) < 0.25
            moment = 1.05 * seconds * float(torch.rand((), generator=random)) + 1e-6
            interrupts = Interrupts(moment, 1 + two)
            bag, trained = make_on(program, device, program.cache), list[Tensor]()
            ended_with = once(lambda bag=bag, trained=trained: train(bag, data, trained), interrupts)
            outcomes.update([ended_with])
            outcomes["SIGINTs"] += interrupts.num_sent
            gc.collect()
            where = f"run {outcomes['runs']} of seed {seed}, interrupted after {moment * 1e3:.3f} ms: {ended_with}"
            outcomes["runs"] += 1
            assert not is_deferring(), f"{where}: SIGINT is still deferred"
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, f"{where}: the handler has changed"
            found = rows_of(bag).cpu()
            steps = [n for n in (len(trained), len(trained) + 1) if n <= len(data) and same(found, expected[n])]
            assert steps, f"{where}: the rows are not those of {len(trained)} steps, nor of one more"
            train(bag, data[steps[0] :], [])
            assert same(rows_of(bag).cpu(), expected[-1]), f"{where}: training on is wrong"
    finally:
        sys.unraisablehook = unraisable
    return outcomes


def once(train: Callable[[], None], interrupts: Interrupts) -> str:
    """Train, and interrupt that. Returns how it has ended."""
    ended_with = "not interrupted"
    try:
        try:
            interrupts.start()
            train()
        except KeyboardInterrupt:
            ended_with = "KeyboardInterrupt"
            time.sleep(0.001)  # the second one may arrive now
        except RuntimeError as error:  # of autograd, which an interrupt has ended
            ended_with = f"RuntimeError: {error}"
        interrupts.stop()
    except KeyboardInterrupt:
        ended_with = "KeyboardInterrupt"
        with suppress(KeyboardInterrupt):
            interrupts.stop()
    return ended_with


@cache
def duration(program: Program, train: Train, device: str) -> float:
    """The seconds of a training without interrupts."""
    times = []
    for _ in range(3):
        bag = make_on(program, device, program.cache)
        began = time.perf_counter()
        train(bag, batches(program), [])
        times.append(time.perf_counter() - began)
    return min(times)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_sigint_at_a_random_moment(name: str, record_property: Callable[[str, object], None]) -> None:
    program = PROGRAMS[name]
    num = -(-NUM_SIGINTS // len(PROGRAMS))
    outcomes = interrupt_at_random(program, eagerly(program), "cpu", num, seed=len(name))
    record_property("count", f"SIGINTs at random moments, {name}: {dict(outcomes)}, 0 wrong rows")
    assert outcomes["SIGINTs"] >= num


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*sorted(PROGRAMS), "replayed"])
def test_sigint_at_a_random_moment_on_a_gpu(name: str, record_property: Callable[[str, object], None]) -> None:
    program, num_replayed = PROGRAMS.get(name, REPLAYED), list[int]()
    train = replayed(program, num_replayed) if name == "replayed" else eagerly(program)
    num = -(-NUM_GPU_SIGINTS // (len(PROGRAMS) + 1))
    outcomes = interrupt_at_random(program, train, "cuda", num, seed=len(name))
    record_property("count", f"SIGINTs at random moments on a GPU, {name}: {dict(outcomes)}, 0 wrong rows")
    assert outcomes["SIGINTs"] >= num
    assert name != "replayed" or max(num_replayed) > 0
