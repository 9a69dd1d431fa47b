"""Prepare on Spark, for logs that outgrow one machine. Without a cluster it runs on this machine.

A Spark session that is already there is used. Otherwise a local one is started, and stopped at the end.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import accumulate
from pathlib import Path
from typing import Any

import ibis
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, functions

from hotrows.data.prepare.engines.base import ROWS_PER_GROUP, Part, Read, Rejected
from hotrows.data.prepare.errors import BadInputError, OutputError
from hotrows.data.prepare.files import is_gzip, last_readable_line, lines_of_records
from hotrows.data.prepare.log import Expression, LogFile, Table

_BAD_LINE = "_bad_line"
_GROUP = "_group"
_SQL_TYPES = {"number": "DOUBLE", "text": "STRING"}


class Spark:
    """Stores rows in Parquet files in the working directory."""

    name = "spark"
    reads_line_breaks = False  # so that files are read in parts

    def __init__(self, memory_limit: str, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self._owned = SparkSession.getActiveSession() is None
        self._session = (
            SparkSession.builder.appName("hotrows prepare")
            .config("spark.driver.memory", _java_size(memory_limit))
            .config("spark.local.dir", str(work / "spill"))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        if self._owned:
            self._session.sparkContext.setLogLevel("ERROR")
        # A line with too few fields is found only if all of its fields are parsed.
        self._session.conf.set("spark.sql.csv.parser.columnPruning.enabled", "false")
        self._ibis = ibis.pyspark.connect(self._session)
        self._work = work
        self._num_names = 0

    def read(self, file: LogFile, columns: Sequence[str], name: str) -> Read:
        types = ", ".join(f"{_name(name)} {_SQL_TYPES[kind]}" for name, kind in file.columns.items())
        assert file.delimiter is not None
        lines = self._session.read.csv(
            str(file.path),
            schema=f"{types}, {_BAD_LINE} STRING",
            sep=file.delimiter,
            header=file.header,
            quote=file.quote,
            escape=file.quote or None,
            nanValue="nan",  # Spark also reads NaN and Infinity, DuckDB reads all of these
            positiveInf="inf",
            negativeInf="-inf",
            mode="PERMISSIVE",
            columnNameOfCorruptRecord=_BAD_LINE,
        )
        try:
            parts = self._keep(lines.select(*map(_name, [*columns, _BAD_LINE])), f"{name}-lines")
        except Exception as error:
            if is_gzip(file.path) and ("EOFException" in str(error) or "ZlibDecompressor" in str(error)):
                line = last_readable_line(file.path)
                raise BadInputError(file.path, "the compressed file breaks off", "a complete .gz", line) from error
            raise
        numbered = self._numbered(parts, [*columns, _BAD_LINE])
        rejected, rejected_lines = self._rejects(file, numbered.filter(f"{_BAD_LINE} IS NOT NULL"))
        if not rejected:
            return Read(parts, ())
        good = numbered.filter(f"{_BAD_LINE} IS NULL").orderBy("row").select(*map(_name, columns))
        return Read(self._keep(good, name), rejected, rejected_lines)

    def table(self, parts: Sequence[Part], columns: Sequence[str], rows: range | None = None) -> Table:
        numbered = self._numbered(parts, columns)
        if rows is not None:
            numbered = numbered.filter((numbered["row"] >= rows.start) & (numbered["row"] < rows.stop))
        return self._view(numbered)

    def scan(self, parts: Sequence[Part], column: str) -> Iterator[pa.Array]:
        for part in parts:
            with pq.ParquetFile(part.source) as file:
                for batch in file.iter_batches(batch_size=1 << 20, columns=[column]):
                    yield batch.column(0)

    def lookup(self, path: Path) -> Table:
        return self._view(self._session.read.parquet(str(path)))

    def fetch(self, expression: Expression) -> dict[str, Any]:
        return self._frame(expression).collect()[0].asDict()

    def store(self, expression: Table, name: str, order_by: Sequence[str]) -> tuple[Part, ...]:
        ordered = self._frame(expression).orderBy(*(_name(name) for name in order_by))
        return self._keep(ordered.drop("row"), name)

    def write_vocabularies(
        self,
        samples: Table,
        targets: Mapping[str, Path],
        build: Callable[[Table], Table],
        progress: Callable[[float], None],
    ) -> None:
        progress(0.0)
        vocabularies = [
            self._frame(build(samples.select(value=name, _weight="_weight"))).withColumn(_GROUP, functions.lit(number))
            for number, name in enumerate(targets)
        ]
        # One job writes all vocabularies, because most of them are small.
        self._num_names += 1
        name = f"vocabularies-{self._num_names}"
        found = self._write_groups(reduce(DataFrame.union, vocabularies), len(targets), "id", name)
        for number, path in enumerate(targets.values()):
            found[number].rename(path)
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
        progress(0.0)
        row = functions.col("row")
        group = functions.lit(None)
        first: dict[Path, int] = {}
        num_groups = 0
        for directory, rows in targets.items():
            directory.mkdir(parents=True)
            first[directory] = num_groups
            shard = functions.floor((row - rows.start) / rows_per_shard) + num_groups
            group = functions.when((row >= rows.start) & (row < rows.stop), shard).otherwise(group)
            num_groups += -(-len(rows) // rows_per_shard)
        samples = self._frame(build(self.table(parts, columns))).withColumn(_GROUP, group)
        name = "shards-" + "-".join(directory.name for directory in targets)
        found = self._write_groups(samples.filter(f"{_GROUP} IS NOT NULL"), num_groups, "row", name)
        written = []
        for directory, rows in targets.items():
            last = first[directory] - (-len(rows) // rows_per_shard)
            shards = [found[group] for group in range(first[directory], last) if group in found]
            written.append(
                tuple(path.rename(directory / f"part-{number:05d}.parquet") for number, path in enumerate(shards))
            )
        progress(1.0)
        return written

    def close(self) -> None:
        if self._owned:
            self._session.stop()

    def _frame(self, expression: Expression) -> DataFrame:
        return self._session.sql(self._ibis.compile(expression))

    def _view(self, frame: DataFrame) -> Table:
        self._num_names += 1
        name = f"hotrows_{self._num_names}"
        frame.createOrReplaceTempView(name)
        return self._ibis.table(name)

    def _keep(self, frame: DataFrame, name: str) -> tuple[Part, ...]:
        return tuple(Part.of_file(path) for path in self._write(frame, self._work / name))

    def _write(self, frame: DataFrame, directory: Path, partition_by: str | None = None) -> tuple[Path, ...]:
        try:
            writer = frame.write.option("parquet.block.row.count.limit", ROWS_PER_GROUP)
            writer.parquet(str(directory), compression="lz4_raw", partitionBy=partition_by)
        except Exception as error:
            if "No space left" in str(error):
                raise OutputError(f"the disk of {directory} is full") from error
            raise
        return tuple(sorted(directory.glob("*.parquet")))

    def _write_groups(self, frame: DataFrame, num_groups: int, order_by: str, name: str) -> dict[int, Path]:
        """Write one Parquet file for each `_GROUP` that has rows, in this order and without `_GROUP` and `row`."""
        # Equal keys are in one partition, so each group becomes one file.
        partitioned = frame.repartition(num_groups, _GROUP).sortWithinPartitions(_GROUP, order_by).drop("row")
        self._write(partitioned, self._work / name, partition_by=_GROUP)
        files = (self._work / name).glob(f"{_GROUP}=*/*.parquet")
        return {int(path.parent.name.removeprefix(f"{_GROUP}=")): path for path in files}

    def _numbered(self, parts: Sequence[Part], columns: Sequence[str]) -> DataFrame:
        """Columns of parts, and the numbers of their rows as `row`."""
        found = self._session.read.parquet(*(str(part.source) for part in parts))
        index = functions.col("_metadata.row_index")
        names = [functions.col(_name(name)) for name in columns]
        if len(parts) == 1:
            return found.select(*names, index.alias("row"))
        paths = [Path(part.source) for part in parts]
        starts = accumulate((part.num_rows for part in parts[:-1]), initial=0)
        first = [(f"{path.parent.name}/{path.name}", start) for path, start in zip(paths, starts, strict=True)]
        offsets = self._session.createDataFrame(first, "_part STRING, _first LONG")
        part = functions.regexp_extract("_metadata.file_path", "[^/]+/[^/]+$", 0)
        placed = found.select(*names, part.alias("_part"), index.alias("_index"))
        joined = placed.join(functions.broadcast(offsets), "_part")
        return joined.select(*names, (placed["_index"] + offsets["_first"]).alias("row"))

    def _rejects(self, file: LogFile, bad: DataFrame) -> tuple[tuple[Rejected, ...], frozenset[int]]:
        fields = functions.split(_BAD_LINE, re.escape(file.delimiter or ""), -1)
        num_fields = functions.size(fields)
        found = (
            bad.groupBy(_reason(file, fields).alias("reason"))
            .agg(
                functions.count("*").alias("num_rows"),
                functions.min("row").alias("row"),
                functions.min_by(num_fields, "row").alias("num_fields"),
            )
            .orderBy("row")
            .collect()
        )
        if not found:
            return (), frozenset()
        records = [row["row"] for row in bad.select("row").orderBy("row").limit(1_000_000).collect()]
        lines = dict(zip(records, lines_of_records(file, records, ""), strict=True))
        rejected = []
        for row in found:
            expected = f"{len(file.columns)} fields"
            if row["reason"].endswith("not a number"):
                expected = "a number in " + row["reason"].removesuffix(" is not a number")
            elif row["reason"] == "too few fields" and row["num_rows"] == 1:
                expected += f", found {row['num_fields']}"
            rejected.append(Rejected(row["reason"], expected, row["num_rows"], lines.get(row["row"])))
        return tuple(rejected), frozenset(lines.values())


def _reason(file: LogFile, fields: Column) -> Column:
    """Why a line is rejected: a wrong number of fields, or the first field that should be a number and is not."""
    num_fields = functions.size(fields)
    reason = functions.when(functions.lit(False), "")
    if file.quote:
        num_quotes = functions.size(functions.split(_BAD_LINE, re.escape(file.quote), -1)) - 1
        reason = reason.when(num_quotes % 2 == 1, "a quote that does not end in its line, which Spark does not read")
    reason = reason.when(num_fields < len(file.columns), "too few fields")
    reason = reason.when(num_fields > len(file.columns), "too many fields")
    for position, (name, kind) in enumerate(file.columns.items()):
        if kind == "number":
            field = fields.getItem(position)
            no_number = (field != "") & field.try_cast("double").isNull()
            reason = reason.when(no_number, f"{name} is not a number")
    return reason.otherwise("a field is not a number")


def _java_size(memory_limit: str) -> str:
    """Spark's spelling of a size: 4GB → 4g."""
    found = re.fullmatch(r"([0-9.]+) *([KMGT])i?B", memory_limit.strip(), re.IGNORECASE)
    assert found
    factor = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}[found[2].upper()]
    return f"{max(int(float(found[1]) * factor), 1)}m"


def _name(value: str) -> str:
    return "`" + value.replace("`", "``") + "`"
