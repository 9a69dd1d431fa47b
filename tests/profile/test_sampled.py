"""Frequencies from a sample."""

import pytest
import torch

from hotrows.data.dataset import open_dataset
from hotrows.data.schema import Column
from hotrows.profile.sampled import sampled_counts
from tests.profile.memory_dataset import MemoryDataSet


def test_all_batches_are_all_counts() -> None:
    columns = (Column("x", 5, "t"), Column("y", 4, "t", max_length=3), Column("z", 3))
    data = MemoryDataSet(columns, [[[i % 5], list(range(i % 4)), [i % 3]] for i in range(17)])
    found, expected = sampled_counts(data, 1.0, batch_size=4), data.counts()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("share", "num_batches"), [(0.3, 3), (0.7, 7), (1e-9, 1)])
def test_a_share_of_the_batches_at_random(share: float, num_batches: int) -> None:
    data = open_dataset("synthetic:criteo-kaggle?scale=0.0001&samples=4000")
    batch_size = -(-data.num_samples("train") // 10)  # ten batches, the last one shorter
    found = sampled_counts(data, share, batch_size, seed=1)
    assert {int(times.sum()) for times in found.values()} == {num_batches * batch_size}
    other = sampled_counts(data, share, batch_size, seed=2)
    assert any(not torch.equal(found[name], other[name]) for name in found)
