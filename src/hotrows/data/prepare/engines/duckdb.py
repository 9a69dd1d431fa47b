"""Prepare on DuckDB: in this process, out of core under a memory limit."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import duckdb
import ibis

from hotrows.data.prepare.engines.base import ROWS_PER_GROUP, Read, Rejected
from hotrows.data.prepare.errors import BadInputError, OutputError
from hotrows.data.prepare.files import is_gzip, last_readable_line
from hotrows.data.prepare.log import Expression, LogFile, Table

_SQL_TYPES = {"number": "DOUBLE", "text": "VARCHAR"}
_REASONS = {
    "CAST": "not a number",
    "MISSING COLUMNS": "too few fields",
    "TOO MANY COLUMNS": "too many fields",
    "INVALID ENCODING": "not UTF-8",
    "UNQUOTED VALUE": "a quote that does not end",
    "LINE SIZE OVER MAXIMUM": "a line too long",
}
# Files that are read a few times and thrown away, and files that stay.
_WORKING = "COMPRESSION uncompressed, WRITE_BLOOM_FILTER false, DICTIONARY_SIZE_LIMIT 4000"
_FINAL = f"COMPRESSION lz4_raw, WRITE_BLOOM_FILTER false, ROW_GROUP_SIZE {ROWS_PER_GROUP}"


class DuckDB:
    name = "duckdb"

    def __init__(self, memory_limit: str, work: Path) -> None:
        spill = work / "spill"
        spill.mkdir(parents=True)
        self._ibis = ibis.duckdb.connect(memory_limit=memory_limit, temp_directory=str(spill))
        self._connection: duckdb.DuckDBPyConnection = self._ibis.con
        self._connection.execute("SET enable_progress_bar = false")
        self._vocabulary = ""

    def read(self, file: LogFile, columns: Sequence[str], directory: Path) -> Read:
        directory.mkdir(parents=True)
        target = directory / "part-00000.parquet"
        types = ", ".join(f"{_text(name)}: '{_SQL_TYPES[kind]}'" for name, kind in file.columns.items())
        quote = _text(file.quote)
        assert file.delimiter is not None
        source = (
            f"read_csv({_text(str(file.path))}, auto_detect = false, delim = {_text(file.delimiter)}, "
            f"header = {str(file.header).lower()}, quote = {quote}, escape = {quote}, columns = {{{types}}}, "
            f"compression = '{'gzip' if is_gzip(file.path) else 'none'}', store_rejects = true, "
            "rejects_table = 'rejects', rejects_scan = 'reject_scans')"
        )
        chosen = ", ".join(_name(name) for name in columns)
        try:
            self._copy(f"SELECT {chosen} FROM {source}", target, _WORKING)
        except (duckdb.IOException, duckdb.InvalidInputException) as error:
            if not is_gzip(file.path):
                raise BadInputError(file.path, str(error), "a complete text file") from error
            line = last_readable_line(file.path)
            raise BadInputError(file.path, "the compressed file breaks off", "a complete .gz", line) from error
        read = self._rejects(file, target)
        self._run("DROP TABLE rejects; DROP TABLE reject_scans")
        return read

    def table(self, parts: Sequence[Path], columns: Sequence[str] = (), rows: range | None = None) -> Table:
        tables = []
        first = 0
        for part in parts:
            num_rows = self._num_rows(part)
            low, high = (rows.start - first, rows.stop - first) if rows is not None else (0, num_rows)
            if low < num_rows and high > 0:
                table = self._ibis.read_parquet(part, file_row_number=True)
                # On the file's own row number, so that DuckDB skips the row groups outside.
                if low > 0:
                    table = table.filter(table.file_row_number >= low)
                if high < num_rows:
                    table = table.filter(table.file_row_number < high)
                names = columns or [name for name in table.columns if name != "file_row_number"]
                tables.append(table.select(*names, row=table.file_row_number + first))
            first += num_rows
        return reduce(lambda left, right: left.union(right), tables)

    def lookup(self, path: Path) -> Table:
        return self._ibis.read_parquet(path)

    def fetch(self, expression: Expression) -> dict[str, Any]:
        return self._ibis.to_pyarrow(expression).to_pylist()[0]  # type: ignore[no-any-return]

    def store(self, expression: Table, directory: Path, order_by: Sequence[str]) -> tuple[Path, ...]:
        directory.mkdir(parents=True)
        target = directory / "part-00000.parquet"
        self._copy(self._ordered(expression, order_by), target, _WORKING)
        return (target,)

    def write_vocabulary(self, occurrences: Table, build: Callable[[Table], Table], path: Path) -> None:
        self._ibis.create_view("occurrences", occurrences, overwrite=True)
        # Compiled once for all columns: with many of them Ibis would take longer than DuckDB.
        self._vocabulary = self._vocabulary or self._ordered(build(self._ibis.table("occurrences")), ["id"])
        self._copy(self._vocabulary, path, _FINAL)

    def write_shards(
        self,
        parts: Sequence[Path],
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
                # The query is compiled once and reads a view, which is made anew for every shard.
                self._ibis.create_view("shard", self.table(parts, columns, range(start, stop)), overwrite=True)
                query = query or self._ordered(build(self._ibis.table("shard")), ["row"])
                path = directory / f"part-{len(shards):05d}.parquet"
                self._copy(query, path, _FINAL)
                if self._num_rows(path):
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
        # A sum of integers is a HUGEINT to DuckDB, an int64 to Ibis; Parquet would get a double.
        types = expression.schema()
        kept = ", ".join(
            f"CAST({_name(name)} AS BIGINT) AS {_name(name)}" if types[name].is_int64() else _name(name)
            for name in expression.columns
            if name != "row"
        )
        order = ", ".join(_name(name) for name in order_by)
        return f"SELECT {kept} FROM ({self._ibis.compile(expression)}) ORDER BY {order}"

    def _copy(self, query: str, target: Path, options: str) -> None:
        # DuckDB keeps the order of the rows when it writes a single file, not when it writes several.
        self._run(f"COPY ({query}) TO {_text(str(target))} (FORMAT parquet, {options})")

    def _run(self, sql: str) -> None:
        try:
            self._connection.execute(sql)
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            if "No space left" in str(error) or "max_temp_directory_size" in str(error):
                raise OutputError(f"the disk is full: {error}") from error
            raise

    def _rejects(self, file: LogFile, target: Path) -> Read:
        # A short line is listed once for every field that it lacks.
        lines = """
            SELECT line, min_by(error_type, column_idx) AS error_type, min_by(column_name, column_idx) AS column_name,
                   min(column_idx) AS num_fields
            FROM rejects GROUP BY line
        """
        found = self._connection.execute(
            f"""SELECT error_type, CASE WHEN error_type = 'CAST' THEN column_name END AS column_name, count(*),
                       min(line), min_by(num_fields, line)
                FROM ({lines}) GROUP BY ALL ORDER BY min(line)"""
        ).fetchall()
        rejected = []
        for kind, column, num_rows, line, num_fields in found:
            reason = _REASONS.get(str(kind), str(kind).lower())
            expected = f"{len(file.columns)} fields"
            if kind == "CAST":
                reason, expected = f"{column} is not a number", f"a number in {column}"
            elif kind == "MISSING COLUMNS" and num_rows == 1:
                expected += f", found {num_fields}"
            rejected.append(Rejected(reason, expected, num_rows, line))
        numbers: frozenset[int] = frozenset()
        if rejected:
            few = self._connection.execute("SELECT DISTINCT line FROM rejects ORDER BY line LIMIT 1000000").fetchall()
            numbers = frozenset(line for (line,) in few)
        return Read((target,), tuple(rejected), numbers)

    def _num_rows(self, path: Path) -> int:
        found = self._connection.execute(f"SELECT num_rows FROM parquet_file_metadata({_text(str(path))})").fetchone()
        assert found is not None
        return int(found[0])


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'
