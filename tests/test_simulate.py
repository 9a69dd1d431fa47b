"""The simulator runs the real planner; Belady's rule is the best there is."""

import importlib
import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import hotrows


def trace(num_batches: int = 120, seed: int = 0) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(5000, generator=random)
    return [shuffled[(torch.rand(200, generator=random).pow(4) * 5000).long()] for _ in range(num_batches)]


def test_answers_one_number_per_batch() -> None:
    batches = trace(10)
    found = hotrows.simulate(iter(batches), policy="lru", capacity=300)
    assert found.hits.dtype == found.misses.dtype == found.evictions.dtype == torch.int64
    assert found.hits.shape == (10,)
    assert torch.equal(found.hits + found.misses, torch.tensor([b.unique().numel() for b in batches]))
    assert int(found.misses.sum() - found.evictions.sum()) == 300
    assert 0 < found.hit_rate < 1


def test_lookahead_is_next_to_the_optimum_and_before_all_others() -> None:
    batches = trace()
    counts = torch.bincount(torch.cat(batches), minlength=5000)
    for capacity in (200, 400, 800):
        misses = {
            name: int(hotrows.simulate(batches, policy, capacity, window=64).misses.sum())
            for name, policy in [
                *((name, name) for name in ("belady", "lookahead", "lru", "lfu", "random")),
                ("frequency", hotrows.POLICIES["frequency"](counts)),  # type: ignore[call-arg]
            ]
        }
        assert misses["belady"] <= misses["lookahead"] <= 1.10 * misses["belady"]
        for other in ("lru", "lfu", "random", "frequency"):
            assert misses["lookahead"] < misses[other]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sets(st.integers(0, 5), min_size=1, max_size=2), min_size=1, max_size=6))
def test_belady_is_optimal(batches: list[set[int]]) -> None:
    """Against every possible choice of victims."""
    found = hotrows.simulate([torch.tensor(sorted(batch)) for batch in batches], "belady", capacity=3)
    states = {frozenset(): 0}
    for batch in batches:
        after: dict[frozenset[int], int] = {}
        for cached, misses in states.items():
            cost = misses + len(batch - cached)
            others = cached - batch
            room = 3 - len(batch)
            for kept in itertools.combinations(sorted(others), min(room, len(others))):
                state = frozenset(batch | set(kept))
                after[state] = min(cost, after.get(state, cost))
        states = after
    assert int(found.misses.sum()) == min(states.values())


@pytest.mark.parametrize("index", ["direct", "hash", "set-associative", "auto"])
def test_any_index(index: str) -> None:
    found = hotrows.simulate(trace(20), "lru", capacity=160, index=index)
    assert int(found.hits.sum()) > 0


def test_a_batch_larger_than_the_cache_is_counted() -> None:
    found = hotrows.simulate([torch.arange(10), torch.arange(10)], "lru", capacity=4)
    assert found.misses.tolist() == [10, 6]


def test_bad_calls() -> None:
    for arguments, message in [
        (([torch.tensor([1])], "lru", 0), "capacity is 0, it must be a whole number from 1 to 2147483647"),
        (
            ([torch.tensor([1])], "lru", 2**70),
            "capacity is 1180591620717411303424, it must be a whole number from 1 to",
        ),
        (([[1]], "lru", 5), r"a batch of the trace is a list, give .* rows: torch.tensor\(rows\)"),
        (([np.array([1])], "lru", 5), r"a batch of the trace is a ndarray, give .* rows: torch.from_numpy\(rows\)"),
        (([torch.tensor([1])], "lru", 5, 65), "window is 65"),
        (([torch.tensor([1.0])], "lru", 5), "a batch of the trace is torch.float32"),
        (([torch.tensor([-1])], "lru", 5), "has row -1"),
        (([torch.tensor([1])], "best", 5), "policy is 'best'"),
    ]:
        with pytest.raises(ValueError, match=message):
            hotrows.simulate(*arguments)


def test_more_slots_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("hotrows.simulate")  # the package has the function under this name
    monkeypatch.setattr(module, "available_host_memory", lambda: 10**6)
    message = r"1,000,000 slots and their index need 5\d.\d MB of host memory, .*: give a smaller capacity"
    with pytest.raises(hotrows.OutOfMemoryError, match=message):
        hotrows.simulate([torch.tensor([1])], "lru", capacity=10**6)


def test_an_empty_trace() -> None:
    for policy in ("belady", "lookahead"):
        assert hotrows.simulate([], policy).misses.shape == (0,)
