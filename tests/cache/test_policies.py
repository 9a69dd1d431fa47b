"""One contract for every policy, and what each policy is for."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import hotrows
from hotrows.cache.indexes import INDEXES, make_index
from hotrows.cache.planning.planner import EagerPlanner
from hotrows.cache.planning.protocol import Counts, Placement
from hotrows.cache.policies import LRU, POLICIES, Access, Policy, make_policy
from hotrows.cache.policies.base import PolicyKernelSpec
from hotrows.cache.policies.frequency import Frequency
from hotrows.cache.policies.lookahead import Lookahead
from hotrows.cache.policies.next_use import NOT_NEEDED, NextUseTable
from hotrows.cache.policies.ranking import MAX_FREQUENCY
from hotrows.cache.slots import Slots
from hotrows.ops.unique import unique_rows


def planner_of(policy: str | Policy, capacity: int, index: str = "direct") -> EagerPlanner:
    slots = Slots(INDEXES[index].round_slots(capacity), torch.device("cpu"))
    return EagerPlanner(slots, make_index(index, 1000, slots), make_policy(policy))


def cached(planner: EagerPlanner) -> set[int]:
    return {row for row in planner.slots.row[:-1].tolist() if row >= 0}


def use(planner: EagerPlanner, *rows: int, number: int | None = None) -> None:
    planner.plan(unique_rows(torch.tensor(rows)), Placement.SPILL, batch_number=number)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=50, deadline=None)
@given(
    capacity=st.integers(1, 40),
    batches=st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=25), min_size=1, max_size=15),
    index=st.sampled_from(sorted(INDEXES)),
    num_in_flight=st.integers(0, 3),
)
def test_contract(name: str, capacity: int, batches: list[list[int]], index: str, num_in_flight: int) -> None:
    """Whatever the policy: pinned rows and rows in flight stay, free slots go first, the batch is in the cache."""
    planner = planner_of(name, capacity, index)
    pinned: set[int] = set()
    in_flight: list[tuple[int, set[int]]] = []
    for number, rows in enumerate(batches):
        unique = unique_rows(torch.tensor(rows))
        planner.announce(unique, number)
        before = cached(planner)
        in_flight = in_flight[len(in_flight) - num_in_flight :] if num_in_flight else []
        oldest = in_flight[0][0] if in_flight else None
        (plan,) = planner.plan(unique, Placement.SPILL, oldest, number)
        planner.resolve(plan, _counts(plan), Placement.SPILL)
        after = cached(planner)
        assert pinned <= after
        for _, kept in in_flight:
            assert kept <= after
        placed = {int(r) for r, s in zip(unique.rows, plan.row_slots, strict=False) if 0 <= s < planner.slots.num}
        assert placed <= after
        if index != "set-associative" and len(before | set(rows)) <= planner.slots.num:
            assert after == before | set(rows), "nothing leaves while there are free slots"
        in_flight.append((plan.plan_number, placed))
        if number == 0:
            pinned = set(list(placed)[:2])
            for slot, row in enumerate(planner.slots.row[:-1].tolist()):
                planner.slots.pinned[slot] = row in pinned


def _counts(plan):
    return Counts(*plan.counts.tolist())


def test_lru_evicts_the_least_recent() -> None:
    planner = planner_of("lru", 3)
    for rows in [(1,), (2,), (3,), (1,), (4,)]:
        use(planner, *rows)
    assert cached(planner) == {1, 3, 4}


def test_lfu_evicts_the_least_frequent_and_counts_lookups() -> None:
    planner = planner_of("lfu", 3)
    for rows in [(1, 1, 1), (2, 2), (3,), (4,)]:
        use(planner, *rows)
    assert cached(planner) == {1, 2, 4}
    use(planner, 5, 5, 5)
    assert cached(planner) == {1, 2, 5}


def test_frequency_evicts_by_the_rank_given_beforehand() -> None:
    counts = torch.arange(1000)  # the higher the row, the more frequent
    planner = planner_of(Frequency(counts), 3)
    for rows in [(1,), (900,), (800,), (2,), (3,)]:
        use(planner, *rows)
    assert cached(planner) == {900, 800, 3}


def test_frequency_without_counts_takes_ids_as_ranks_within_their_tables() -> None:
    tables = [hotrows.Table("a", 10), hotrows.Table("b", 10)]
    bags = hotrows.EmbeddingBagCollection(
        tables, dim=4, cache=4, policy="frequency", optimizer=hotrows.optim.SGD(lr=0.1)
    )
    for ids in [[0, 0], [9, 9], [1, 8]]:
        bags(torch.tensor([ids])).sum().backward()
    assert {row for row in bags.caches[0].planner.slots.row.tolist() if row >= 0} == {0, 10, 1, 18}


def test_random_is_repeatable_and_depends_on_the_seed() -> None:
    from hotrows.cache.policies.random import Random

    def end(seed: int) -> set[int]:
        planner = planner_of(Random(seed), 20)
        for start in range(0, 600, 10):
            use(planner, *range(start, start + 10))
        return cached(planner)

    assert end(1) == end(1)
    assert end(1) != end(2)


def test_lookahead_keeps_what_the_window_needs_furthest_first_to_go() -> None:
    planner = planner_of("lookahead", 3)
    batches = [(1,), (2,), (3,), (4,), (1,), (3,), (2,)]
    uniques = [unique_rows(torch.tensor(rows)) for rows in batches]
    for number, unique in enumerate(uniques):
        planner.announce(unique, number)
    for number in range(4):
        planner.plan(uniques[number], Placement.SPILL, batch_number=number)
    assert cached(planner) == {1, 3, 4}, "2 is needed last"
    planner.plan(uniques[4], Placement.SPILL, batch_number=4)
    planner.plan(uniques[5], Placement.SPILL, batch_number=5)
    planner.plan(uniques[6], Placement.SPILL, batch_number=6)
    assert 2 in cached(planner)


def test_lookahead_evicts_the_least_frequent_of_the_rows_that_no_batch_needs() -> None:
    planner = planner_of("lookahead", 3)
    for rows in [(1, 1, 1), (2,), (3, 3), (4,)]:
        use(planner, *rows)
    assert cached(planner) == {1, 3, 4}


def test_lookahead_takes_frequencies_known_beforehand() -> None:
    planner = planner_of(Lookahead(torch.arange(1000)), 3)
    for rows in [(900,), (1, 1, 1), (800,), (2,)]:
        use(planner, *rows)
    assert cached(planner) == {900, 800, 2}


def test_what_was_withdrawn_is_not_kept() -> None:
    planner = planner_of("lookahead", 2)
    use(planner, 1)
    use(planner, 2, 2)
    announced = unique_rows(torch.tensor([1]))
    planner.announce(announced, 0)
    planner.withdraw(announced, 0)
    use(planner, 3)
    assert cached(planner) == {2, 3}


@settings(max_examples=100, deadline=None)
@given(
    batches=st.lists(st.sets(st.integers(0, 30), min_size=1, max_size=10), min_size=1, max_size=150),
    window=st.integers(1, 64),
)
def test_next_uses_against_a_list(batches: list[set[int]], window: int) -> None:
    next_use = NextUseTable(torch.device("cpu"))
    rows = [torch.tensor(sorted(batch)) for batch in batches]
    announced = 0
    for now, mine in enumerate(rows):
        while announced < len(rows) and announced < now + window:
            num = torch.tensor([rows[announced].numel()], dtype=torch.int32)
            next_use.add(rows[announced], num, announced)
            announced += 1
        found = next_use.take(mine, torch.tensor([mine.numel()], dtype=torch.int32), now)
        next_use.leave(now)
        expected = [
            next((n for n in range(now + 1, announced) if row in batches[n]), NOT_NEEDED) for row in mine.tolist()
        ]
        assert found.tolist() == expected


def test_batches_whose_announcement_failed_do_not_fill_the_next_use_table() -> None:
    policy = Lookahead()
    policy.bind(Slots(10, torch.device("cpu")))
    num = torch.tensor([1000], dtype=torch.int32)
    policy.next_use.add(torch.tensor([1]), num.clamp(max=1), 0)
    for number in range(1, 50):
        policy.next_use.add(torch.arange(1000) + 1000 * number, num, number)
        policy.forget(number)
        keys, _, num_cells = policy.next_use.arrays()
        assert int((keys >= 0).sum()) <= 0.75 * num_cells, "a search ends at a free cell"
    assert num_cells < 10_000
    assert policy.next_use.take(torch.tensor([1, 2000]), num, None).tolist() == [0, NOT_NEEDED]


@pytest.mark.parametrize(("most", "real"), [(1000, 100), (1000, 1000), (5000, 1)])
def test_the_next_use_table_is_rebuilt_without_waiting_for_counts(most: int, real: int) -> None:
    """As in the planning graph: the number of rows of a batch is known three announcements later."""
    next_use = NextUseTable(torch.device("cpu"))
    window, lag = 16, 3
    generations, num_rebuilt = [], 0
    original = next_use._make_room

    def make_room(num_rows: int) -> None:
        nonlocal num_rebuilt
        num_rebuilt += 1
        original(num_rows)

    next_use._make_room = make_room  # type: ignore[method-assign]
    for number in range(400):
        if number >= window:
            next_use.leave(number - window)
        assert number < 2 * window or next_use.has_room(most) or next_use.rebuild_makes_room(2 * most)
        next_use.expect(number, most)
        assert next_use._num_in_window + next_use._max_erased <= next_use._max_taken  # so a search ends
        if number >= lag:
            next_use.note_unique_count(number - lag, real)
        generations.append(next_use.generation)
    assert generations[2 * window] == generations[-1], "it grows no more"
    assert 0 < num_rebuilt < 60


def test_counts_of_the_wrong_length_are_refused() -> None:
    for policy in (Frequency(torch.arange(20)), Lookahead(torch.arange(20))):
        with pytest.raises(ValueError, match="counts are given for 20 rows, but 30 rows share the cache"):
            hotrows.EmbeddingBag(30, 4, policy=policy)


class _NewestFirst(LRU):
    def access(self, access: Access) -> None:
        self.slots.priority[access.slots] = -access.plan_number


class _WithKernels(_NewestFirst):
    def kernel_spec(self) -> PolicyKernelSpec:
        return PolicyKernelSpec("lru")


class _Renamed(LRU):
    pass


class _Child(_NewestFirst):
    pass


class _Mixin:
    def refresh(self, plan_number: int) -> None:
        pass


class _Mixed(_Mixin, Lookahead):
    pass


@pytest.mark.parametrize(
    ("kind", "has_kernels"),
    [(LRU, True), (_Renamed, True), (_NewestFirst, False), (_Child, False), (_WithKernels, True), (_Mixed, False)],
)
def test_kernels_do_not_plan_for_a_subclass_with_a_rule_of_its_own(kind: type[Policy], has_kernels: bool) -> None:
    planner = planner_of(kind(), 10)
    assert (planner.kernel_spec() is not None) == has_kernels
    reason = None if has_kernels else f"policy {kind.__name__} has no kernels"
    assert planner.reason_without_kernels() == reason


def test_lfu_counts_do_not_wrap() -> None:
    planner = planner_of("lfu", 2)
    use(planner, 1)
    planner.slots.priority[planner.slots.row == 1] = MAX_FREQUENCY
    for _ in range(3):
        use(planner, *([1] * 50))
    assert int(planner.slots.priority.max()) == MAX_FREQUENCY
    use(planner, 2)
    use(planner, 3)
    assert 1 in cached(planner)


def test_a_policy_object_is_taken_and_copied() -> None:
    mine = Frequency(torch.arange(20))
    bag = hotrows.EmbeddingBag(20, 4, cache=3, policy=mine, optimizer=hotrows.optim.SGD(lr=1.0))
    assert bag.caches[0].planner.policy is not mine
