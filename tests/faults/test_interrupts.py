"""Whatever interrupts a training loop, and wherever: every row has its value before or after a step, none another's.

By default a sample of the lines that a program executes is tried. HOTROWS_FAULTS=N tries about N of each program;
HOTROWS_FAULTS=lines tries every line of the source once, at a random one of the times that the program comes to it;
HOTROWS_FAULTS=all tries every time, which takes hours.
"""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import hotrows
from hotrows.runtime.defer_sigint import is_deferring
from tests.faults.injection import AtLine, InjectedError, fail, interrupt

Bags = Any  # an EmbeddingBag, or a collection of one table
FAULTS: dict[str, Callable[[], None]] = {"interrupt": interrupt, "exception": fail}


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests were started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()  # collecting after every fault takes a tenth of the time then
    yield
    gc.unfreeze()
    signal.signal(signal.SIGINT, before)


@dataclass(frozen=True)
class Program:
    """How a small model is trained."""

    cache: int
    index: str = "hash"
    policy: str = "lookahead"
    depth: int | None = 2  # None: without lookahead
    coalesce: int | None = None
    optimizer: str = "adagrad"
    num_ids: int = 9


PROGRAMS = {
    "evicting": Program(20),
    "overflowing": Program(5, policy="lru", index="direct"),
    "coalesced": Program(40, coalesce=3),
    "sets": Program(32, index="set-associative", policy="lfu", optimizer="adam"),
    "without lookahead": Program(12, depth=None, optimizer="adam"),
}
OPTIMIZERS = {"adagrad": lambda: hotrows.optim.Adagrad(lr=0.1), "adam": lambda: hotrows.optim.Adam(lr=0.1)}
NUM_BATCHES, NUM_ROWS = 7, 60


def batches(program: Program) -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    return [(torch.rand(program.num_ids, 1, generator=random).pow(2) * NUM_ROWS).long() for _ in range(NUM_BATCHES)]


def make(program: Program, cache: int | str) -> hotrows.EmbeddingBag:
    bag = hotrows.EmbeddingBag(
        NUM_ROWS, 4, mode="sum", cache=cache, index=program.index, policy=program.policy,
        optimizer=OPTIMIZERS[program.optimizer](),
    )  # fmt: skip
    bag.schedulers[0].coalesce = program.coalesce
    return bag


def train(bag: hotrows.EmbeddingBag, program: Program, data: list[Tensor], trained: list[Tensor]) -> None:
    """Train on the data. `trained` gets each batch whose backward pass has ended."""
    for ids in loop(bag, program, data):
        (bag(ids) - 1.0).square().sum().backward()
        trained.append(ids)


def loop(bag: Bags, program: Program, data: list[Tensor]) -> Iterator[Tensor]:
    if program.depth is None:
        yield from data
    else:
        yield from hotrows.lookahead(data, bag, depth=program.depth, window=5, ids=lambda ids: ids)


def rows_of(bag: Bags) -> Tensor:
    """Weights and state of all rows, and the step count."""
    state = bag.row_state("weight")
    return torch.cat(
        [
            bag.weight(),
            *[
                values.reshape(-1, 1 if values.dim() == 0 else values.shape[1]).expand(NUM_ROWS, -1)
                for values in state.values()
            ],
        ],
        1,
    )


@cache
def states(program: Program) -> tuple[Tensor, ...]:
    """All rows after each number of batches, with all of them in the cache."""
    bag = make(program, "100%")
    found = [rows_of(bag)]
    for ids in batches(program):
        (bag(ids) - 1.0).square().sum().backward()
        found.append(rows_of(bag))
    return tuple(found)


@cache
def executed(program: Program) -> AtLine:
    with AtLine() as lines:
        train(make(program, program.cache), program, batches(program), [])
    return lines


def lines_to_try(program: Program) -> list[int]:
    wanted, total = os.environ.get("HOTROWS_FAULTS", "40"), executed(program).num_lines
    if wanted == "all":
        return list(range(1, total + 1))
    random = torch.Generator().manual_seed(len(wanted) + total)
    if wanted == "lines":
        times = executed(program).numbers_at.values()
        return sorted(each[int(torch.randint(len(each), (), generator=random))] for each in times)
    return sorted({int(line) for line in torch.randint(1, total + 1, (int(wanted),), generator=random)})


@pytest.mark.parametrize("fault", sorted(FAULTS))
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_every_row_is_that_of_a_whole_step(
    name: str, fault: str, record_property: Callable[[str, object], None]
) -> None:
    program = PROGRAMS[name]
    data, expected = batches(program), states(program)
    num_raised = 0
    for line in lines_to_try(program):
        bag, trained = make(program, program.cache), list[Tensor]()
        lines = AtLine(line, FAULTS[fault])
        try:
            with lines:
                train(bag, program, data, trained)
        except (KeyboardInterrupt, InjectedError, RuntimeError):  # a finalizer or autograd may wrap the exception
            num_raised += 1
        gc.collect()
        assert not is_deferring(), f"{fault} at line {line} ({lines.where}): SIGINT is still deferred"
        found = rows_of(bag)
        done = [num for num in (len(trained), len(trained) + 1) if num <= len(data) and same(found, expected[num])]
        assert done, f"{fault} at line {line} ({lines.where}): the rows are of no step"
        train(bag, program, data[done[0] :], [])
        assert same(rows_of(bag), expected[-1]), f"{fault} at line {line} ({lines.where}): training on is wrong"
    count = f"{fault} at {len(lines_to_try(program))} of {executed(program).num_lines} lines, {name}: 0 wrong rows"
    record_property("count", count)
    print(count)
    assert num_raised > 0


def same(found: Tensor, expected: Tensor) -> bool:
    return torch.equal(found, expected)
