"""The description of one embedding table."""

from collections.abc import Callable
from dataclasses import dataclass

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
        init: initial values: "uniform" (±1/√num_rows, as in DLRM), "normal" (standard normal, as `nn.EmbeddingBag`), or
            a function (ids [n] int64, dim) → float32 [n, dim], whose result for an id must not depend on the others.

    Example::

        Table("items", 1_000_000, features=("clicked", "bought"))
    """

    name: str
    num_rows: int
    dim: int | None = None
    features: tuple[str, ...] | None = None
    init: Init = "uniform"

    def __post_init__(self) -> None:
        if not self.name or "." in self.name:
            raise ValueError(f"table name {self.name!r}: give a name that is not empty and has no dot in it")
        if not isinstance(self.num_rows, int) or self.num_rows < 1:
            raise ValueError(f"table {self.name!r}: num_rows is {self.num_rows!r}, it must be a whole number from 1 up")
        if self.dim is not None and (not isinstance(self.dim, int) or self.dim < 1):
            raise ValueError(f"table {self.name!r}: dim is {self.dim!r}, it must be a whole number from 1 up")
        if isinstance(self.features, str) or (self.features is not None and not self.features):
            raise ValueError(f"table {self.name!r}: features is {self.features!r}, give a tuple of one or more names")

    @property
    def feature_names(self) -> tuple[str, ...]:
        return (self.name,) if self.features is None else tuple(self.features)
