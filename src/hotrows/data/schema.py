"""The description of a data set's columns, and the protocols of data sets and loaders.

Prepared and synthetic data sets have the same interface for models, trainer and profile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from hotrows.batch import Batch
from hotrows.table import Table

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Column:
    """A categorical column: ids from 0 to num_ids - 1, in order of falling frequency.

    Args:
        table: the embedding table of its ids, which several columns may share; by default a table with its own name.
        max_length: the most ids per sample; 1 for a plain column, more for a sequence, which may be shorter or empty.
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

    Categorical columns that share a table stand together, behind the first of them, whatever order they are given in:
    embedding bags have the columns of a table together too. Otherwise their order is kept.

    `Batch.ids` is int64 [B, F] if every column has one id, else a `Jagged`.
    """

    dense: tuple[str, ...]
    categorical: tuple[Column, ...]

    def __post_init__(self) -> None:
        tables = list(dict.fromkeys(column.table for column in self.categorical))
        ordered = sorted(self.categorical, key=lambda column: tables.index(column.table))
        object.__setattr__(self, "categorical", tuple(ordered))

    @property
    def has_sequences(self) -> bool:
        return any(column.max_length > 1 for column in self.categorical)

    @property
    def tables(self) -> dict[str, int]:
        """The number of rows of every table, in order of first use."""
        found: dict[str, int] = {}
        for column in self.categorical:
            found[column.table] = max(column.num_ids, found.get(column.table, 0))
        return found

    @property
    def embedding_tables(self) -> list[Table]:
        """The tables for an `EmbeddingBagCollection`, whose features are the categorical columns in their order."""
        features: dict[str, list[str]] = {}
        for column in self.categorical:
            features.setdefault(column.table, []).append(column.name)
        return [Table(name, rows, features=tuple(features[name])) for name, rows in self.tables.items()]


class Loader(Protocol):
    """The batches of one split. Iterating yields one epoch, from the position that `load_state_dict` has set."""

    def __iter__(self) -> Iterator[Batch]: ...

    def __len__(self) -> int:
        """The number of batches of an epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the samples; the same seed and epoch give the same order."""

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was taken from it."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at a position, with the same batches that would have followed."""


class DataSet(Protocol):
    """Samples in three splits: `train`, `valid` and `test`.

    Attributes:
        name: what to call it in a report.
        schema: its columns.
    """

    name: str
    schema: Schema

    def num_samples(self, split: str) -> int:
        """How many samples a split has, which may be none."""

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
    ) -> Loader:
        """The batches of a split.

        Args:
            shuffle: draw the order of the samples anew in each epoch, from the seed and the number of the epoch.
            rank, world_size: read only this share of the samples. The shares of all ranks are disjoint.
            drop_last: leave out samples that do not fill a batch on every rank.
        """

    def counts(self) -> dict[str, Tensor]:
        """How often each id of each table occurs in the training split, int64 [rows] by table; may be an estimate."""
