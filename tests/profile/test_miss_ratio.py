"""The curve against a plain LRU list on small traces, and against the simulator on a long one."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import hotrows
from hotrows.profile.miss_ratio import MissRatioCurve, Sampler

traces = st.lists(st.sets(st.integers(0, 15), min_size=1, max_size=6), min_size=1, max_size=12)


def curve_of(batches: list[np.ndarray], rate: float = 1.0, seed: int = 0) -> MissRatioCurve:
    sampler = Sampler(rate, seed)
    for batch in batches:
        sampler.add(batch)
    return sampler.curve()


def expected_misses(trace: list[set[int]], capacity: int) -> float:
    """The misses from the definition: of equally old rows, each is as likely as the others to be in the cache."""
    last: dict[int, int] = {}
    misses = 0.0
    for number, batch in enumerate(trace):
        for row in batch:
            if row not in last:
                misses += 1
                continue
            newer = sum(used > last[row] for used in last.values())
            equal = sum(used == last[row] for used in last.values())
            misses += 1 - min(1.0, max(0.0, (capacity - newer) / equal))
        last.update(dict.fromkeys(batch, number))
    return misses / sum(len(batch) for batch in trace)


def zipf(num_batches: int, lookups: int, num_rows: int, exponent: float = 1.1, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    heights = np.cumsum(np.arange(1, num_rows + 1) ** -exponent)
    names = random.permutation(num_rows)
    draws = [np.searchsorted(heights, random.random(lookups) * heights[-1]) for _ in range(num_batches)]
    return [np.unique(names[draw]) for draw in draws]


@settings(max_examples=150, deadline=None)
@given(traces, st.integers(1, 20))
def test_against_the_definition(trace: list[set[int]], capacity: int) -> None:
    curve = curve_of([np.array(sorted(batch)) for batch in trace])
    assert curve.at(capacity) == pytest.approx(expected_misses(trace, capacity))
    assert curve.fewest == pytest.approx(len(set().union(*trace)) / sum(map(len, trace)))


def test_one_row_per_batch_is_a_plain_lru_list() -> None:
    random = np.random.default_rng(0)
    trace = random.integers(0, 30, 400)
    curve = curve_of([np.array([row]) for row in trace])
    for capacity in (1, 2, 5, 10, 20, 30):
        cached: list[int] = []
        misses = 0
        for row in trace.tolist():
            misses += row not in cached
            cached = [row, *(other for other in cached if other != row)][:capacity]
        assert curve.at(capacity) == pytest.approx(misses / len(trace))


def test_within_two_points_of_the_simulator() -> None:
    batches = zipf(num_batches=100, lookups=6_000, num_rows=200_000)
    curves = {rate: curve_of(batches, rate) for rate in (1.0, 0.1)}
    largest = max(batch.size for batch in batches)
    trace = [torch.from_numpy(batch) for batch in batches]
    simulated = []
    for capacity in np.geomspace(largest, curves[1.0].largest, 8).astype(int).tolist():
        simulated.append(1 - hotrows.simulate(trace, policy="lru", capacity=capacity).hit_rate)
        for rate, curve in curves.items():
            assert curve.at(capacity) == pytest.approx(simulated[-1], abs=0.02), rate
    assert simulated[0] - simulated[-1] > 0.3


def test_samples_of_the_rows_agree_on_the_curve() -> None:
    batches = zipf(num_batches=100, lookups=6_000, num_rows=200_000)
    whole = curve_of(batches)
    for seed in range(5):
        sampled = curve_of(batches, 0.05, seed)
        assert all(abs(sampled.at(size) - whole.at(size)) < 0.02 for size in (3_000, 8_000, 20_000, 60_000))
    assert sampled.sizes.size < whole.sizes.size


def test_the_size_for_a_hit_rate_has_it() -> None:
    curve = curve_of(zipf(num_batches=60, lookups=3_000, num_rows=20_000))
    best = 1 - curve.fewest
    for hit_rate in (0.05, 0.2, 0.5 * best, 0.99 * best, best):
        size = curve.size_for(hit_rate)
        assert size is not None
        assert 1 - curve.at(size) >= hit_rate - 1e-9
        assert 1 - curve.at(size - 2) < hit_rate
    assert curve.size_for(best + 0.001) is None


def test_nothing_ever_comes_back() -> None:
    curve = curve_of([np.arange(5), np.arange(5, 9)])
    assert curve.at(100) == curve.fewest == 1.0


def test_bad_rates() -> None:
    for rate in (0, -0.1, 1.1):
        with pytest.raises(ValueError, match="it must be more than 0 and at most 1"):
            Sampler(rate)
    with pytest.raises(ValueError, match="give a higher rate"):
        curve_of([np.arange(3)], rate=1e-9)
