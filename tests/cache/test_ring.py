"""Batches announced and planned in a ring: on the CPU its kernels run in the interpreter, and nothing is recorded."""

import contextlib
import gc
import signal
import weakref
from collections.abc import Iterator

import pytest
import torch

import hotrows
from hotrows.cache import fused, scan
from hotrows.cache import ring as ring_module

SIZES = {"a": 300, "b": 7}
NUM_BATCHES = 14


@pytest.fixture(autouse=True)
def _interpreter() -> None:
    if torch.cuda.is_available():
        pytest.skip("on a GPU tests/train/test_graphs.py runs the ring as it is")


def make_batches(size: int, last: int | None = None) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    sizes = [size] * (NUM_BATCHES - 1) + [last or size]
    return [
        torch.stack([(torch.rand(n, generator=random) ** 3 * rows).long() for rows in SIZES.values()], 1) for n in sizes
    ]


def train(batches, *, ring: bool, depth: int = 2, **arguments):
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    bags = hotrows.EmbeddingBagCollection(tables, 4, optimizer=hotrows.optim.Adam(lr=0.1), **arguments)
    for group in bags.groups:
        group.uses_ring = ring
    seats = 0
    for ids in hotrows.lookahead(batches, bags, depth=depth, window=7, ids=lambda b: b):
        flight = bags.current.flights[0]
        seats += flight is not None and flight.seat is not None
        (bags(ids) ** 2).sum().backward()
    return {name: bags.weight(name) for name in SIZES}, bags.stats(), seats


def same(ours, theirs) -> None:
    for name in SIZES:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("index", ["hash", "direct"])
def test_same_as_without_a_ring(index):
    batches = make_batches(12)
    ours, stats, seats = train(batches, ring=True, cache=90, index=index)
    theirs, expected, _ = train(batches, ring=False, cache=90, index=index)
    same(ours, theirs)
    assert seats == NUM_BATCHES
    assert stats.evictions > 0
    assert (stats.lookups, stats.unique) == (expected.lookups, expected.unique)


@pytest.mark.parametrize("ring", [True, False])
def test_victims_from_a_part_of_the_slots_at_a_time(ring, monkeypatch):
    """Parts so small that some have too few victims: these batches are planned again, with all slots."""
    monkeypatch.setattr(scan, "LEAST", 8)
    monkeypatch.setattr(scan, "PER_ROW", 1)
    batches, parts = make_batches(12), []
    next_part = scan.Scans.next_part
    monkeypatch.setattr(
        scan.Scans, "next_part", lambda self, num: parts.append(next_part(self, num)) or parts[-1]
    )  # fmt: skip
    ours, stats, seats = train(batches, ring=ring, cache=90, index="hash")
    same(ours, train(batches, ring=False, store="device")[0])
    assert any(part.length < 90 for part in parts)
    assert len({part.start for part in parts}) > 2, "every slot has its turn"
    assert stats.overflow == 0
    assert stats.evictions > 0
    assert stats.shrinks == 0, "there is room for all of them"
    assert seats == (NUM_BATCHES if ring else 0)


def test_plans_that_do_not_fit_beside_those_in_flight_are_made_again():
    batches = make_batches(20)
    ours, stats, seats = train(batches, ring=True, cache=60, depth=4)
    same(ours, train(batches, ring=False, store="device")[0])
    assert stats.shrinks > 0
    assert seats > 0


def test_batches_that_do_not_fit_the_cache_overflow():
    batches = make_batches(40)
    ours, stats, _ = train(batches, ring=True, cache=25)
    same(ours, train(batches, ring=False, store="device")[0])
    assert stats.overflow > 0


def test_all_rows_on_the_device():
    batches = make_batches(12, last=5)
    ours, stats, seats = train(batches, ring=True, store="device")
    same(ours, train(batches, ring=False, store="device")[0])
    assert seats == NUM_BATCHES - 1, "a batch of another shape has no place in the ring"
    assert stats.misses == 0


def test_several_loops_share_a_ring():
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    results = []
    for ring in (True, False):
        bags = hotrows.EmbeddingBagCollection(tables, 4, cache=90, optimizer=hotrows.optim.SGD(lr=0.1), index="hash")
        bags.groups[0].uses_ring = ring
        for _ in range(2):
            for number, ids in enumerate(hotrows.lookahead(make_batches(12), bags, depth=2, window=5, ids=lambda b: b)):
                (bags(ids) ** 2).sum().backward()
                if number == 5:
                    break
        results.append({name: bags.weight(name) for name in SIZES})
    same(*results)


