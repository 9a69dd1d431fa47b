"""Batches taken apart, and whether two are of the same kinds."""

from dataclasses import dataclass

import pytest
import torch

import hotrows
from hotrows.train.batch_form import Kinds, put_together, take_apart


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
    leaves, form = take_apart(batch)
    again = put_together(leaves, form)
    assert type(again) is type(batch)
    assert all(new is old for new, old in zip(take_apart(again)[0], leaves, strict=True))
    assert take_apart(make(kind))[1] == form
    assert Kinds(leaves).are_of(take_apart(make(kind))[0])


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
    kinds = Kinds([torch.zeros(4, 2), 2])
    assert kinds.are_of([torch.nn.Parameter(torch.ones(4, 2)), 2.0])
    assert not kinds.are_of(other)
