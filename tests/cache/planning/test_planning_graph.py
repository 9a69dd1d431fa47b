"""The planning graph. On the CPU its kernels run in the interpreter, and nothing is captured."""

import contextlib
import gc
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import hotrows
from hotrows.cache.planning import kernel_planner, planning_graph, victim_scan
from hotrows.cache.planning.planning_graph import PlanningGraph
from hotrows.cache.policies import next_use
from hotrows.cache.policies.next_use import NextUseTable
from hotrows.loop.announcements import Announcements
from hotrows.loop.window import BatchWindow
from hotrows.runtime.readback import Readback

SIZES = {"a": 300, "b": 7}
NUM_BATCHES = 14


@pytest.fixture(autouse=True)
def _interpreter() -> None:
    if torch.cuda.is_available():
        pytest.skip("on a GPU tests/graphs/test_training_step.py runs the captured graph")


coalesced = pytest.mark.parametrize("coalesce", [1, 2, 4])  # how many batches are planned as one


def make_batches(size: int, last: int | None = None) -> list[Tensor]:
    random = torch.Generator().manual_seed(3)
    sizes = [size] * (NUM_BATCHES - 1) + [last or size]
    return [
        torch.stack([(torch.rand(n, generator=random) ** 3 * rows).long() for rows in SIZES.values()], 1) for n in sizes
    ]


def use_graph(bags: hotrows.EmbeddingBagCollection, graph: bool, coalesce: int | None = None) -> None:
    """Let batches be planned in the planning graph, or one by one outside of it."""
    for scheduler in bags.schedulers:
        scheduler.uses_graph = graph
        scheduler.coalesce = coalesce if graph else None


def make_bags(graph: bool, cache: int = 90, coalesce: int = 1) -> hotrows.EmbeddingBagCollection:
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    bags = hotrows.EmbeddingBagCollection(tables, 4, optimizer=hotrows.optim.SGD(lr=0.1), cache=cache, index="hash")
    use_graph(bags, graph, coalesce)
    return bags


def look(
    batches: list[Tensor], bags: hotrows.EmbeddingBagCollection, depth: int = 2, window: int = 12
) -> Iterator[Tensor]:
    return hotrows.lookahead(batches, bags, depth=depth, window=window, ids=lambda batch: batch)


def train(
    batches: list[Tensor],
    *,
    graph: bool,
    depth: int = 2,
    window: int = 7,
    coalesce: int | None = None,
    **arguments: Any,
) -> tuple[dict[str, Tensor], Any, int]:
    """The weights, the statistics, and how many batches were planned in the graph."""
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    bags = hotrows.EmbeddingBagCollection(tables, 4, optimizer=hotrows.optim.Adam(lr=0.1), **arguments)
    use_graph(bags, graph, coalesce)
    num_in_graph = 0
    for ids in look(batches, bags, depth, window):
        num_in_graph += bags.current[0].plan_buffer is not None
        (bags(ids) ** 2).sum().backward()
    return weights(bags), bags.stats(), num_in_graph


def weights(bags: hotrows.EmbeddingBagCollection) -> dict[str, Tensor]:
    return {name: bags.weight(name) for name in SIZES}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for name in SIZES:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("window", [7, 13])
@coalesced
@pytest.mark.parametrize("index", ["hash", "direct", "set-associative"])
def test_same_as_without_a_graph(index, window, coalesce):
    batches = make_batches(12)
    cache = {1: 90, 2: 95, 4: 102}[coalesce]
    if index == "set-associative":
        cache = 80
    ours, stats, num_in_graph = train(batches, graph=True, cache=cache, index=index, window=window, coalesce=coalesce)
    theirs, expected, _ = train(batches, graph=False, cache=cache, index=index, window=window)
    same(ours, theirs)
    if index == "set-associative" and coalesce > 1:  # some set has too few ways for several batches at once
        assert num_in_graph > NUM_BATCHES // 2
    else:
        assert num_in_graph == NUM_BATCHES
    assert stats.evictions > 0
    assert (stats.lookups, stats.unique) == (expected.lookups, expected.unique)
    assert stats.hits + stats.misses == stats.unique
    assert stats.batches == NUM_BATCHES