def test_a_backward_pass_long_after_its_turn_is_refused():
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    bags = hotrows.EmbeddingBagCollection(tables, 4, cache=90, optimizer=hotrows.optim.SGD(lr=0.1), index="hash")
    bags.groups[0].uses_ring = True
    kept = None
    for number, ids in enumerate(hotrows.lookahead(make_batches(12), bags, depth=2, window=5, ids=lambda b: b)):
        loss = (bags(ids) ** 2).sum()
        loss.backward(retain_graph=number == 2)
        kept = loss if number == 2 else kept
    with pytest.raises(RuntimeError, match="its plan is gone"):
        kept.backward()


def test_bags_are_let_go_with_their_last_user():
    """Without the garbage collector, which would keep gigabytes until it gets round to it."""
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    bags = hotrows.EmbeddingBagCollection(tables, 4, cache=90, optimizer=hotrows.optim.SGD(lr=0.1), index="hash")
    bags.groups[0].uses_ring = True
    for ids in hotrows.lookahead(make_batches(12), bags, depth=2, window=5, ids=lambda b: b):
        (bags(ids) ** 2).sum().backward()
    assert bags.groups[0].ring is not None
    group = weakref.ref(bags.groups[0])
    gc.collect()
    gc.disable()
    try:
        del bags
        assert group() is None
    finally:
        gc.enable()


def run_until_interrupted(bags):
    """How many batches have trained."""
    trained = 0
    with contextlib.suppress(KeyboardInterrupt):
        for ids in hotrows.lookahead(make_batches(12), bags, depth=2, window=5, ids=lambda b: b):
            (bags(ids) ** 2).sum().backward()
            trained += 1
        pytest.fail("was not interrupted")
    return trained


def make_bags(ring: bool):
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    bags = hotrows.EmbeddingBagCollection(tables, 4, optimizer=hotrows.optim.SGD(lr=0.1), cache=90, index="hash")
    bags.groups[0].uses_ring = ring
    return bags


def check_goes_on(bags, trained):
    """Another epoch after the interrupt is the same as without a ring."""
    plain = make_bags(ring=False)
    for each, num in ((bags, 0), (plain, trained)):
        for ids in make_batches(12)[:num]:
            (each(ids) ** 2).sum().backward()
        for ids in hotrows.lookahead(make_batches(12), each, depth=2, window=5, ids=lambda b: b):
            (each(ids) ** 2).sum().backward()
    same({name: bags.weight(name) for name in SIZES}, {name: plain.weight(name) for name in SIZES})


@pytest.mark.parametrize("turn", [1, 5, 9])
def test_an_interrupt_before_a_turn_is_counted(turn, monkeypatch):
    bags, turns = make_bags(ring=True), []
    lane = bags.groups[0].plan_lane.submit

    def submit(work, after=(), recorded=False):
        mark = lane(work, after, recorded)
        turns.extend([mark] if recorded else [])
        if recorded and len(turns) == turn:
            raise KeyboardInterrupt
        return mark

    monkeypatch.setattr(bags.groups[0].plan_lane, "submit", submit)
    trained = run_until_interrupted(bags)
    assert bags.groups[0].ring.is_broken
    check_goes_on(bags, trained)


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """As in a terminal: what runs in the background may have been started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("turn", [1, 4])
@pytest.mark.usefixtures("ctrl_c_raises")
def test_ctrl_c_while_a_turn_is_being_compiled(turn, monkeypatch):
    """Rows that were given a slot have come to it."""
    bags, spread, turns = make_bags(ring=True), fused.FusedPlanner._spread, []

    def interrupted(self, *arguments):
        turns.append(self)
        if len(turns) == turn:
            signal.raise_signal(signal.SIGINT)
        return spread(self, *arguments)

    monkeypatch.setattr(fused.FusedPlanner, "_spread", interrupted)
    trained = run_until_interrupted(bags)
    bags.flush()
    check_goes_on(bags, trained)


def test_more_turns_than_there_are_numbers_for(monkeypatch):
    monkeypatch.setattr(ring_module, "NUM_TURNS", 3)
    batches = make_batches(12)
    same(train(batches, ring=True, cache=90, index="hash")[0], train(batches, ring=False, cache=90, index="hash")[0])


def test_an_announcement_that_fails_says_why_at_its_batchs_turn(monkeypatch):
    bags, work, turns = make_bags(ring=True), ring_module.Ring._work, []

    def failing(self, *arguments):
        turns.append(self)
        if len(turns) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return work(self, *arguments)

    monkeypatch.setattr(ring_module.Ring, "_work", failing)
    trained = []

    def train_all():
        for ids in hotrows.lookahead(make_batches(12), bags, depth=2, window=7, ids=lambda b: b):
            (bags(ids) ** 2).sum().backward()
            trained.append(ids)

    with pytest.raises(RuntimeError, match="could not be found ahead") as raised:
        train_all()
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)
    assert len(trained) == 2, "the batches before it"
    check_goes_on(bags, len(trained))
