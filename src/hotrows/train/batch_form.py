"""Batches taken apart into tensors, and put together again."""

import dataclasses
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


def take_apart(batch: Any) -> tuple[list[Any], Any]:
    """Tensors and other values of a batch, and its form."""
    if isinstance(batch, Tensor):
        return [batch], Tensor
    kind = type(batch)
    if isinstance(batch, tuple):
        for part in batch:
            if not isinstance(part, Tensor):
                break
        else:
            return list(batch), kind
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type) and kind not in pytree.SUPPORTED_NODES:
        names = [field.name for field in dataclasses.fields(batch)]
        pytree.register_pytree_node(
            kind,
            lambda value: ([getattr(value, name) for name in names], None),
            lambda values, _: kind(**dict(zip(names, values, strict=True))),
        )
    return pytree.tree_flatten(batch)


def put_together(leaves: list[Any], form: Any) -> Any:
    if form is Tensor:
        return leaves[0]
    if isinstance(form, type):
        return form._make(leaves) if hasattr(form, "_make") else form(leaves)
    return pytree.tree_unflatten(leaves, form)


def same_leaf(leaf: Any, other: Any) -> bool:
    """Whether two values are of one kind: tensors of one shape and type, or equal."""
    if isinstance(other, Tensor):
        return isinstance(leaf, Tensor) and leaf.shape == other.shape and leaf.dtype == other.dtype
    return not isinstance(leaf, Tensor) and bool(leaf == other)
