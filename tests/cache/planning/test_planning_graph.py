"""Batches announced and planned in a ring: on the CPU its kernels run in the interpreter, and nothing is recorded."""

import contextlib
import gc
import signal
import sys
import weakref
from collections.abc import Iterator

import pytest
import torch

import hotrows
from hotrows.cache.planning import kernel_planner, victim_scan
from hotrows.cache.planning import planning_graph as ring_module
from hotrows.cache.policies import next_use
from hotrows.cache.policies.next_use import NextUseTable
from hotrows.cache.row_cache import RowCache
from hotrows.loop.scheduler import Pipeline
from hotrows.runtime.readback import Readback

SIZES = {"a": 300, "b": 7}
NUM_BATCHES = 14


@pytest.fixture(autouse=True)
def _interpreter() -> None:
    if torch.cuda.is_available():
        pytest.skip("on a GPU tests/train/test_graphs.py runs the ring as it is")


parties = pytest.mark.parametrize("party", [1, 2, 4])  # how many batches share a turn


def make_batches(size: int, last: int | None = None) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    sizes = [size] * (NUM_BATCHES - 1) + [last or size]
    return [
        torch.stack([(torch.rand(n, generator=random) ** 3 * rows).long() for rows in SIZES.values()], 1) for n in sizes
    ]


def train(batches, *, ring: bool, depth: int = 2, window: int = 7, party: int | None = None, **arguments):
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    bags = hotrows.EmbeddingBagCollection(tables, 4, optimizer=hotrows.optim.Adam(lr=0.1), **arguments)
    for group in bags.groups:
        group.uses_ring = ring
        group.seating.batches_to_coalesce = party
    seats = 0
    for ids in hotrows.lookahead(batches, bags, depth=depth, window=window, ids=lambda b: b):
        flight = bags.current.flights[0]
        seats += flight is not None and flight.seat is not None
        (bags(ids) ** 2).sum().backward()
    return {name: bags.weight(name) for name in SIZES}, bags.stats(), seats


def same(ours, theirs) -> None:
    for name in SIZES:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("window", [7, 13])
@parties
@pytest.mark.parametrize("index", ["hash", "direct"])
def test_same_as_without_a_ring(index, window, party):
    batches = make_batches(12)
    cache = {1: 90, 2: 95, 4: 102}[party]
    ours, stats, seats = train(batches, ring=True, cache=cache, index=index, window=window, party=party)
    theirs, expected, _ = train(batches, ring=False, cache=cache, index=index, window=window)
    same(ours, theirs)
    assert seats == NUM_BATCHES
    assert stats.evictions > 0
    assert (stats.lookups, stats.unique) == (expected.lookups, expected.unique)
    assert stats.hits + stats.misses == stats.unique
    assert stats.batches == NUM_BATCHES


