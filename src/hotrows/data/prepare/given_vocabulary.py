"""The vocabulary of an already prepared data set, with which another log is prepared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hotrows.data.checksums import ADVICE, sha256_of_file
from hotrows.data.description import DESCRIPTION, read_description
from hotrows.data.prepare.column_names import table_name
from hotrows.data.prepare.engines.base import ROWS_PER_GROUP
from hotrows.data.prepare.expressions import RARE
from hotrows.data.prepare.log import Log
from hotrows.data.prepare.report import Lookups
from hotrows.data.schema import Schema

TYPES = {"value": pa.string(), "id": pa.int32(), "count": pa.int64()}


@dataclass(frozen=True)
class GivenVocabulary:
    """The files of a vocabulary, and the number of its ids, by categorical column."""

    directory: Path
    files: Mapping[str, Path]
    num_ids: Mapping[str, int]


def read_vocabulary(directory: Path, log: Log) -> GivenVocabulary:
    """Find the vocabulary of a prepared data set, and check that it is undamaged and fits the log.

    Raises:
        ValueError: the directory is no data set, it has other columns than the log, or a file is damaged.
    """
    if not (directory / DESCRIPTION).is_file():
        raise ValueError(
            f"vocabulary: {directory} is not a prepared data set, it has no {DESCRIPTION}: give a directory that "
            "`hotrows prepare` has written"
        )
    described = read_description(directory)
    sequences = log.history.sequences if log.history else {}
    own = {name: table_name(sequences.get(name, name)) for name in (*log.categorical, *sequences)}
    known = {column.name: column.table for column in described.schema.categorical}
    if own != known:
        lacking = ", ".join(name for name in own if known.get(name) != own[name]) or "nothing"
        more = ", ".join(name for name in known if own.get(name) != known[name]) or "nothing"
        raise ValueError(
            f"the vocabulary of {directory} is of other categorical columns than the log: the vocabulary lacks "
            f"{lacking}, the log lacks {more}; give a data set that was prepared from a log with the same columns"
        )
    tables = described.schema.tables
    files = {name: directory / described.vocabularies[table_name(name)] for name in log.categorical}
    for name, path in files.items():
        expected = described.checksums.get(path.relative_to(directory).as_posix())
        _check_file(path, expected, tables[table_name(name)])
    return GivenVocabulary(directory, files, {name: tables[table_name(name)] for name in log.categorical})


def _check_file(path: Path, checksum: str | None, num_ids: int) -> None:
    try:
        found = sha256_of_file(path)
        if checksum is not None and found != checksum:
            raise ValueError(
                f"{path}: this vocabulary is damaged, its SHA-256 is {found}, {DESCRIPTION} says {checksum}; {ADVICE}"
            )
        with pq.ParquetFile(path) as file:
            types, num_rows = {field.name: field.type for field in file.schema_arrow}, file.metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path}: this vocabulary cannot be read ({error}); {ADVICE}") from error
    if types != TYPES or num_rows != num_ids:
        raise ValueError(
            f"{path}: this vocabulary is damaged: it must have {num_ids:,} rows of value, id and count; {ADVICE}"
        )


@dataclass(frozen=True)
class LookupCounts:
    """What the samples of a data set look up.

    Args:
        training: how often the training split looks up each id, by table.
        columns: all lookups of each column, over all splits.
    """

    training: Mapping[str, "np.ndarray[tuple[int], np.dtype[np.int64]]"]
    columns: Mapping[str, Lookups]


def count_lookups(shards: Mapping[str, Sequence[Path]], schema: Schema) -> LookupCounts:
    """Count the ids in the shards of every split. One row group is in memory at a time."""
    training = {table: np.zeros(num_ids, dtype=np.int64) for table, num_ids in schema.tables.items()}
    num = dict.fromkeys((column.name for column in schema.categorical), 0)
    num_new = dict(num)
    for split, paths in shards.items():
        for path in paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(ROWS_PER_GROUP, columns=list(num)):
                    for column in schema.categorical:
                        values = batch.column(column.name)
                        ids = np.from_dlpack(values.flatten() if column.max_length > 1 else values)
                        num[column.name] += len(ids)
                        num_new[column.name] += int(np.count_nonzero(ids == RARE))
                        if split == "train":
                            np.add.at(training[column.table], ids.astype(np.int64), 1)
    return LookupCounts(training, {name: Lookups(num[name], num_new[name]) for name in num})


def write_recounted(source: Path, target: Path, counts: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
    """Write a vocabulary again with the counts of another training split. Values and ids stay."""
    schema = pa.schema(TYPES)
    with pq.ParquetFile(source) as file, pq.ParquetWriter(target, schema, compression="lz4_raw") as writer:
        for batch in file.iter_batches(ROWS_PER_GROUP, columns=["value", "id"]):
            ids = batch.column("id")
            recounted = pa.array(counts[np.from_dlpack(ids)])
            writer.write_batch(pa.record_batch([batch.column("value"), ids, recounted], schema=schema))
