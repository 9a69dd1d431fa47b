"""Prepare on DuckDB: in this process, out of core under a memory limit."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from ibis.backends.duckdb import Backend

from hotrows.data.prepare.engines.base import ROWS_PER_GROUP, Part, Read, Rejected
from hotrows.data.prepare.errors import BadInputError, OutputError
from hotrows.data.prepare.files import (
    is_gzip,
    last_readable_line,
    lines_of_numbers,
    lines_of_records,
    mixed_line_end,
)
from hotrows.data.prepare.log import Expression, LogFile, Table

_NO_NUMBER = "_no_number"
_REASONS = {
    "MISSING COLUMNS": "too few fields",
    "TOO MANY COLUMNS": "too many fields",
    "INVALID ENCODING": "not UTF-8",
    "UNQUOTED VALUE": "a quote that does not end",
    "LINE SIZE OVER MAXIMUM": "a line too long",
}
# A task that fills a row group of the table is not copied again. A row group is about 120,000 lines of a click log.
_BYTES_PER_TASK = 32_000_000
_PARQUET = f"FORMAT parquet, COMPRESSION lz4_raw, WRITE_BLOOM_FILTER false, ROW_GROUP_SIZE {ROWS_PER_GROUP}"


class DuckDB:
    """Stores rows in tables of a database in memory, which spills to a directory beyond the limit."""

    name = "duckdb"
    reads_line_breaks = True

    def __init__(self, memory_limit: str, work: Path) -> None:
        spill = work / "spill"
        spill.mkdir(parents=True)
        self._ibis = Backend().connect(memory_limit=memory_limit, temp_directory=str(spill))
        self._connection: duckdb.DuckDBPyConnection = self._ibis.con
        self._connection.execute("SET enable_progress_bar = false")
        self._num_views = 0
        self._memory_limit = memory_limit

    def read(self, file: LogFile, columns: Sequence[str], name: str) -> Read:
        types = ", ".join(f"{_text(name)}: 'VARCHAR'" for name in file.columns)
        quote = _text(file.quote)
        assert file.delimiter is not None
        source = (
            f"read_csv({_text(str(file.path))}, auto_detect = false, delim = {_text(file.delimiter)}, "
            f"header = {str(file.header).lower()}, quote = {quote}, escape = {quote}, columns = {{{types}}}, "
            f"compression = '{'gzip' if is_gzip(file.path) else 'none'}', "
            f"buffer_size = {_BYTES_PER_TASK}, store_rejects = true, rejects_table = 'rejects', "
            "rejects_scan = 'reject_scans')"
        )
        numbers = [name for name, kind in file.columns.items() if kind == "number" and name in columns]
        chosen = ", ".join(_as_number(name) if name in numbers else _name(name) for name in columns)
        try:
            self._run(
                f"CREATE TABLE {_name(name)} AS SELECT {chosen}, {_first_that_is_no_number(numbers)} AS {_NO_NUMBER} "
                f"FROM {source}"
            )
        except (duckdb.IOException, duckdb.InvalidInputException) as error:
            if not is_gzip(file.path):
                raise _unreadable(file.path, error) from error
            line = last_readable_line(file.path)
            raise BadInputError(file.path, "the compressed file breaks off", "a complete .gz", line) from error
        rejected, lines = self._rejects(file)
        others, other_lines = self._take_out_no_numbers(file, name, lines)
        rejected, lines = tuple(sorted((*rejected, *others), key=_by_line)), lines | other_lines
        self._run("DROP TABLE rejects; DROP TABLE reject_scans")
        return Read(self._part(name), rejected, lines)

    def table(self, parts: Sequence[Part], columns: Sequence[str], rows: range | None = None) -> Table:
        return self._view(self._rows(parts, columns, rows))

    def scan(self, parts: Sequence[Part], column: str) -> Iterator[pa.Array]:
        with _reported(self._memory_limit):
            found = self._connection.sql(f"SELECT {_name(column)} FROM ({self._rows(parts, [column], None)})")
            for batch in found.to_arrow_reader(1 << 20):
                yield batch.column(0)

    def lookup(self, path: Path) -> Table:
        return self._view(f"SELECT * FROM read_parquet({_text(str(path))})")

    def fetch(self, expression: Expression) -> dict[str, Any]:
        with _reported(self._memory_limit):
            return self._ibis.to_pyarrow(expression).to_pylist()[0]  # type: ignore[no-any-return]

    def store(self, expression: Table, name: str, order_by: Sequence[str]) -> tuple[Part, ...]:
        self._run(f"CREATE TABLE {_name(name)} AS {self._ordered(expression, order_by)}")
        return self._part(name)

    def write_vocabularies(
        self,
        samples: Table,
        targets: Mapping[str, Path],
        build: Callable[[Table], Table],
        progress: Callable[[float], None],
    ) -> None:
        self._ibis.create_view("_samples", samples, overwrite=True)
        query = ""
        for number, (name, path) in enumerate(targets.items()):
            progress(number / len(targets))
            # The query is compiled once. It reads a view, which is replaced for every column.
            self._run(f"CREATE OR REPLACE VIEW _occurrences AS SELECT {_name(name)} AS value, _weight FROM _samples")
            query = query or self._ordered(build(self._ibis.table("_occurrences")), ["id"])
            self._copy(query, path)
        progress(1.0)

    def write_shards(
        self,
        parts: Sequence[Part],
        columns: Sequence[str],
        targets: Mapping[Path, range],
        build: Callable[[Table], Table],
        rows_per_shard: int,
        progress: Callable[[float], None],
    ) -> list[tuple[Path, ...]]:
        num_rows = max(sum(len(rows) for rows in targets.values()), 1)
        num_done = 0
        query = ""
        written = []
        for directory, rows in targets.items():
            directory.mkdir(parents=True)
            shards: list[Path] = []
            for start in range(rows.start, rows.stop, rows_per_shard):
                stop = min(start + rows_per_shard, rows.stop)
                self._run(f"CREATE OR REPLACE VIEW _shard AS {self._rows(parts, columns, range(start, stop))}")
                query = query or self._ordered(build(self._ibis.table("_shard")), ["row"])
                path = directory / f"part-{len(shards):05d}.parquet"
                self._copy(query, path)
                if Part.of_file(path).num_rows:
                    shards.append(path)
                else:
                    path.unlink()
                num_done += stop - start
                progress(num_done / num_rows)
            written.append(tuple(shards))
        return written

    def close(self) -> None:
        self._ibis.disconnect()

    def _ordered(self, expression: Table, order_by: Sequence[str]) -> str:
        # A sum of integers is a HUGEINT in DuckDB and an int64 in Ibis. Without a cast, Parquet would get a double.
        types = expression.schema()
        kept = ", ".join(
            f"CAST({_name(name)} AS BIGINT) AS {_name(name)}" if types[name].is_int64() else _name(name)
            for name in expression.columns
            if name != "row"
        )
        order = ", ".join(_name(name) for name in order_by)
        return f"SELECT {kept} FROM ({self._ibis.compile(expression)}) ORDER BY {order}"

    def _rows(self, parts: Sequence[Part], columns: Sequence[str], rows: range | None) -> str:
        """A query for columns of some rows, and their numbers as `row`."""
        names = ", ".join(_name(name) for name in columns)
        queries = []
        first = 0
        for part in parts:
            low, high = (rows.start - first, rows.stop - first) if rows is not None else (0, part.num_rows)
            if low < part.num_rows and high > 0:
                if isinstance(part.source, str):
                    source, position = _name(part.source), "rowid"
                else:
                    path = _text(str(part.source))
                    source, position = f"read_parquet({path}, file_row_number = true)", "file_row_number"
                # The condition is on the position itself, so that DuckDB skips the row groups outside of it.
                chosen = [f"{position} >= {low}"] * (low > 0) + [f"{position} < {high}"] * (high < part.num_rows)
                where = f" WHERE {' AND '.join(chosen)}" if chosen else ""
                queries.append(f"SELECT {names}, {position} + {first} AS row FROM {source}{where}")
            first += part.num_rows
        return " UNION ALL ".join(queries)

    def _view(self, query: str) -> Table:
        self._num_views += 1
        name = f"_view_{self._num_views}"
        self._run(f"CREATE VIEW {name} AS {query}")
        return self._ibis.table(name)

    def _part(self, name: str) -> tuple[Part, ...]:
        found = self._run(f"SELECT count(*) FROM {_name(name)}").fetchone()
        assert found is not None
        return (Part(name, int(found[0])),)

    def _copy(self, query: str, target: Path) -> None:
        # DuckDB keeps the order of the rows when it writes a single file, not when it writes several.
        self._run(f"COPY ({query}) TO {_text(str(target))} ({_PARQUET})")

    def _run(self, sql: str) -> duckdb.DuckDBPyConnection:
        with _reported(self._memory_limit):
            return self._connection.execute(sql)

    def _rejects(self, file: LogFile) -> tuple[tuple[Rejected, ...], frozenset[int]]:
        # A short line is listed once for every field that it lacks.
        lines = """
            SELECT line, min_by(error_type, coalesce(column_idx, 0)) AS error_type, min(column_idx) AS num_fields
            FROM rejects GROUP BY line
        """
        found = self._run(
            f"SELECT error_type, count(*), min(line), min_by(num_fields, line) FROM ({lines}) GROUP BY ALL"
        ).fetchall()
        few = self._run("SELECT DISTINCT line FROM rejects ORDER BY line LIMIT 1000000").fetchall() if found else []
        lines_by_number = lines_of_numbers(file, [*(row[2] for row in found), *(number for (number,) in few)])
        rejected = []
        for kind, num_rows, number, num_fields in found:
            expected = f"{len(file.columns)} fields"
            if kind == "MISSING COLUMNS" and num_rows == 1:
                expected += f", found {num_fields}"
            if kind == "LINE SIZE OVER MAXIMUM":
                expected = f"lines of at most {_BYTES_PER_TASK:,} bytes"
            reason = _REASONS.get(str(kind), str(kind).lower())
            rejected.append(Rejected(reason, expected, num_rows, lines_by_number[number]))
        return tuple(rejected), frozenset(lines_by_number.values())

    def _take_out_no_numbers(
        self, file: LogFile, name: str, rejected_lines: frozenset[int]
    ) -> tuple[tuple[Rejected, ...], frozenset[int]]:
        """Remove the rows of a table that have a text where a number belongs."""
        source, is_bad = _name(name), f"{_NO_NUMBER} IS NOT NULL"
        found = self._run(
            f"SELECT {_NO_NUMBER}, count(*), min(rowid) FROM {source} WHERE {is_bad} GROUP BY ALL"
        ).fetchall()
        if not found:
            return (), frozenset()
        few = self._run(f"SELECT rowid FROM {source} WHERE {is_bad} ORDER BY rowid LIMIT 1000000")
        records = [record for (record,) in few.fetchall()]
        lines = dict(zip(records, lines_of_records(file, records, file.quote, rejected_lines), strict=True))
        self._run(f"CREATE TABLE _numbers AS SELECT * FROM {source} WHERE {_NO_NUMBER} IS NULL")
        self._run(f"DROP TABLE {source}")
        self._run(f"ALTER TABLE _numbers RENAME TO {source}")
        rejected = tuple(
            Rejected(f"{column} is not a number", f"a number in {column}", num_rows, lines.get(record))
            for column, num_rows, record in found
        )
        return rejected, frozenset(lines.values())


@contextmanager
def _reported(memory_limit: str) -> Iterator[None]:
    """Say in the user's words that the disk or the memory is full. Ctrl-C is a KeyboardInterrupt."""
    try:
        yield
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        if "No space left" in str(error) or "max_temp_directory_size" in str(error):
            raise OutputError(f"the disk is full: {error}") from error
        if isinstance(error, duckdb.OutOfMemoryException):
            raise MemoryError(
                f"the engine needs more memory for this log than memory_limit={memory_limit} allows: give a larger "
                f"one, such as {_more(memory_limit)} ({str(error).splitlines()[0]})"
            ) from error
        raise
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


