"""Parquet shards of a prepared data set: their row groups, and a reader that turns these into blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hotrows.data.block import Block, Int32, Int64, RaggedColumn
from hotrows.data.checksums import Section
from hotrows.data.schema import Column, Schema

LABEL = "label"
RARE = 0
_TILE = 4096  # samples transposed together, so that they stay in the processor's cache
_GAP = 16  # values between columns: at distances of a power of two, columns would evict each other from the cache


@dataclass(frozen=True)
class ParquetRowGroup:
    """A row group of a shard. `section` is None if the data set has no checksums."""

    path: Path
    number: int
    num_rows: int
    footer: pq.FileMetaData
    section: Section | None = None


@dataclass(frozen=True)
class Piece:
    """Rows `start` to `stop` of one row group."""

    group: ParquetRowGroup
    start: int
    stop: int


def list_row_groups(shards: Mapping[Path, Sequence[Section]], schema: Schema) -> list[ParquetRowGroup]:
    """Read the footers, and check that every shard has the columns of the schema.

    Args:
        shards: the sections of every shard, its footer last; none if the data set has no checksums.
    """
    row_groups = []
    for path, sections in shards.items():
        try:
            if sections:
                sections[-1].check()
            footer = pq.read_metadata(path)
        except FileNotFoundError:
            raise _missing(path) from None
        except (OSError, pa.ArrowException) as error:
            raise _damaged(path, error) from error
        _check_columns(path, footer.schema.to_arrow_schema(), schema)
        checks: Sequence[Section | None] = sections[:-1] or [None] * footer.num_row_groups
        row_groups += [
            ParquetRowGroup(path, i, footer.row_group(i).num_rows, footer, section) for i, section in enumerate(checks)
        ]
    return row_groups


class BlockReader:
    """Reads pieces of row groups into blocks; may be used from several threads at once.

    An id that the schema's table does not have is replaced by the id of rare values. Buffers of recycled blocks are
    used again, because the operating system zeroes newly allocated memory, which is slow.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._columns = [LABEL, *schema.dense, *(c.name for c in schema.categorical)]
        self._free_buffers: list[Int32] = []

    def read(self, pieces: Sequence[Piece], order: Int64 | None = None) -> Block:
        """The samples of the pieces one after the other, or with `order` sample order[i] of these at position i."""
        schema = self._schema
        plain = () if schema.has_sequences else schema.categorical
        width = len(plain) + len(schema.dense) + 1
        total = sum(piece.stop - piece.start for piece in pieces)
        size = (total + _GAP) * width
        memory = self._buffer(size)
        # For shuffling a sample must be contiguous. Without it, columns stay columns until a batch is copied.
        columns = memory[:size].reshape(width, total + _GAP)[:, :total]
        rows = columns.T if order is None else memory[: total * width].reshape(total, width)
        ragged = _RaggedIds(schema.categorical) if schema.has_sequences else None
        done = 0
        for piece in pieces:
            table = self._table(piece)
            found = [_known(_values(piece, table, c.name), c.num_ids) for c in plain]
            found += [_values(piece, table, name).view(np.int32) for name in (*schema.dense, LABEL)]
            if ragged is not None:
                ragged.add(piece, table)
            stop = done + len(table)
            if order is None:
                _stack(found, columns[:, done:stop])
            else:
                _transpose(found, rows[done:stop])
            done = stop
        return Block(rows, len(schema.dense), order, None if ragged is None else ragged.finish(order), memory)

    def recycle(self, block: Block) -> None:
        """Reuse the buffer of a block from which no more batches are copied."""
        if block.memory is not None:
            self._free_buffers.append(block.memory)

    def _buffer(self, size: int) -> Int32:
        # numpy's copies release Python's global lock and, unlike torch's, start no threads of their own.
        try:
            buffer = self._free_buffers.pop()
        except IndexError:  # not checked before: another thread may take the last one in between
            buffer = np.empty(0, dtype=np.int32)
        return buffer if len(buffer) >= size else np.empty(size, dtype=np.int32)

    def _table(self, piece: Piece) -> pa.Table:
        group = piece.group
        try:
            if group.section is not None:
                group.section.check()
            with pq.ParquetFile(group.path, metadata=group.footer) as file:
                # Several threads call this at the same time, so each reads with one thread.
                table = file.read_row_group(group.number, columns=self._columns, use_threads=False)
        except FileNotFoundError:
            raise _missing(group.path) from None
        except (OSError, pa.ArrowException) as error:
            raise _damaged(group.path, error) from error
        return table.slice(piece.start, piece.stop - piece.start)


