"""What a data set tells of itself, and what every data set can do.

A prepared directory and a synthetic one look the same to models, trainer and profile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from hotrows.batch import Batch

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Column:
    """A categorical column: ids from 0 to num_ids - 1, by falling frequency.

    Args:
        table: the embedding table it looks up in, which several columns may share; by default one of its own name.
        max_length: ids per sample; 1 for a plain column, more for a sequence, which may be shorter or empty.
    """

    name: str
    num_ids: int
    table: str = ""
    max_length: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", self.table or self.name)


@dataclass(frozen=True)
class Schema:
    """The columns of a data set, in the order of `Batch.dense` and `Batch.ids`.

    `Batch.ids` is int64 [B, F] if every column has one id, else a `Jagged`.
    """

    dense: tuple[str, ...]
    categorical: tuple[Column, ...]

    @property
    def has_sequences(self) -> bool:
        return any(column.max_length > 1 for column in self.categorical)

    @property
    def tables(self) -> dict[str, int]:
        """Rows of every table, in order of first use."""
        found: dict[str, int] = {}
        for column in self.categorical:
            found[column.table] = max(column.num_ids, found.get(column.table, 0))
        return found


class Loader(Protocol):
    """Batches of one split. Iterating goes through one epoch, from where `load_state_dict` has put it."""

    def __iter__(self) -> Iterator[Batch]: ...

    def __len__(self) -> int:
        """Batches of an epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the samples; the same seed and epoch give the same order."""

    def state_dict(self) -> dict[str, Any]:
        """Where it is: after the last batch that was taken from it."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, with the same batches that would have come."""


class DataSet(Protocol):
    name: str
    schema: Schema

    def num_samples(self, split: str) -> int: ...

    def loader(
        self,
        split: str,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
    ) -> Loader: ...

    def counts(self) -> dict[str, Tensor]:
        """How often each id of each table occurs in the training split, int64 [rows] by table; may be an estimate."""
