"""The layout of a record: typed fields at byte offsets, the same bytes in every tier.

A record holds the weights of a row and its optimizer state. Every record begins at a multiple of 16 bytes, the widest
load of one GPU thread.

Stores, caches and kernels that move records treat them as words of 4 bytes (`words`, `WORD`), whatever the fields are.
Kernels that compute address float32 words: `columns` gives them a field's words, and raises for a field of another
dtype. That is no limit as long as all optimizers declare float32 state. Code that handles records on the host goes by
the name of a field (`values`), and works with every dtype.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

ALIGNMENT = 16  # bytes
WORD = torch.float32  # as which records are moved
WEIGHT = "weight"


@dataclass(frozen=True)
class StateField:
    """A part of the optimizer state of a row, as an optimizer declares it.

    Args:
        per_row: True for one number per row, False for as many as the row has weights.
    """

    name: str
    per_row: bool = False
    initial_value: float = 0.0
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Field:
    """`num` numbers of one dtype, `offset` bytes behind the beginning of a record."""

    name: str
    dtype: torch.dtype
    num: int
    offset: int
    initial_value: float = 0.0

    @property
    def end(self) -> int:
        """The offset of the byte behind the field."""
        return self.offset + self.num * self.dtype.itemsize


@dataclass(frozen=True)
class RecordLayout:
    """The fields of a record. One of them is "weight"; the others are state."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if WEIGHT not in names or len(set(names)) < len(names):
            raise ValueError(f"the fields of a record are {names}: give each name once, and 'weight' among them")
        for field in self.fields:
            if field.num < 1 or field.offset < 0:
                raise ValueError(
                    f"field {field.name!r} has {field.num} numbers at byte {field.offset}: give one number or more, at "
                    f"byte 0 or later"
                )
            if field.offset % field.dtype.itemsize:
                raise ValueError(
                    f"field {field.name!r} lies at byte {field.offset}, which is no multiple of the "
                    f"{field.dtype.itemsize} bytes of a {field.dtype}"
                )
        ordered = sorted(self.fields, key=lambda field: field.offset)
        for one, other in pairwise(ordered):
            if other.offset < one.end:
                raise ValueError(
                    f"field {other.name!r} begins at byte {other.offset}, before {one.name!r} ends at byte {one.end}"
                )

    @classmethod
    def packed(cls, dim: int, state: Sequence[StateField] = (), dtype: torch.dtype = torch.float32) -> "RecordLayout":
        """`dim` weights, then the state, each field at the next offset that is aligned for its dtype."""
        fields = [Field(WEIGHT, dtype, dim, 0)]
        for part in state:
            size = part.dtype.itemsize
            offset = -(-fields[-1].end // size) * size
            fields.append(Field(part.name, part.dtype, 1 if part.per_row else dim, offset, part.initial_value))
        return cls(tuple(fields))

    def field(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"no field {name!r} in a record of {[field.name for field in self.fields]}")

    @cached_property
    def state(self) -> tuple[Field, ...]:
        """The fields of the optimizer state."""
        return tuple(field for field in self.fields if field.name != WEIGHT)

    @cached_property
    def dim(self) -> int:
        """How many weights a row has."""
        return self.field(WEIGHT).num

    @cached_property
    def num_bytes(self) -> int:
        """The size of a record, with padding behind the last field."""
        end = max(field.end for field in self.fields)
        return -(-end // ALIGNMENT) * ALIGNMENT

    @property
    def words(self) -> int:
        """The size of a record in words of `dtype`."""
        return self.num_bytes // WORD.itemsize

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the words as which records are moved."""
        return WORD

    def columns(self, name: str) -> slice:
        """The words of a float32 field, for kernels that compute on records as float32 [n, words]."""
        field = self.field(name)
        if field.dtype != WORD:
            raise TypeError(
                f"field {name!r} of the record is {field.dtype}: kernels compute on {WORD} fields only. Use "
                f"values(records, {name!r}) to read and write it on the host"
            )
        return slice(field.offset // WORD.itemsize, field.end // WORD.itemsize)

    def values(self, records: Tensor, name: str) -> Tensor:
        """One field of records as a view [n, num] of its dtype; what is written to the view is written to the records.

        Args:
            records: [n, words] or raw bytes, uint8 [n, num_bytes], each record without gaps.
        """
        field = self.field(name)
        as_bytes = records.view(torch.uint8)
        if as_bytes.dim() != 2 or as_bytes.shape[1] != self.num_bytes:
            raise ValueError(
                f"records are {records.dtype} {list(records.shape)}, give {self.num_bytes} bytes for each record"
            )
        return as_bytes[:, field.offset : field.end].view(field.dtype)
