"""Prepare on Spark, where the log outgrows one machine; without a cluster it runs in this one.

A session that is already there is used as it is; otherwise a local one is started and stopped again.
"""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ibis
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as spark_functions

from hotrows.data.prepare.engines.base import ROWS_PER_GROUP, Read, Rejected
from hotrows.data.prepare.errors import BadInputError, OutputError
from hotrows.data.prepare.files import is_gzip, last_readable_line, line_with_text
from hotrows.data.prepare.log import Expression, LogFile, Table

_BAD_LINE = "_bad_line"
_SQL_TYPES = {"number": "DOUBLE", "text": "STRING"}


class Spark:
    name = "spark"

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
        self._num_views = 0

    def read(self, file: LogFile, columns: Sequence[str], directory: Path) -> Read:
        types = ", ".join(f"{_name(name)} {_SQL_TYPES[kind]}" for name, kind in file.columns.items())
        assert file.delimiter is not None
        lines = self._session.read.csv(
            str(file.path),
            schema=f"{types}, {_BAD_LINE} STRING",
            sep=file.delimiter,
            header=file.header,
            quote=file.quote,
            escape=file.quote or None,
            mode="PERMISSIVE",
            columnNameOfCorruptRecord=_BAD_LINE,
        )
        read = directory / "lines"
        try:
            parts = self._write(lines.select(*columns, _BAD_LINE), read)
        except Exception as error:
            if is_gzip(file.path) and ("EOFException" in str(error) or "ZlibDecompressor" in str(error)):
                line = last_readable_line(file.path)
                raise BadInputError(file.path, "the compressed file breaks off", "a complete .gz", line) from error
            raise
        rejected = self._rejects(file, read)
        if not rejected:
            return Read(parts, ())
        good = self.table(parts)
        good = good.filter(good[_BAD_LINE].isnull()).drop(_BAD_LINE)
        return Read(self.store(good, directory / "rows", ["row"]), rejected)

    def table(self, parts: Sequence[Path], columns: Sequence[str] = (), rows: range | None = None) -> Table:
        starts = []
        first = 0
        for part in parts:
            starts.append((part.parent.name + "/" + part.name, first))
            first += pq.read_metadata(part).num_rows
        found = self._session.read.parquet(*(str(part) for part in parts))
        names = list(columns or found.columns)
        place = found.select(
            *(spark_functions.col(_name(name)) for name in names),
            spark_functions.regexp_extract("_metadata.file_path", "[^/]+/[^/]+$", 0).alias("_part"),
            spark_functions.col("_metadata.row_index").alias("_index"),
        )
        offsets = self._session.createDataFrame(starts, "_part STRING, _first LONG")
        numbered = place.join(spark_functions.broadcast(offsets), "_part").select(
            *(spark_functions.col(_name(name)) for name in names), (place["_index"] + offsets["_first"]).alias("row")
        )
        if rows is not None:
            numbered = numbered.filter((numbered["row"] >= rows.start) & (numbered["row"] < rows.stop))
        return self._view(numbered)

    def lookup(self, path: Path) -> Table:
        return self._view(self._session.read.parquet(str(path)))

    def fetch(self, expression: Expression) -> dict[str, Any]:
        return self._frame(expression).collect()[0].asDict()

    def store(self, expression: Table, directory: Path, order_by: Sequence[str]) -> tuple[Path, ...]:
        ordered = self._frame(expression).orderBy(*(_name(name) for name in order_by))
        return self._write(ordered.drop("row"), directory)

    def write_vocabulary(self, occurrences: Table, build: Callable[[Table], Table], path: Path) -> None:
        unfinished = path.with_suffix(".parts")
        (part,) = self._write(self._frame(build(occurrences)).coalesce(1).sortWithinPartitions("id"), unfinished)
        part.rename(path)
        shutil.rmtree(unfinished)

    def write_shards(
        self,
        parts: Sequence[Path],
        columns: Sequence[str],
        targets: Mapping[Path, range],
        build: Callable[[Table], Table],
        rows_per_shard: int,
        progress: Callable[[float], None],
    ) -> list[tuple[Path, ...]]:
        written = []
        for number, (directory, rows) in enumerate(targets.items(), start=1):
            directory.mkdir(parents=True)
            samples = self._frame(build(self.table(parts, columns, rows)))
            written.append(self._write_split(samples, rows, directory, rows_per_shard) if len(rows) else ())
            progress(number / len(targets))
        return written

    def close(self) -> None:
        if self._owned:
            self._session.stop()

    def _frame(self, expression: Expression) -> DataFrame:
        return self._session.sql(self._ibis.compile(expression))

    def _view(self, frame: DataFrame) -> Table:
        self._num_views += 1
        name = f"hotrows_{self._num_views}"
        frame.createOrReplaceTempView(name)
        return self._ibis.table(name)

    def _write(self, frame: DataFrame, directory: Path, partition_by: str | None = None) -> tuple[Path, ...]:
        try:
            writer = frame.write.option("parquet.block.row.count.limit", ROWS_PER_GROUP)
            writer.parquet(str(directory), compression="zstd", partitionBy=partition_by)
        except Exception as error:
            if "No space left" in str(error):
                raise OutputError(f"the disk of {directory} is full") from error
            raise
        return tuple(sorted(directory.glob("*.parquet")))

    def _write_split(self, samples: DataFrame, rows: range, directory: Path, rows_per_shard: int) -> tuple[Path, ...]:
        number = spark_functions.floor((spark_functions.col("row") - rows.start) / rows_per_shard)
        num_shards = -(-len(rows) // rows_per_shard)
        # Equal keys stay together when Spark partitions by range: one file for each shard.
        ranged = samples.withColumn("_shard", number).repartitionByRange(num_shards, "_shard")
        unfinished = directory / "parts"
        self._write(ranged.sortWithinPartitions("_shard", "row").drop("row"), unfinished, partition_by="_shard")
        found = {int(path.parent.name.removeprefix("_shard=")): path for path in unfinished.glob("_shard=*/*.parquet")}
        shards = [
            found[shard].rename(directory / f"part-{place:05d}.parquet") for place, shard in enumerate(sorted(found))
        ]
        shutil.rmtree(unfinished)
        return tuple(shards)

    def _rejects(self, file: LogFile, read: Path) -> tuple[Rejected, ...]:
        bad = self._session.read.parquet(str(read)).filter(f"{_BAD_LINE} IS NOT NULL")
        delimiter = re.escape(file.delimiter or "")
        num_fields = spark_functions.size(spark_functions.split(_BAD_LINE, delimiter, -1))
        reason = (
            spark_functions.when(num_fields < len(file.columns), "too few fields")
            .when(num_fields > len(file.columns), "too many fields")
            .otherwise("not a number")
        )
        order = spark_functions.struct("_metadata.file_name", "_metadata.row_index")
        found = (
            bad.groupBy(reason.alias("reason"))
            .agg(spark_functions.count("*").alias("num_rows"), spark_functions.min_by(_BAD_LINE, order).alias("text"))
            .collect()
        )
        rejected = []
        for row in found:
            line = line_with_text(file.path, row["text"])
            why, expected = row["reason"], f"{len(file.columns)} fields"
            if why == "not a number":
                names = [name for name, kind in file.columns.items() if kind == "number"]
                expected = f"numbers in {', '.join(names)}"
            rejected.append(Rejected(why, expected, row["num_rows"], line))
        return tuple(sorted(rejected, key=lambda reject: reject.line or 0))


def _java_size(memory_limit: str) -> str:
    """Spark's spelling of a size: 4GB → 4g."""
    found = re.fullmatch(r"([0-9.]+) *([KMGT])i?B", memory_limit.strip(), re.IGNORECASE)
    assert found
    factor = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}[found[2].upper()]
    return f"{max(int(float(found[1]) * factor), 1)}m"


def _name(value: str) -> str:
    return "`" + value.replace("`", "``") + "`"
