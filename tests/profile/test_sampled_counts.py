"""Frequencies from a sample."""

import pytest
import torch

from hotrows.data.dataset import open_dataset
from hotrows.data.schema import Column
from hotrows.profile.sampled_counts import sampled_counts
from tests.profile.memory_dataset import MemoryDataSet


def test_all_batches_are_all_counts() -> None:
    columns = (Column("x", 5, "t"), Column("y", 4, "t", max_length=3), Column("z", 3))
    data = MemoryDataSet(columns, [[[i % 5], list(range(i % 4)), [i % 3]] for i in range(17)])
    found, expected = sampled_counts(data, 1.0), data.counts()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("share", [0.3, 0.7, 1e-9])
def test_a_share_of_the_samples_at_random(share: float) -> None:
    data = open_dataset("synthetic:criteo-kaggle?scale=0.0001&samples=4000")
    found = sampled_counts(data, share, seed=1)
    counted = {int(times.sum()) for times in found.values()}
    assert len(counted) == 1, "every sample has one id of each table"
    num = counted.pop()
    assert max(1, share * data.num_samples("train")) <= num <= share * data.num_samples("train") + 1024
    other = sampled_counts(data, share, seed=2)
    assert any(not torch.equal(found[name], other[name]) for name in found)