@pytest.mark.parametrize("policy", ["lookahead", "lru", "lfu"])
@pytest.mark.parametrize("cache", [48, 80])
def test_sets_without_enough_ways(cache, policy):
    """Plans are rejected because one set has too few ways, although other sets have free slots."""
    batches = make_batches(12)
    arguments = {"cache": cache, "index": "set-associative", "policy": policy}
    ours, stats, num_in_graph = train(batches, graph=True, depth=4, window=12, **arguments)
    same(ours, train(batches, graph=False, store="device")[0])
    assert stats.rejected_plans > 0
    assert stats.evictions > 0
    assert num_in_graph > 0


def test_coalesced_batches_share_iterations_of_the_graph(monkeypatch):
    iterations, run = [], PlanningGraph.run
    monkeypatch.setattr(
        PlanningGraph, "run", lambda self, *arguments: (iterations.append(arguments[:2]), run(self, *arguments))
    )  # fmt: skip
    train(make_batches(12), graph=True, cache=200, index="hash", window=12, coalesce=4)
    num_groups = -(-NUM_BATCHES // 4)
    assert sum(announces for announces, _ in iterations) == num_groups
    assert sum(plans for _, plans in iterations) == num_groups


def test_no_more_batches_are_coalesced_than_the_kernels_take():
    results = []
    for graph in (True, False):
        bags = make_bags(graph, 200, coalesce=6)
        for ids in look(make_batches(12), bags):
            (bags(ids) ** 2).sum().backward()
        results.append(weights(bags))
        assert not graph or bags.schedulers[0].planning_graph.max_coalesced == 4
    same(*results)


@pytest.mark.parametrize(
    ("num_lookups", "num_slots", "window", "expected"),
    [
        (26 * 1024, 506_439, 16, 4), (26 * 1024, 506_439, 13, 2), (26 * 1024, 506_439, 9, 1),
        (26 * 1024, 100_000, 16, 2), (26 * 1024, 50_000, 16, 1), (26 * 4096, 506_439, 16, 4),
        (26 * 16384, 10**9, 64, 1),
    ],
)  # fmt: skip
def test_how_many_batches_to_coalesce(num_lookups, num_slots, window, expected):
    tables = [hotrows.Table("a", 100)]
    for policy in ("lookahead", "lru"):
        bags = hotrows.EmbeddingBagCollection(tables, 4, cache=64, optimizer=hotrows.optim.SGD(lr=0.1), policy=policy)
        planner = bags.caches[0].planner
        planner.num_slots = num_slots
        wanted = expected if policy == "lookahead" else 1
        assert planning_graph.batches_to_coalesce(planner, num_lookups, 4, window) == wanted


def test_batches_are_not_coalesced_without_kernels_or_if_all_rows_are_on_the_device():
    tables, optimizer = [hotrows.Table("a", 100)], hotrows.optim.SGD(lr=0.1)
    for arguments in ({"store": "device"}, {"cache": 64, "policy": "random"}):
        bags = hotrows.EmbeddingBagCollection(tables, 4, optimizer=optimizer, **arguments)
        assert planning_graph.batches_to_coalesce(bags.caches[0].planner, 16, 4, 16) == 1


@pytest.mark.parametrize("graph", [True, False])
def test_victims_from_one_range_of_the_slots_after_the_other(graph, monkeypatch):
    """Some ranges are so small that they have too few victims. These batches are planned again, with all slots."""
    monkeypatch.setattr(victim_scan, "MIN_SLOTS", 8)
    monkeypatch.setattr(victim_scan, "PER_ROW", 1)
    batches, ranges = make_batches(12), []
    next_range = victim_scan.VictimScan.next_range
    monkeypatch.setattr(
        victim_scan.VictimScan, "next_range", lambda self, num: ranges.append(next_range(self, num)) or ranges[-1]
    )  # fmt: skip
    ours, stats, num_in_graph = train(batches, graph=graph, cache=90, index="hash")
    same(ours, train(batches, graph=False, store="device")[0])
    assert any(each.length < 90 for each in ranges)
    assert len({each.start for each in ranges}) > 2, "every slot is scanned after a while"
    assert stats.overflow == 0
    assert stats.evictions > 0
    assert stats.rejected_plans == 0, "there is room for all of them"
    assert num_in_graph == (NUM_BATCHES if graph else 0)


@coalesced
def test_plans_that_do_not_fit_beside_those_in_flight_are_made_again(coalesce):
    batches = make_batches(20)
    ours, stats, num_in_graph = train(batches, graph=True, cache=60, depth=4, coalesce=coalesce)
    same(ours, train(batches, graph=False, store="device")[0])
    assert stats.rejected_plans > 0
    assert num_in_graph > 0


@coalesced
def test_batches_that_do_not_fit_the_cache_overflow(coalesce):
    batches = make_batches(40)
    ours, stats, _ = train(batches, graph=True, cache=25, coalesce=coalesce)
    same(ours, train(batches, graph=False, store="device")[0])
    assert stats.overflow > 0


@coalesced
def test_the_last_batch_has_another_shape(coalesce):
    batches = make_batches(12, last=5)
    ours, _, num_in_graph = train(batches, graph=True, cache=200, index="hash", window=12, coalesce=coalesce)
    same(ours, train(batches, graph=False, cache=200, index="hash")[0])
    assert num_in_graph == NUM_BATCHES - 1


@coalesced
def test_a_bad_batch_leaves_those_it_is_coalesced_with_alone(coalesce):
    batches = make_batches(12)
    batches[6][3, 1] = SIZES["b"]
    results = []
    for graph in (True, False):
        bags = make_bags(graph, 200, coalesce)
        trained = []

        def run(bags, trained):
            for ids in look(batches, bags):
                (bags(ids) ** 2).sum().backward()
                trained.append(ids)

        with pytest.raises(hotrows.BadIdError, match=f"sample 3.*{SIZES['b']}|{SIZES['b']}.*sample 3"):
            run(bags, trained)
        assert len(trained) == 6
        results.append(weights(bags))
    same(*results)


@coalesced
def test_a_bad_batch_is_found_in_its_iteration_whatever_came_in_between(coalesce):
    """Reads, and batches of other shapes, use up request buffers sooner."""
    batches, read = make_batches(12), make_batches(3)[0]
    batches[7][3, 1] = SIZES["b"]
    bags, trained = make_bags(True, 200, coalesce), []

    def run():
        for ids in look(batches, bags):
            with torch.no_grad():
                bags(read)
            (bags(ids) ** 2).sum().backward()
            trained.append(ids)

    with pytest.raises(hotrows.BadIdError):
        run()
    assert len(trained) == 7


@coalesced
def test_nothing_is_left_of_an_interrupted_loop(coalesce):
    """With rejected plans that the loop has not looked at yet."""
    for last in range(1, 6):
        bags = make_bags(True, 60, coalesce)
        for number, ids in enumerate(look(make_batches(20), bags, depth=4), start=1):
            (bags(ids) ** 2).sum().backward()
            if number == last:
                break
        (scheduler,) = bags.schedulers
        assert len(scheduler.in_flight) == 0
        assert not scheduler.graph_planning._in_request_buffer
        assert not scheduler.cache.planner.policy.next_use._in_window


@pytest.mark.parametrize("call", [1, 6, 13])
def test_a_batch_that_is_announced_to_some_caches_only(call, monkeypatch):
    """The batches before it train, and so does the next loop."""
    tables = [hotrows.Table(name, 300, dim=dim) for name, dim in (("a", 4), ("b", 8))]

    def make(graph):
        bags = hotrows.EmbeddingBagCollection(tables, 4, optimizer=hotrows.optim.SGD(lr=0.1), cache=500, index="hash")
        use_graph(bags, graph, 4)
        return bags

    def train_all(bags):
        trained = 0
        with contextlib.suppress(MemoryError):
            for ids in look(make_batches(12), bags):
                sum((each**2).sum() for each in bags(ids)).backward()
                trained += 1
        return trained

    bags, plain = make(True), make(False)
    second = bags.schedulers[1].graph_planning
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
    same(weights(bags), weights(plain))
    for scheduler in bags.schedulers:
        assert len(scheduler.in_flight) == 0
        assert not scheduler.graph_planning._in_request_buffer


@coalesced
def test_a_batch_that_is_not_looked_up_leaves_those_it_is_coalesced_with_alone(coalesce):
    """Its rows were planned with theirs or, if the cache is too small for them, in its iteration."""
    for cache in (200, 30):
        results = []
        for graph in (True, False):
            bags = make_bags(graph, cache, coalesce)
            for number, ids in enumerate(look(make_batches(12), bags)):
                if number % 5 != 1:
                    (bags(ids) ** 2).sum().backward()
            results.append(weights(bags))
        same(*results)


def test_all_rows_on_the_device():
    batches = make_batches(12, last=5)
    ours, stats, num_in_graph = train(batches, graph=True, store="device")
    same(ours, train(batches, graph=False, store="device")[0])
    assert num_in_graph == NUM_BATCHES - 1, "the graph does not take a batch of another shape"
    assert stats.misses == 0


def test_a_loop_that_is_collected_with_its_bags_raises_nothing(monkeypatch):
    """As at the end of a script that has failed in its loop."""
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    bags = make_bags(True, 200, 2)
    held = {"bags": bags, "loop": look(make_batches(12), bags, window=7)}
    (bags(next(held["loop"])) ** 2).sum().backward()
    held["itself"] = held
    collected = weakref.ref(bags)
    del bags, held
    gc.collect()
    assert collected() is None
    assert not raised, raised[0].exc_value


def spy_on_plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches were to come before each batch that was planned, in a list that grows."""
    distances: list[int] = []
    plan = BatchWindow._plan

    def planned(self, distance):
        distances.append(distance)
        return plan(self, distance)

    monkeypatch.setattr(BatchWindow, "_plan", planned)
    return distances


@pytest.mark.parametrize(("cache", "depth", "ahead"), [(24, 1, 1), (24, 2, 1), (15, 1, 0)])
def test_room_for_few_batches_is_used_for_those_to_come(cache, depth, ahead, monkeypatch):
    """Each batch has ten rows that no other batch has. The batch that has trained makes room for the next."""
    batches = [torch.stack([torch.arange(10 * i, 10 * i + 10) % 300, torch.zeros(10).long()], 1) for i in range(28)]
    distances = spy_on_plans(monkeypatch)
    ours, stats, num_in_graph = train(batches, graph=True, depth=depth, window=6, cache=cache, policy="lfu")
    later = distances[len(distances) // 3 :]
    assert later.count(ahead) > 0.8 * len(later), distances
    assert num_in_graph == len(batches)
    assert stats.overflow == 0
    same(ours, train(batches, graph=False, depth=depth, window=6, cache=cache, policy="lfu")[0])


@coalesced
def test_several_loops_share_a_graph(coalesce):
    results = []
    for graph in (True, False):
        bags = make_bags(graph, 200, coalesce)
        for _ in range(2):
            for number, ids in enumerate(look(make_batches(12), bags, window=5)):
                (bags(ids) ** 2).sum().backward()
                if number == 5:
                    break
        results.append(weights(bags))
    same(*results)


@pytest.mark.parametrize(("coalesce", "kept_number"), [(1, 2), (2, 1), (4, 1), (4, 3)])
def test_a_backward_pass_long_after_its_iteration_is_refused(coalesce, kept_number):
    """Of four coalesced batches, the last two batches of all take the plan buffers of 1 and 3 again."""
    bags = make_bags(True, 200, coalesce)
    kept = None
    for number, ids in enumerate(look(make_batches(12), bags)):
        loss = (bags(ids) ** 2).sum()
        loss.backward(retain_graph=number == kept_number)
        kept = loss if number == kept_number else kept
    with pytest.raises(RuntimeError, match="its plan is gone"):
        kept.backward()


def test_bags_are_freed_with_their_last_user():
    """Without the garbage collector, which would keep gigabytes until it runs."""
    bags = make_bags(True)
    for ids in look(make_batches(12), bags, window=5):
        (bags(ids) ** 2).sum().backward()
    assert bags.schedulers[0].planning_graph is not None
    scheduler, cache = weakref.ref(bags.schedulers[0]), weakref.ref(bags.caches[0])
    gc.collect()
    gc.disable()
    try:
        del bags
        assert scheduler() is None
        assert cache() is None
    finally:
        gc.enable()


def run_until_interrupted(bags: hotrows.EmbeddingBagCollection) -> int:
    """How many batches have trained."""
    trained = 0
    with contextlib.suppress(KeyboardInterrupt):
        for ids in look(make_batches(12), bags, window=5):
            (bags(ids) ** 2).sum().backward()
            trained += 1
        pytest.fail("was not interrupted")
    return trained


def check_next_loop(bags: hotrows.EmbeddingBagCollection, trained: int) -> None:
    """Another epoch after the interrupt has the same result as without a graph."""
    plain = make_bags(graph=False)
    for each, num in ((bags, 0), (plain, trained)):
        for ids in make_batches(12)[:num]:
            (each(ids) ** 2).sum().backward()
        for ids in look(make_batches(12), each, window=5):
            (each(ids) ** 2).sum().backward()
    same(weights(bags), weights(plain))


@pytest.mark.parametrize("iteration", [1, 3, 5])
@coalesced
def test_an_interrupt_before_an_iteration_is_counted(iteration, coalesce, monkeypatch):
    bags, iterations = make_bags(True, coalesce=coalesce), []
    (scheduler,) = bags.schedulers
    planning = scheduler.streams.planning.submit

    def submit(work, after=(), replays_graph=False):
        event = planning(work, after, replays_graph)
        iterations.extend([event] if replays_graph else [])
        if replays_graph and len(iterations) == iteration:
            raise KeyboardInterrupt
        return event

    monkeypatch.setattr(scheduler.streams.planning, "submit", submit)
    trained = run_until_interrupted(bags)
    assert scheduler.planning_graph.is_broken
    check_next_loop(bags, trained)


@pytest.mark.parametrize("which", [1, 5, 8])
@coalesced
def test_an_interrupt_while_the_host_waits_for_a_readback(which, coalesce, monkeypatch):
    """Ctrl-C comes when the wait is over, before the result is noted."""
    bags, waited = make_bags(True, coalesce=coalesce), []
    result = Readback.result

    def interrupted(self):
        waited.append(self)
        if len(waited) == which:
            raise KeyboardInterrupt
        return result(self)

    monkeypatch.setattr(Readback, "result", interrupted)
    check_next_loop(bags, run_until_interrupted(bags))


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """As in a terminal. A process in the background may have been started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("iteration", [1, 4])
@pytest.mark.usefixtures("ctrl_c_raises")
def test_ctrl_c_while_kernels_are_compiled(iteration, monkeypatch):
    """Rows that were given a slot have been moved there."""
    bags, spread, iterations = make_bags(graph=True), kernel_planner.KernelPlanner._spread, []

    def interrupted(self, *arguments):
        iterations.append(self)
        if len(iterations) == iteration:
            signal.raise_signal(signal.SIGINT)
        return spread(self, *arguments)

    monkeypatch.setattr(kernel_planner.KernelPlanner, "_spread", interrupted)
    trained = run_until_interrupted(bags)
    bags.flush()
    check_next_loop(bags, trained)


class FakeGraph:
    """A captured graph without CUDA: a replay does the captured work, and checks that its memory is where it was."""

    def __init__(self, work: Callable[[bool, bool], None], addresses: Callable[[], list[int]]) -> None:
        self.work, self.addresses = work, addresses
        self.captured_addresses = addresses()
        self.kind: tuple[bool, bool] | None = None
        self.num_replays = 0

    def replay(self) -> None:
        assert self.addresses() == self.captured_addresses, "the graph would read and write memory that was freed"
        assert self.kind is not None
        self.num_replays += 1
        self.work(*self.kind)


class FakeCapture:
    """Stands in for `GraphCapture`."""

    def __init__(self, make_graph: Callable[[], FakeGraph]) -> None:
        self.make_graph = make_graph
        self.open: FakeGraph | None = None
        self.graphs: list[FakeGraph] = []

    @contextlib.contextmanager
    def capture(self) -> Iterator[FakeGraph]:
        self.open = self.make_graph()
        self.graphs.append(self.open)
        yield self.open
        self.open = None


@pytest.mark.parametrize("overflows", [False, True])
def test_graphs_are_captured_again_if_their_memory_was_replaced(overflows, monkeypatch):
    """The next-use table grows while the loop runs, and so do the records when rows overflow."""
    monkeypatch.setattr(next_use, "MIN_CELLS", 8)
    init, launch, captures = PlanningGraph.__init__, PlanningGraph._launch, []
    batches, cache = make_batches(8) * 2, 150
    if overflows:  # only one batch has more rows than the cache
        batches, cache = [ids % 6 for ids in make_batches(20) * 2], 22
        batches[15][:, 0] = torch.arange(20)
    bags = make_bags(True, cache)

    def init_with_capture(self, *arguments):
        init(self, *arguments)

        def addresses():
            keys, uses, _ = self._next_use.arrays()
            return [keys.data_ptr(), uses.data_ptr(), bags.caches[0].records.data_ptr()]

        self._capture = FakeCapture(lambda: FakeGraph(partial(launch, self), addresses))
        captures.append(self._capture)

    def launch_or_capture(self, *kind):
        if self._capture.open is None:
            launch(self, *kind)
        else:
            self._capture.open.kind = kind

    monkeypatch.setattr(PlanningGraph, "__init__", init_with_capture)
    monkeypatch.setattr(PlanningGraph, "_launch", launch_or_capture)
    plain = make_bags(False, cache)
    for each in (bags, plain):
        for ids in look(batches, each, window=7):
            (each(ids) ** 2).sum().backward()
    same(weights(bags), weights(plain))
    graphs = [graph for capture in captures for graph in capture.graphs]
    assert (bags.stats().overflow > 0) == overflows
    assert len(graphs) > len({graph.kind for graph in graphs}), "some work was captured again"
    assert sum(graph.num_replays for graph in graphs) > len(graphs)


def test_more_iterations_than_the_ring_buffer_of_inputs_holds(monkeypatch):
    monkeypatch.setattr(planning_graph, "NUM_ITERATIONS", 3)
    batches = make_batches(12)
    same(train(batches, graph=True, cache=90, index="hash")[0], train(batches, graph=False, cache=90, index="hash")[0])


@coalesced
def test_no_row_of_a_bad_batch_stays_announced(coalesce):
    """Nine batches. The last one is bad, is coalesced with no other, and the loop is left before its iteration."""
    bags = hotrows.EmbeddingBagCollection(
        [hotrows.Table("a", 600)], 4, cache=300, index="hash", optimizer=hotrows.optim.SGD(lr=0.1)
    )
    use_graph(bags, True, coalesce)
    random = torch.Generator().manual_seed(0)
    batches = [torch.randint(600, (12, 1), generator=random) for _ in range(9)]
    batches[8][0, 0] = 600
    for iteration, ids in enumerate(look(batches, bags)):
        (bags(ids) ** 2).sum().backward()
        if iteration == 1:
            break
    (scheduler,) = bags.schedulers
    scheduler.resolve_all()
    table = scheduler.cache.planner.policy.next_use
    assert table._num_in_window == 0
    assert not (table.arrays()[0] >= 0).any()


@pytest.mark.parametrize(("coalesce", "window", "times"), [(1, 7, 3), (4, 16, 12)])
def test_the_host_does_not_wait_when_the_next_use_table_is_rebuilt(coalesce, window, times, monkeypatch):
    monkeypatch.setattr(next_use, "MIN_CELLS", 8)
    waited, rebuilt = [], []
    note_counts, leave, make_room = Announcements.note_unique_counts, NextUseTable.leave, NextUseTable._make_room
    monkeypatch.setattr(
        Announcements, "note_unique_counts", lambda self, wait: waited.append(wait) or note_counts(self, wait)
    )  # fmt: skip
    monkeypatch.setattr(
        NextUseTable, "_make_room", lambda self, num: rebuilt.append(len(waited)) or make_room(self, num)
    )  # fmt: skip
    batches = make_batches(8) * times
    arguments = {"window": window, "cache": 150, "index": "hash"}
    expected = train(batches, graph=False, **arguments)[0]
    waited.clear()
    rebuilt.clear()
    same(train(batches, graph=True, coalesce=coalesce, **arguments)[0], expected)
    assert len(rebuilt) < 4, "next to no cell stays marked as erased"
    # As if each row that leaves marked a cell as erased.
    monkeypatch.setattr(NextUseTable, "leave", lambda self, number, num_erased=None: leave(self, number))
    waited.clear()
    rebuilt.clear()
    same(train(batches, graph=True, coalesce=coalesce, **arguments)[0], expected)
    assert len(rebuilt) > 3
    assert True not in waited[rebuilt[2] :]


@pytest.mark.parametrize(
    ("coalesce", "window", "iteration", "num_trained"), [(1, 7, 3, 2), (2, 7, 2, 2), (4, 13, 2, 4)]
)
def test_an_announcement_that_fails_is_raised_in_its_batchs_iteration(
    coalesce, window, iteration, num_trained, monkeypatch
):  # fmt: skip
    bags, launch, iterations = make_bags(True, coalesce=coalesce), PlanningGraph._launch, []

    def failing(self, *arguments):
        iterations.append(self)
        if len(iterations) == iteration:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return launch(self, *arguments)

    monkeypatch.setattr(PlanningGraph, "_launch", failing)
    trained = []

    def train_all():
        for ids in look(make_batches(12), bags, window=window):
            (bags(ids) ** 2).sum().backward()
            trained.append(ids)

    with pytest.raises(RuntimeError, match="announcing this batch ahead of its iteration") as raised:
        train_all()
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)
    assert len(trained) == num_trained, "the batches before it"
    check_next_loop(bags, len(trained))
