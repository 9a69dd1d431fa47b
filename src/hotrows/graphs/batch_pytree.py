"""Batches taken apart into tensors, and put together again."""

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def flatten_batch(batch: Any) -> tuple[list[Any], Any]:
    """Tensors and other values of a batch, and its form."""
    kind = type(batch)
    if isinstance(batch, tuple):
        for part in batch:
            if not isinstance(part, Tensor):
                break
        else:
            return list(batch), kind
    if isinstance(batch, Tensor):
        return [batch], Tensor
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type) and kind not in pytree.SUPPORTED_NODES:
        names = [field.name for field in dataclasses.fields(batch)]
        pytree.register_pytree_node(
            kind,
            lambda value: ([getattr(value, name) for name in names], None),
            lambda values, _: kind(**dict(zip(names, values, strict=True))),
        )
    return pytree.tree_flatten(batch)


def unflatten_batch(leaves: list[Any], form: Any) -> Any:
    if form is Tensor:
        return leaves[0]
    if isinstance(form, type):
        return form._make(leaves) if hasattr(form, "_make") else form(leaves)
    return pytree.tree_unflatten(leaves, form)


class LeafTypes:
    """Of what kind each value of a batch is: a tensor of one shape and type, or a value of its own."""

    def __init__(self, leaves: list[Any]) -> None:
        self._kinds: list[tuple[torch.Size | None, Any]] = [
            (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else (None, leaf) for leaf in leaves
        ]

    def are_of(self, leaves: list[Any]) -> bool:
        """Whether these values are of the same kinds."""
        if len(leaves) != len(self._kinds):
            return False
        for leaf, (shape, other) in zip(leaves, self._kinds, strict=True):
            if isinstance(leaf, Tensor):
                if leaf.dtype is not other or leaf.shape != shape:
                    return False
            elif shape is not None or not bool(leaf == other):
                return False
        return True