def _more(memory_limit: str) -> str:
    """Twice a size, or 1GB if that is more."""
    found = re.fullmatch(r"([0-9.]+) *([KMGT])i?B", memory_limit.strip(), re.IGNORECASE)
    assert found
    size = 2 * float(found[1]) / {"K": 1024**2, "M": 1024, "G": 1, "T": 1 / 1024}[found[2].upper()]
    return f"{max(size, 1):g}GB"


def _unreadable(path: Path, error: Exception) -> BadInputError:
    """Why a text file cannot be read. DuckDB's message for line ends that differ does not say so."""
    line = mixed_line_end(path)
    if line is not None:
        expected = "the same line ends in the whole file, as `dos2unix` makes"
        return BadInputError(path, r"lines end in \n and in \r\n, and this is the first that differs", expected, line)
    return BadInputError(path, str(error).splitlines()[0], "a complete text file")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


def _as_number(column: str) -> str:
    return f"TRY_CAST({_name(column)} AS DOUBLE) AS {_name(column)}"


def _first_that_is_no_number(columns: Sequence[str]) -> str:
    """The name of the first of these columns with a text that is not a number; null if there is none.

    DuckDB alone reads 1_000 as 1000. It does so in files too, which is why all columns are read as text.
    """
    cases = ""
    for column in columns:
        text = _name(column)
        is_bad = f"{text} <> '' AND (contains({text}, '_') OR TRY_CAST({text} AS DOUBLE) IS NULL)"
        cases += f" WHEN {is_bad} THEN {_text(column)}"
    return f"CASE{cases} END" if cases else "NULL"


def _by_line(rejected: Rejected) -> float:
    return math.inf if rejected.line is None else rejected.line
