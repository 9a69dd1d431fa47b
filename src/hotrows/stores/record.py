"""The layout of a record: the weights of a row, then its optimizer state, the same bytes in every tier."""

from dataclasses import dataclass, field

import torch

ALIGNMENT = 16  # bytes: the widest load of one GPU thread


@dataclass(frozen=True)
class StateField:
    """A part of the optimizer state of a row: as wide as the row (`per_row=False`) or one number for it."""

    name: str
    per_row: bool = False
    first_value: float = 0.0


@dataclass(frozen=True)
class RecordLayout:
    """Where weights and state lie in a record, in words of `dtype`."""

    dim: int
    state: tuple[StateField, ...] = ()
    dtype: torch.dtype = field(default=torch.float32)

    @property
    def words(self) -> int:
        """Length of a record, padded so that every record starts aligned."""
        used = self.dim + sum(self._width(part) for part in self.state)
        step = ALIGNMENT // self.dtype.itemsize
        return -(-used // step) * step

    @property
    def num_bytes(self) -> int:
        return self.words * self.dtype.itemsize

    def columns(self, name: str) -> slice:
        """Where "weight" or a state field lies."""
        start = 0
        for part, width in [("weight", self.dim), *((p.name, self._width(p)) for p in self.state)]:
            if part == name:
                return slice(start, start + width)
            start += width
        raise KeyError(f"no {name!r} in a record of {['weight', *(p.name for p in self.state)]}")

    def _width(self, part: StateField) -> int:
        return 1 if part.per_row else self.dim
