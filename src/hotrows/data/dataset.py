"""Data sets by name: a prepared directory or a synthetic data set."""

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hotrows.data.resumable import ResumableLoader
from hotrows.data.schema import SPLITS, Column, DataSet, Schema
from hotrows.data.shapes import SHAPES
from hotrows.data.share import Share
from hotrows.data.synthetic import PREFIX, open_synthetic

if TYPE_CHECKING:
    from hotrows.data.shards import ParquetRowGroup

FORMAT = 1
DESCRIPTION = "dataset.json"


def open_dataset(name: str | Path, *, verify: bool = False) -> DataSet:
    """Open a directory that `hotrows prepare` has written, or a synthetic data set.

    Every shard must exist with the size that was written. `verify` also reads all files of a prepared directory and
    compares their checksums.

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
        described = _read_description(directory)
        self.directory = directory
        try:
            self.name: str = described["name"]
            own = _read_schema(described["schema"])
            self._files = {s: [directory / f for f in described["splits"][s]["files"]] for s in SPLITS}
            self._num_samples = {s: int(described["splits"][s]["num_samples"]) for s in SPLITS}
            sizes = {directory / name: int(size) for name, size in described.get("sizes", {}).items()}
            checksums = {directory / name: str(checksum) for name, checksum in described.get("checksums", {}).items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{directory / DESCRIPTION} is damaged ({type(error).__name__}: {error}): prepare the data again"
            ) from error
        self.schema = own if schema is None else schema
        shards = [path for paths in self._files.values() for path in paths]
        _check_sizes(directory, shards, sizes)
        if verify:
            _check_contents(directory, shards, checksums)
        self._row_groups = cache(self._list_row_groups)

    def with_schema(self, schema: Schema) -> "PreparedDataSet":
        """The same samples with other table sizes."""
        return PreparedDataSet(self.directory, schema)

    def num_samples(self, split: str) -> int:
        return self._num_samples[_known_split(split)]

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

        row_groups = list_row_groups(self._files[split], self.schema)
        found, expected = sum(row_group.num_rows for row_group in row_groups), self._num_samples[split]
        if found != expected:
            raise ValueError(
                f"{self.directory}: the shards of {split!r} have {found:,} samples, its {DESCRIPTION} says "
                f"{expected:,}; prepare the data again"
            )
        return row_groups

    def _table_counts(self, table: str, num_rows: int) -> Tensor:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.directory / "vocabulary" / f"{table}.parquet"
        try:
            vocabulary = pq.read_table(path, columns=["id", "count"])
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{path}: this vocabulary cannot be read ({error}); prepare the data again") from error
        # Arrow's memory is read-only, and torch warns about tensors that share it.
        ids = torch.from_numpy(vocabulary["id"].to_numpy().copy()).long()
        times = torch.from_numpy(vocabulary["count"].to_numpy().copy()).long()
        known = ids < num_rows
        return torch.zeros(num_rows, dtype=torch.int64).index_add_(0, ids[known], times[known])


def _check_sizes(directory: Path, shards: Sequence[Path], sizes: dict[Path, int]) -> None:
    missing = [path for path in shards if not path.is_file()]
    if missing:
        raise ValueError(
            f"{directory}: {len(missing)} shard(s) of its {DESCRIPTION} are missing, the first is {missing[0]}; "
            "prepare the data again, or copy the directory again"
        )
    for path in shards:
        found = path.stat().st_size
        if found != sizes.get(path, found):
            raise ValueError(
                f"{path}: this shard has {found:,} bytes, {DESCRIPTION} says {sizes[path]:,}; "
                "prepare the data again, or copy the directory again"
            )


def _check_contents(directory: Path, shards: Sequence[Path], checksums: dict[Path, str]) -> None:
    unknown = [path for path in shards if path not in checksums]
    if unknown:
        raise ValueError(f"{directory / DESCRIPTION} has no checksum of {unknown[0]}: the data cannot be verified")
    for path, expected in checksums.items():
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ValueError(f"{path}: this file cannot be read ({error}); copy the directory again") from error
        if found != expected:
            raise ValueError(
                f"{path}: its contents have changed, the SHA-256 is {found}, {DESCRIPTION} says {expected}; "
                "prepare the data again, or copy the directory again"
            )


def _known_split(split: str) -> str:
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}: give one of {', '.join(SPLITS)}")
    return split


def _read_description(directory: Path) -> dict[str, Any]:
    synthetic = ", ".join(PREFIX + name for name in SHAPES)
    path = directory / DESCRIPTION
    if not directory.exists():
        raise ValueError(
            f"there is no data set {str(directory)!r}: give a directory that `hotrows prepare` has written, "
            f"or one of {synthetic}"
        )
    if not path.is_file():
        raise ValueError(
            f"{directory} is not a prepared data set, it has no {DESCRIPTION}: make one with `hotrows prepare`, "
            f"or use one of {synthetic}"
        )
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        number = described["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}): prepare the data again") from error
    if number != FORMAT:
        raise ValueError(
            f"{path} is of format {number}, this version of hotrows reads format {FORMAT}: "
            "update hotrows, or prepare the data again with this version"
        )
    return dict(described)


def _read_schema(described: dict[str, Any]) -> Schema:
    columns = (
        Column(c["name"], int(c["num_ids"]), c.get("table", ""), int(c.get("max_length", 1)))
        for c in described["categorical"]
    )
    return Schema(tuple(described["dense"]), tuple(columns))