def test_batches_share_their_turns(monkeypatch):
    turns, run = [], ring_module.PlanningGraph.run
    monkeypatch.setattr(ring_module.PlanningGraph, "run", lambda self, *how: (turns.append(how[:2]), run(self, *how)))
    train(make_batches(12), ring=True, cache=200, index="hash", window=12, party=4)
    num_parties = -(-NUM_BATCHES // 4)
    assert sum(announces for announces, _ in turns) == num_parties
    assert sum(plans for _, plans in turns) == num_parties


@pytest.mark.parametrize(
    ("num_lookups", "num_slots", "window", "expected"),
    [
        (26 * 1024, 506_439, 16, 4), (26 * 1024, 506_439, 13, 2), (26 * 1024, 506_439, 9, 1),
        (26 * 1024, 100_000, 16, 2), (26 * 1024, 50_000, 16, 1), (26 * 4096, 506_439, 16, 4),
        (26 * 16384, 10**9, 64, 1),
    ],
)  # fmt: skip
def test_how_many_share_a_turn(num_lookups, num_slots, window, expected):
    tables = [hotrows.Table("a", 100)]
    for policy in ("lookahead", "lru"):
        bags = hotrows.EmbeddingBagCollection(tables, 4, cache=64, optimizer=hotrows.optim.SGD(lr=0.1), policy=policy)
        planner = bags.groups[0].planner
        planner.num_slots = num_slots
        wanted = expected if policy == "lookahead" else 1
        assert ring_module.batches_to_coalesce(planner, num_lookups, 4, window) == wanted


@pytest.mark.parametrize("ring", [True, False])
def test_victims_from_a_part_of_the_slots_at_a_time(ring, monkeypatch):
    """Parts so small that some have too few victims: these batches are planned again, with all slots."""
    monkeypatch.setattr(victim_scan, "LEAST", 8)
    monkeypatch.setattr(victim_scan, "PER_ROW", 1)
    batches, parts = make_batches(12), []
    next_part = victim_scan.VictimScan.next_part
    monkeypatch.setattr(
        victim_scan.VictimScan, "next_part", lambda self, num: parts.append(next_part(self, num)) or parts[-1]
    )  # fmt: skip
    ours, stats, seats = train(batches, ring=ring, cache=90, index="hash")
    same(ours, train(batches, ring=False, store="device")[0])
    assert any(part.length < 90 for part in parts)
    assert len({part.start for part in parts}) > 2, "every slot has its turn"
    assert stats.overflow == 0
    assert stats.evictions > 0
    assert stats.shrinks == 0, "there is room for all of them"
    assert seats == (NUM_BATCHES if ring else 0)


@parties
def test_plans_that_do_not_fit_beside_those_in_flight_are_made_again(party):
    batches = make_batches(20)
    ours, stats, seats = train(batches, ring=True, cache=60, depth=4, party=party)
    same(ours, train(batches, ring=False, store="device")[0])
    assert stats.shrinks > 0
    assert seats > 0


@parties
def test_batches_that_do_not_fit_the_cache_overflow(party):
    batches = make_batches(40)
    ours, stats, _ = train(batches, ring=True, cache=25, party=party)
    same(ours, train(batches, ring=False, store="device")[0])
    assert stats.overflow > 0


@parties
def test_the_last_batch_has_another_shape(party):
    batches = make_batches(12, last=5)
    ours, _, seats = train(batches, ring=True, cache=200, index="hash", window=12, party=party)
    same(ours, train(batches, ring=False, cache=200, index="hash")[0])
    assert seats == NUM_BATCHES - 1


@parties
def test_a_bad_batch_of_a_party_leaves_the_others_alone(party):
    batches = make_batches(12)
    batches[6][3, 1] = SIZES["b"]
    results = []
    for ring in (True, False):
        bags = make_bags(ring, 200, party)
        trained = []

        def run(bags, trained):
            for ids in hotrows.lookahead(batches, bags, depth=2, window=12, ids=lambda b: b):
                (bags(ids) ** 2).sum().backward()
                trained.append(ids)

        with pytest.raises(hotrows.BadIdError, match=f"sample 3.*{SIZES['b']}|{SIZES['b']}.*sample 3"):
            run(bags, trained)
        assert len(trained) == 6
        results.append({name: bags.weight(name) for name in SIZES})
    same(*results)


@parties
def test_a_bad_batch_is_found_at_its_turn_whatever_came_in_between(party):
    """Reads and batches of other shapes make places go round faster."""
    batches, read = make_batches(12), make_batches(3)[0]
    batches[7][3, 1] = SIZES["b"]
    bags, trained = make_bags(True, 200, party), []

    def run():
        for ids in hotrows.lookahead(batches, bags, depth=2, window=12, ids=lambda b: b):
            with torch.no_grad():
                bags(read)
            (bags(ids) ** 2).sum().backward()
            trained.append(ids)

    with pytest.raises(hotrows.BadIdError):
        run()
    assert len(trained) == 7


@parties
def test_nothing_is_left_of_a_loop_that_was_left(party):
    """With plans that did not fit, which the loop has not looked at yet."""
    for last in range(1, 6):
        bags = make_bags(True, 60, party)
        for number, ids in enumerate(
            hotrows.lookahead(make_batches(20), bags, depth=4, window=12, ids=lambda b: b), start=1
        ):
            (bags(ids) ** 2).sum().backward()
            if number == last:
                break
        group = bags.groups[0]
        assert not group._flights
        assert not group.seating._placed
        assert not group.planner.policy.next_use._in_window


@pytest.mark.parametrize("call", [1, 6, 13])
def test_a_batch_that_only_some_dims_have_heard_of(call, monkeypatch):
    """The batches before it train, and so does the next loop."""
    tables = [hotrows.Table(name, 300, dim=dim) for name, dim in (("a", 4), ("b", 8))]

    def make(ring):
        bags = hotrows.EmbeddingBagCollection(tables, 4, optimizer=hotrows.optim.SGD(lr=0.1), cache=500, index="hash")
        for group in bags.groups:
            group.uses_ring = ring
            group.seating.batches_to_coalesce = 4
        return bags

    def train_all(bags):
        trained = 0
        with contextlib.suppress(MemoryError):
            for ids in hotrows.lookahead(make_batches(12), bags, depth=2, window=12, ids=lambda b: b):
                sum((each**2).sum() for each in bags(ids)).backward()
                trained += 1
        return trained

    bags, plain = make(True), make(False)
    second = bags.groups[1].seating
    announce, calls = second.announce, []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == call:
            raise MemoryError
        return announce(*arguments)

    monkeypatch.setattr(second, "announce", failing)
    assert train_all(bags) == call - 1
    for ids in make_batches(12)[: call - 1]:
        sum((each**2).sum() for each in plain(ids)).backward()
    assert train_all(bags) == train_all(plain) == NUM_BATCHES
    same({name: bags.weight(name) for name in SIZES}, {name: plain.weight(name) for name in SIZES})
    assert not any(group._flights or group.seating._placed for group in bags.groups)


@parties
def test_a_batch_that_is_not_looked_up_leaves_the_others_of_its_party_alone(party):
    """Its rows were planned with theirs, or, where the cache is too small for them, on the spot."""
    for cache in (200, 30):
        results = []
        for ring in (True, False):
            bags = make_bags(ring, cache, party)
            for number, ids in enumerate(
                hotrows.lookahead(make_batches(12), bags, depth=2, window=12, ids=lambda b: b)
            ):
                if number % 5 != 1:
                    (bags(ids) ** 2).sum().backward()
            results.append({name: bags.weight(name) for name in SIZES})
        same(*results)


def test_all_rows_on_the_device():
    batches = make_batches(12, last=5)
    ours, stats, seats = train(batches, ring=True, store="device")
    same(ours, train(batches, ring=False, store="device")[0])
    assert seats == NUM_BATCHES - 1, "a batch of another shape has no place in the ring"
    assert stats.misses == 0


def test_a_loop_that_is_collected_with_its_bags_complains_of_nothing(monkeypatch):
    """As at the end of a script that has failed in its loop."""
    complaints = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    bags = make_bags(True, 200, 2)
    held = {"bags": bags, "loop": hotrows.lookahead(make_batches(12), bags, depth=2, window=7, ids=lambda b: b)}
    (bags(next(held["loop"])) ** 2).sum().backward()
    held["itself"] = held
    gone = weakref.ref(bags)
    del bags, held
    gc.collect()
    assert gone() is None
    assert not complaints, complaints[0].exc_value


def spy_on_plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches were to come before each batch that was planned, in a list that grows."""
    places: list[int] = []
    plan = Pipeline._plan

    def planned(self, place):
        places.append(place)
        return plan(self, place)

    monkeypatch.setattr(Pipeline, "_plan", planned)
    return places


@pytest.mark.parametrize(("cache", "depth", "ahead"), [(24, 1, 1), (24, 2, 1), (15, 1, 0)])
def test_room_for_few_batches_is_used_for_those_to_come(cache, depth, ahead, monkeypatch):
    """Batches of ten rows that none of the others has: the one that has trained makes room for the next."""
    batches = [torch.stack([torch.arange(10 * i, 10 * i + 10) % 300, torch.zeros(10).long()], 1) for i in range(28)]
    places = spy_on_plans(monkeypatch)
    ours, stats, seats = train(batches, ring=True, depth=depth, window=6, cache=cache, policy="lfu")
    settled = places[len(places) // 3 :]
    assert settled.count(ahead) > 0.8 * len(settled), places
    assert seats == len(batches)
    assert stats.overflow == 0
    same(ours, train(batches, ring=False, depth=depth, window=6, cache=cache, policy="lfu")[0])


@parties
def test_several_loops_share_a_ring(party):
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    results = []
    for ring in (True, False):
        bags = hotrows.EmbeddingBagCollection(tables, 4, cache=200, optimizer=hotrows.optim.SGD(lr=0.1), index="hash")
        bags.groups[0].uses_ring = ring
        bags.groups[0].seating.batches_to_coalesce = party
        for _ in range(2):
            for number, ids in enumerate(hotrows.lookahead(make_batches(12), bags, depth=2, window=5, ids=lambda b: b)):
                (bags(ids) ** 2).sum().backward()
                if number == 5:
                    break
        results.append({name: bags.weight(name) for name in SIZES})
    same(*results)


@pytest.mark.parametrize(("party", "kept_number"), [(1, 2), (2, 1), (4, 1), (4, 3)])
def test_a_backward_pass_long_after_its_turn_is_refused(party, kept_number):
    """With four to a party, seats of 1 and 3 are taken again by the last party, which has two members."""
    bags = make_bags(True, 200, party)
    kept = None
    for number, ids in enumerate(hotrows.lookahead(make_batches(12), bags, depth=2, window=12, ids=lambda b: b)):
        loss = (bags(ids) ** 2).sum()
        loss.backward(retain_graph=number == kept_number)
        kept = loss if number == kept_number else kept
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


def make_bags(ring: bool, cache: int = 90, party: int = 1):
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    bags = hotrows.EmbeddingBagCollection(tables, 4, optimizer=hotrows.optim.SGD(lr=0.1), cache=cache, index="hash")
    bags.groups[0].uses_ring = ring
    bags.groups[0].seating.batches_to_coalesce = party
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


@pytest.mark.parametrize("turn", [1, 3, 5])
@parties
def test_an_interrupt_before_a_turn_is_counted(turn, party, monkeypatch):
    bags, turns = make_bags(True, party=party), []
    stream = bags.groups[0].planning_stream.submit

    def submit(work, after=(), replays_graph=False):
        event = stream(work, after, replays_graph)
        turns.extend([event] if replays_graph else [])
        if replays_graph and len(turns) == turn:
            raise KeyboardInterrupt
        return event

    monkeypatch.setattr(bags.groups[0].planning_stream, "submit", submit)
    trained = run_until_interrupted(bags)
    assert bags.groups[0].ring.is_broken
    check_goes_on(bags, trained)


@pytest.mark.parametrize("which", [1, 5, 8])
@parties
def test_an_interrupt_while_the_host_waits_for_numbers(which, party, monkeypatch):
    """Ctrl-C comes when the wait is over, before what was waited for is put down."""
    bags, waited = make_bags(True, party=party), []
    get = Readback.result

    def interrupted(self):
        waited.append(self)
        if len(waited) == which:
            raise KeyboardInterrupt
        return get(self)

    monkeypatch.setattr(Readback, "result", interrupted)
    check_goes_on(bags, run_until_interrupted(bags))


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
    bags, spread, turns = make_bags(ring=True), kernel_planner.KernelPlanner._spread, []

    def interrupted(self, *arguments):
        turns.append(self)
        if len(turns) == turn:
            signal.raise_signal(signal.SIGINT)
        return spread(self, *arguments)

    monkeypatch.setattr(kernel_planner.KernelPlanner, "_spread", interrupted)
    trained = run_until_interrupted(bags)
    bags.flush()
    check_goes_on(bags, trained)


def test_more_turns_than_there_are_numbers_for(monkeypatch):
    monkeypatch.setattr(ring_module, "NUM_TURNS", 3)
    batches = make_batches(12)
    same(train(batches, ring=True, cache=90, index="hash")[0], train(batches, ring=False, cache=90, index="hash")[0])


@parties
def test_no_row_of_a_bad_batch_stays_announced(party):
    """Nine batches in parties, the last one bad and alone in its own, in a loop that is left before."""
    bags = hotrows.EmbeddingBagCollection(
        [hotrows.Table("a", 600)], 4, cache=300, index="hash", optimizer=hotrows.optim.SGD(lr=0.1)
    )
    (group,) = bags.groups
    group.uses_ring, group.seating.batches_to_coalesce = True, party
    random = torch.Generator().manual_seed(0)
    batches = [torch.randint(600, (12, 1), generator=random) for _ in range(9)]
    batches[8][0, 0] = 600
    for place, ids in enumerate(hotrows.lookahead(batches, bags, depth=2, window=12, ids=lambda b: b)):
        (bags(ids) ** 2).sum().backward()
        if place == 1:
            break
    group.resolve_all()
    table = group.planner.policy.next_use
    assert table._num_in_window == 0
    assert not (table.arrays()[0] >= 0).any()


@pytest.mark.parametrize(("party", "window", "times"), [(1, 7, 3), (4, 16, 12)])
def test_no_wait_where_the_table_of_upcoming_rows_is_built_anew(party, window, times, monkeypatch):
    monkeypatch.setattr(next_use, "SMALLEST", 8)
    waited, built = [], []
    count, leave, make_room = RowCache.count_announced, NextUseTable.leave, NextUseTable._make_room
    monkeypatch.setattr(RowCache, "count_announced", lambda self, wait: waited.append(wait) or count(self, wait))
    monkeypatch.setattr(NextUseTable, "_make_room", lambda self, num: built.append(len(waited)) or make_room(self, num))
    batches = make_batches(8) * times
    arguments = {"window": window, "cache": 150, "index": "hash"}
    expected = train(batches, ring=False, **arguments)[0]
    waited.clear()
    built.clear()
    same(train(batches, ring=True, party=party, **arguments)[0], expected)
    assert len(built) < 4, "next to no erased cell is left"
    # as if each row that goes left one
    monkeypatch.setattr(NextUseTable, "leave", lambda self, number, num_erased=None: leave(self, number))
    waited.clear()
    built.clear()
    same(train(batches, ring=True, party=party, **arguments)[0], expected)
    assert len(built) > 3
    assert True not in waited[built[2] :]


@pytest.mark.parametrize(("party", "window", "turn", "num_trained"), [(1, 7, 3, 2), (2, 7, 2, 2), (4, 13, 2, 4)])
def test_an_announcement_that_fails_says_why_at_its_batchs_turn(party, window, turn, num_trained, monkeypatch):
    bags, work, turns = make_bags(True, party=party), ring_module.PlanningGraph._work, []

    def failing(self, *arguments):
        turns.append(self)
        if len(turns) == turn:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return work(self, *arguments)

    monkeypatch.setattr(ring_module.PlanningGraph, "_work", failing)
    trained = []

    def train_all():
        for ids in hotrows.lookahead(make_batches(12), bags, depth=2, window=window, ids=lambda b: b):
            (bags(ids) ** 2).sum().backward()
            trained.append(ids)

    with pytest.raises(RuntimeError, match="could not be found ahead") as raised:
        train_all()
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)
    assert len(trained) == num_trained, "the batches before it"
    check_goes_on(bags, len(trained))
