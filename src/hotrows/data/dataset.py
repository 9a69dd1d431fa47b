"""Data sets by name: a prepared directory or a synthetic data set."""

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hotrows.data.checksums import ADVICE, sha256_of_file
from hotrows.data.description import DESCRIPTION, check_sizes, read_description
from hotrows.data.resumable import ResumableLoader
from hotrows.data.schema import SPLITS, DataSet, Schema
from hotrows.data.share import Share
from hotrows.data.synthetic import PREFIX, open_synthetic
from hotrows.data.verify import verify as verify_files

if TYPE_CHECKING:
    from hotrows.data.shards import ParquetRowGroup

logger = logging.getLogger("hotrows")


def open_dataset(name: str | Path, *, verify: bool = False) -> DataSet:
    """Open a directory that `hotrows prepare` has written, or a synthetic data set.

    Every shard must exist with the size that was written, and what is read of it must have the checksum that was
    written. `verify` reads all files of a prepared directory first and compares their checksums.

    Example::

        open_dataset("prepared/criteo")
        open_dataset("synthetic:criteo-kaggle?samples=1000000&scale=0.01")
    """
    if str(name).startswith(PREFIX):
        return open_synthetic(str(name))
    return PreparedDataSet(Path(name), verify=verify)


class PreparedDataSet:
    """A directory of Parquet shards with vocabularies and `dataset.json`.

    An id at or beyond a column's `num_ids` is replaced by id 0, the id of rare values. So to evaluate a model on data
    with a larger vocabulary than it was trained with, pass the schema it was trained with.
    """

    def __init__(self, directory: Path, schema: Schema | None = None, *, verify: bool = False) -> None:
        self._description = described = read_description(directory)
        self.directory = directory
        self.name = described.name
        self.schema = described.schema if schema is None else schema
        check_sizes(described)
        if verify:
            for damage in verify_files(directory).damaged:
                raise ValueError(f"{directory / damage.file}: {damage.problem}; {ADVICE}")
        elif not described.sections:
            _warn_of_missing_checksums(directory)
        self._row_groups = cache(self._list_row_groups)

    @property
    def vocabulary_checksums(self) -> Mapping[str, str] | None:
        """A checksum of the values and ids of every table. Tables with equal ones mean the same by an id.

        None if an earlier version of hotrows has prepared the data.
        """
        return self._description.vocabulary_checksums

    def with_schema(self, schema: Schema) -> "PreparedDataSet":
        """The same samples with other table sizes."""
        return PreparedDataSet(self.directory, schema)

    def num_samples(self, split: str) -> int:
        return self._description.num_samples[_known_split(split)]

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
    ) -> ResumableLoader:
        from hotrows.data.loader import ShardLoader

        share = Share(self.num_samples(split), batch_size, rank, world_size, drop_last)
        return ShardLoader(self._row_groups(split), self.schema, share, shuffle=shuffle, seed=seed)

    def counts(self) -> dict[str, Tensor]:
        return {table: self._table_counts(table, num_rows) for table, num_rows in self.schema.tables.items()}

    def _list_row_groups(self, split: str) -> "list[ParquetRowGroup]":
        from hotrows.data.shards import list_row_groups

        described = self._description
        sections = {self.directory / name: described.sections.get(name, []) for name in described.files[split]}
        row_groups = list_row_groups(sections, self.schema)
        found, expected = sum(row_group.num_rows for row_group in row_groups), described.num_samples[split]
        if found != expected:
            raise ValueError(
                f"{self.directory}: the shards of {split!r} have {found:,} samples, its {DESCRIPTION} says "
                f"{expected:,}; prepare the data again"
            )
        return row_groups

    def _table_counts(self, table: str, num_rows: int) -> Tensor:
        import pyarrow as pa
        import pyarrow.parquet as pq

        name = self._description.vocabularies[table]
        path, expected = self.directory / name, self._description.checksums.get(name)
        try:
            if expected is not None and (checksum := sha256_of_file(path)) != expected:
                raise ValueError(
                    f"{path}: this vocabulary is damaged, its SHA-256 is {checksum}, {DESCRIPTION} says {expected}; "
                    f"{ADVICE}"
                )
            vocabulary = pq.read_table(path, columns=["id", "count"])
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{path}: this vocabulary cannot be read ({error}); prepare the data again") from error
        # Arrow's memory is read-only, and torch warns about tensors that share it.
        ids = torch.from_numpy(vocabulary["id"].to_numpy().copy()).long()
        times = torch.from_numpy(vocabulary["count"].to_numpy().copy()).long()
        known = ids < num_rows
        return torch.zeros(num_rows, dtype=torch.int64).index_add_(0, ids[known], times[known])


@cache
def _warn_of_missing_checksums(directory: Path) -> None:
    logger.warning(
        "%s was prepared by an earlier version of hotrows, without checksums of its row groups: damage of its files "
        "may not be found while they are read; prepare the data again to have them",
        directory,
    )


def _known_split(split: str) -> str:
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}: give one of {', '.join(SPLITS)}")
    return split
