"""Batches taken apart, and whether two are of the same kinds."""

from dataclasses import dataclass

import pytest
import torch

import hotrows
from hotrows.graphs.batch_pytree import LeafTypes, flatten_batch, unflatten_batch


@dataclass
class Sample:
    dense: torch.Tensor
    scale: float


def make(kind):
    dense, ids, label = torch.zeros(4, 2), torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4)
    return {
        "tensor": dense,
        "tuple": (dense, ids),
        "batch": hotrows.Batch(dense, ids, label),
        "mixed tuple": (dense, 2.5, None),
        "dict": {"dense": dense, "name": "a"},
        "dataclass": Sample(dense, 2.0),
    }[kind]


@pytest.mark.parametrize("kind", ["tensor", "tuple", "batch", "mixed tuple", "dict", "dataclass"])
def test_taken_apart_and_put_together(kind):
    batch = make(kind)
    leaves, form = flatten_batch(batch)
    again = unflatten_batch(leaves, form)
    assert type(again) is type(batch)
    assert all(new is old for new, old in zip(flatten_batch(again)[0], leaves, strict=True))
    assert flatten_batch(make(kind))[1] == form
    assert LeafTypes(leaves).are_of(flatten_batch(make(kind))[0])


@pytest.mark.parametrize(
    "other",
    [
        [torch.zeros(4, 2)],
        [torch.zeros(4, 2), 3],
        [torch.zeros(4, 2), torch.tensor(2)],
        [torch.zeros(4, 3), 2],
        [torch.zeros(4, 2, dtype=torch.float64), 2],
        [None, 2],
        [torch.zeros(4, 2).numpy(), 2],
        [torch.zeros(4, 2), 2, 2],
    ],
)
def test_other_kinds(other):
    kinds = LeafTypes([torch.zeros(4, 2), 2])
    assert kinds.are_of([torch.nn.Parameter(torch.ones(4, 2)), 2.0])
    assert not kinds.are_of(other)
