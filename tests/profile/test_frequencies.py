"""Shares of accesses and ids against plain sorting."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from hotrows.profile.frequencies import Skew

counts_of_ids = st.lists(st.integers(0, 200_000) | st.integers(0, 5), min_size=1, max_size=60).filter(any)


@settings(max_examples=200, deadline=None)
@given(counts_of_ids, st.sampled_from([0.001, 0.01, 0.1, 0.3, 1.0]))
def test_top_ids_against_sorting(counts: list[int], share: float) -> None:
    falling = sorted(counts, reverse=True)
    top = max(1, math.ceil(round(share * len(counts), 9)))
    assert Skew.of(counts).share_of_top(share) == pytest.approx(sum(falling[:top]) / sum(counts))


@settings(max_examples=200, deadline=None)
@given(counts_of_ids, st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_ids_for_against_sorting(counts: list[int], share: float) -> None:
    so_far = np.cumsum(sorted(counts, reverse=True))
    needed = int(np.argmax(so_far >= share * sum(counts) * (1 - 1e-12))) + 1
    assert Skew.of(counts).ids_for(share) == pytest.approx(needed / len(counts))


@settings(max_examples=50, deadline=None)
@given(counts_of_ids, counts_of_ids)
def test_pooled_is_one_table(first: list[int], second: list[int]) -> None:
    pooled, one = Skew.pooled([Skew.of(first), Skew.of(second)]), Skew.of(first + second)
    assert (pooled.num_ids, pooled.num_accesses) == (one.num_ids, one.num_accesses)
    assert pooled.share_of_top(0.1) == pytest.approx(one.share_of_top(0.1))
    assert pooled.ids_for(0.9) == pytest.approx(one.ids_for(0.9))
