"""The description of one embedding table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral

from torch import Tensor

Init = str | Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class Table:
    """One embedding table of a collection.

    Args:
        name: the table's name in `weight(name)` and in the `state_dict`; it is also part of the seed of its initial
            values.
        num_rows: the number of rows; ids are 0 to num_rows - 1.
        dim: the width of its rows; None takes the collection's.
        features: the features (columns of a batch) that look up in this table; None: one, with the table's name.
        init: initial values: "uniform" (±1/√num_rows, as in DLRM), "uniform(0.1)" (±0.1, or another number), "normal"
            (standard normal, as `nn.EmbeddingBag`), "normal(0.1)" (with this standard deviation), or a function
            (ids [n] int64, dim) → float32 [n, dim], whose result for an id must not depend on the others.

    Example::

        Table("items", 1_000_000, features=("clicked", "bought"))
    """

    name: str
    num_rows: int
    dim: int | None = None
    features: tuple[str, ...] | None = None
    init: Init = "uniform"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or "." in self.name:
            raise ValueError(f"table name {self.name!r}: give a text that is not empty and has no dot in it")
        where = f"table {self.name!r}: "
        object.__setattr__(self, "num_rows", whole_number(self.num_rows, f"{where}num_rows"))
        if self.dim is not None:
            object.__setattr__(self, "dim", whole_number(self.dim, f"{where}dim"))
        if self.features is not None:
            if not _are_names(self.features):
                raise ValueError(f"{where}features is {self.features!r}, give a tuple of one or more names")
            object.__setattr__(self, "features", tuple(self.features))

    @property
    def feature_names(self) -> tuple[str, ...]:
        return (self.name,) if self.features is None else tuple(self.features)


def whole_number(value: object, name: str, least: int | None = 1, most: int | None = None) -> int:
    """The Python int of a whole number, which may also be one of NumPy's. Bools and floats are refused.

    Args:
        name: what the number is for, for the error message.
        least: the smallest number that is allowed, None for any.
        most: the largest number that is allowed, None for any.
    """
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        allowed = "" if least is None else f" from {least} up" if most is None else f" from {least} to {most}"
        raise ValueError(f"{name} is {value!r}, it must be a whole number{allowed}")
    return number


def _are_names(features: object) -> bool:
    """One or more names, and not one text, whose letters Python would take for names."""
    return (
        isinstance(features, Sequence)
        and bool(features)
        and not isinstance(features, str)
        and all(isinstance(name, str) and name for name in features)
    )
