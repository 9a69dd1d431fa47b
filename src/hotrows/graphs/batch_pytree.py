"""Flattens batches, and what a step returns, into lists of their values, and builds them from such lists again."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree  # Python code that has no public name yet


class _Fields(NamedTuple):
    """The structure of a dataclass."""

    kind: type
    names: tuple[str, ...]
    structure: Any  # of the list of the fields' values


class _WithDataclasses(NamedTuple):
    """A structure that has dataclasses inside."""

    outer: Any  # the structure in which each dataclass is one value
    # For each value of `outer`: the structure (None if the value is not a dataclass), and how many leaves it has.
    parts: tuple[tuple[_Fields | None, int], ...]


def flatten_batch(batch: Any) -> tuple[list[Any], Any]:
    """The tensors and other values of a batch, and its structure, from which `unflatten_batch` builds it again.

    A dataclass is taken apart here. Registering it with PyTorch's pytree instead would change how the rest of the
    process, which may use the pytree too, handles it.
    """
    kind = type(batch)
    if isinstance(batch, tuple):
        for part in batch:
            if not isinstance(part, Tensor):
                break
        else:
            return list(batch), kind
    if isinstance(batch, Tensor):
        return [batch], Tensor
    names = _field_names(kind)
    if names is not None:
        leaves, structure = flatten_batch([getattr(batch, name) for name in names])
        return leaves, _Fields(kind, names, structure)
    leaves, structure = pytree.tree_flatten(batch)
    for leaf in leaves:
        if _field_names(type(leaf)) is not None:
            return _flatten_dataclasses(leaves, structure)
    return leaves, structure


def unflatten_batch(leaves: list[Any], structure: Any) -> Any:
    """A batch of the given structure with these values."""
    if structure is Tensor:
        return leaves[0]
    if isinstance(structure, type):
        return structure._make(leaves) if hasattr(structure, "_make") else structure(leaves)
    if isinstance(structure, _Fields):
        return _make(
            structure.kind, dict(zip(structure.names, unflatten_batch(leaves, structure.structure), strict=True))
        )
    if isinstance(structure, _WithDataclasses):
        values, start = [], 0
        for fields, num_leaves in structure.parts:
            part = leaves[start : start + num_leaves]
            values.append(part[0] if fields is None else unflatten_batch(part, fields))
            start += num_leaves
        return pytree.tree_unflatten(values, structure.outer)
    return pytree.tree_unflatten(leaves, structure)


def _make(kind: type, values: dict[str, Any]) -> Any:
    """A dataclass with these values of its fields."""
    if all(field.init for field in dataclasses.fields(kind)):
        return kind(**values)
    made: Any = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)  # as a frozen dataclass does in __init__
    return made


def _flatten_dataclasses(values: list[Any], outer: Any) -> tuple[list[Any], _WithDataclasses]:
    leaves: list[Any] = []
    parts: list[tuple[_Fields | None, int]] = []
    for value in values:
        if _field_names(type(value)) is None:
            leaves.append(value)
            parts.append((None, 1))
        else:
            inner, fields = flatten_batch(value)
            leaves += inner
            parts.append((fields, len(inner)))
    return leaves, _WithDataclasses(outer, tuple(parts))


def _field_names(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass. None for other types, and for a dataclass that the user has registered as a pytree."""
    try:
        return _known[kind]
    except KeyError:
        is_registered = kind in pytree.SUPPORTED_NODES
        is_separable = dataclasses.is_dataclass(kind) and not is_registered
        names = tuple(field.name for field in dataclasses.fields(kind)) if is_separable else None
        _known[kind] = names
        return names


_known: dict[type, tuple[str, ...] | None] = {}


class LeafTypes:
    """What each value of a batch is: a tensor of one shape and dtype, or a constant."""

    def __init__(self, leaves: list[Any]) -> None:
        self._types: list[tuple[torch.Size | None, Any]] = [
            (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else (None, _kept(leaf)) for leaf in leaves
        ]

    def match(self, leaves: list[Any]) -> bool:
        """True if these values have the same shapes and dtypes, and the same constants."""
        if len(leaves) != len(self._types):
            return False
        for leaf, (shape, dtype_or_constant) in zip(leaves, self._types, strict=True):
            if isinstance(leaf, Tensor):
                if leaf.dtype is not dtype_or_constant or leaf.shape != shape:
                    return False
            elif shape is not None or not _is_same(leaf, dtype_or_constant):
                return False
        return True


def _kept(constant: Any) -> Any:
    """The constant itself, or a copy of an array, whose elements the caller may change."""
    return constant.copy() if isinstance(constant, np.ndarray) else constant


def _is_same(value: Any, constant: Any) -> bool:
    """True if both are of one type and equal. NaN is the same as NaN."""
    if type(value) is not type(constant):
        return False
    if isinstance(value, np.ndarray):
        is_alike = bool(value.dtype == constant.dtype and value.shape == constant.shape)
        return is_alike and bool(value.tobytes() == constant.tobytes())
    try:
        return bool(value == constant) or bool(value != value and constant != constant)
    except Exception:  # objects that `==` compares element by element, for example: they have no one answer
        return False
