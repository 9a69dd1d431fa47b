"""Batches flattened and built again, and whether two have the same types."""

import copy
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import hotrows
from hotrows.graphs.batch_pytree import LeafTypes, flatten_batch, unflatten_batch


@dataclass
class Sample:
    dense: torch.Tensor
    scale: float


@dataclass(frozen=True)
class Summed:
    """A dataclass that computes a field, and so cannot be built from the values of its fields."""

    parts: torch.Tensor
    total: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.parts.sum())


def make(kind):
    dense, ids, label = torch.zeros(4, 2), torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4)
    return {
        "tensor": dense,
        "tuple": (dense, ids),
        "batch": hotrows.Batch(dense, ids, label),
        "mixed tuple": (dense, 2.5, None),
        "dict": {"dense": dense, "name": "a"},
        "dataclass": Sample(dense, 2.0),
        "nested": {"pair": (Sample(dense, 2.0), [ids, Sample(label, 3.0)]), "label": label, "sample": Sample(ids, 1.0)},
        "dataclass of a tuple": Sample((dense, {"ids": ids}), 2.0),
        "computed field": Summed(dense),
        "none": None,
        "empty": (),
    }[kind]


KINDS = [
    "tensor", "tuple", "batch", "mixed tuple", "dict", "dataclass", "nested", "dataclass of a tuple", "computed field",
    "none", "empty",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_flattened_and_built_again(kind):
    batch = make(kind)
    leaves, structure = flatten_batch(batch)
    again = unflatten_batch(leaves, structure)
    assert type(again) is type(batch)
    assert all(new is old for new, old in zip(flatten_batch(again)[0], leaves, strict=True))
    assert flatten_batch(again)[1] == structure == flatten_batch(make(kind))[1]
    assert LeafTypes(leaves).match(flatten_batch(make(kind))[0])
    assert not any(isinstance(leaf, (Sample, Summed, dict, list, tuple)) for leaf in leaves)


def test_other_structures():
    structures = [flatten_batch(make(kind))[1] for kind in KINDS if kind != "empty"]
    for i, one in enumerate(structures):
        assert [i] == [j for j, other in enumerate(structures) if one == other]


def test_a_dataclass_of_the_user_is_not_registered_with_pytorch():
    flatten_batch(make("nested"))
    assert Sample not in pytree.SUPPORTED_NODES


def test_a_registered_dataclass_is_flattened_as_the_user_wants():
    @dataclass
    class Pair:
        tensor: torch.Tensor
        name: str

    pytree.register_pytree_node(Pair, lambda pair: ([pair.tensor], pair.name), lambda values, name: Pair(*values, name))
    try:
        leaves, structure = flatten_batch(Pair(torch.ones(2), "a"))
        assert len(leaves) == 1
        assert unflatten_batch(leaves, structure).name == "a"
    finally:
        pytree._deregister_pytree_node(Pair)


@pytest.mark.parametrize(
    "other",
    [
        [torch.zeros(4, 2)],
        [torch.zeros(4, 2), 3],
        [torch.zeros(4, 2), 2.0],
        [torch.zeros(4, 2), torch.tensor(2)],
        [torch.zeros(4, 3), 2],
        [torch.zeros(4, 2, dtype=torch.float64), 2],
        [None, 2],
        [torch.zeros(4, 2).numpy(), 2],
        [torch.zeros(4, 2), 2, 2],
    ],
)
def test_other_types(other):
    types = LeafTypes([torch.zeros(4, 2), 2])
    assert types.match([torch.nn.Parameter(torch.ones(4, 2)), 2])
    assert not types.match(other)


def test_constants_are_the_same_if_they_are_equal_and_of_one_type():
    for value, others in [
        (1, [True, 1.0, 2]),
        (float("nan"), [1.0, None]),
        (np.array([1.0, np.nan]), [np.array([1.0, 2.0]), np.array([1.0]), np.array([1.0, np.nan], np.float32), 1.0]),
        ("a", ["b", None]),
    ]:
        types = LeafTypes([value])
        assert types.match([copy.deepcopy(value)])
        for other in others:
            assert not types.match([other])


def test_an_array_that_was_changed_in_place_is_another_constant():
    array = np.zeros(3)
    types = LeafTypes([array])
    assert types.match([array])
    array[1] = 1
    assert not types.match([array])