class _RaggedIds:
    """Columns with any number of ids per sample, collected piece by piece."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._values: list[list[Int32]] = [[] for _ in columns]
        self._lengths: list[list[Int64]] = [[] for _ in columns]

    def add(self, piece: Piece, table: pa.Table) -> None:
        for column, values, lengths in zip(self._columns, self._values, self._lengths, strict=True):
            if column.max_length == 1:
                found = _values(piece, table, column.name)
                length = np.ones(len(found), dtype=np.int64)
            else:
                lists = table.column(column.name).combine_chunks()
                if lists.null_count:
                    raise _nulls(piece, column.name)
                found, length = _array(piece, lists.flatten(), column.name), np.diff(_list_offsets(lists))
                if length.max(initial=0) > column.max_length:
                    raise ValueError(
                        f"{piece.group.path}: a sample has {length.max()} ids in column {column.name!r}, "
                        f"dataset.json says at most {column.max_length}"
                    )
            values.append(_known(found, column.num_ids))
            lengths.append(length)

    def finish(self, order: Int64 | None) -> tuple[RaggedColumn, ...]:
        joined = [RaggedColumn.joined(v, n) for v, n in zip(self._values, self._lengths, strict=True)]
        return tuple(joined if order is None else (column.reordered(order) for column in joined))


def _stack(found: Sequence[Int32], columns: Int32) -> None:
    for column, values in zip(columns, found, strict=True):
        column[:] = values


def _transpose(found: Sequence[Int32], rows: Int32) -> None:
    """Write columns as rows, one tile at a time: this is twice as fast as writing one column after the other."""
    tile = np.empty((len(found), _TILE + _GAP), dtype=np.int32)
    for start in range(0, len(rows), _TILE):
        stop = min(start + _TILE, len(rows))
        columns = tile[:, : stop - start]
        _stack([values[start:stop] for values in found], columns)
        rows[start:stop] = columns.T


def _values(piece: Piece, table: pa.Table, name: str) -> NDArray[Any]:
    chunks = table.column(name)
    return _array(piece, chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks(), name)


def _array(piece: Piece, values: pa.Array, name: str) -> NDArray[Any]:
    if values.null_count:
        raise _nulls(piece, name)
    # to_numpy() would import pandas.
    array: NDArray[Any] = np.from_dlpack(values)
    return array


def _list_offsets(lists: Any) -> Int64:
    offsets: Int64 = np.from_dlpack(lists.offsets).astype(np.int64)
    return offsets


def _known(ids: Int32, num_ids: int) -> Int32:
    """The ids, with those beyond the vocabulary replaced by the id of rare values."""
    unsigned = ids.view(np.uint32)  # a negative id becomes a very large one
    if unsigned.max(initial=0) < num_ids:
        return ids
    return np.where(unsigned < num_ids, ids, np.int32(RARE))


def _check_columns(path: Path, found: pa.Schema, schema: Schema) -> None:
    wanted = {LABEL: pa.float32(), **{name: pa.float32() for name in schema.dense}}
    wanted |= {c.name: _id_type(c) for c in schema.categorical}
    for name, kind in wanted.items():
        if name not in found.names:
            raise ValueError(
                f"{path}: there is no column {name!r}; it does not fit its dataset.json, so prepare the data again"
            )
        if not _same_type(found.field(name).type, kind):
            raise ValueError(f"{path}: column {name!r} is {found.field(name).type}, expected {kind}")


def _id_type(column: Column) -> pa.DataType:
    return pa.int32() if column.max_length == 1 else pa.list_(pa.int32())


def _same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(wanted):  # the name of a list's value field differs between writers
        return bool(pa.types.is_list(found) and found.value_type == wanted.value_type)
    return bool(found == wanted)


def _missing(path: Path) -> ValueError:
    return ValueError(f"{path}: this shard is missing; prepare the data again, or copy the directory again")


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{path}: this shard cannot be read, it is truncated or damaged ({error}); "
        "prepare the data again, or copy the directory again"
    )


def _nulls(piece: Piece, name: str) -> ValueError:
    return ValueError(f"{piece.group.path}: column {name!r} has nulls, which a prepared data set does not have")
