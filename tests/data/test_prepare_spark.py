"""The same expressions make the same data set on Spark as on DuckDB, and the same errors for bad lines."""

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hotrows.data.dataset import open_dataset
from hotrows.data.prepare import BadInputError, PrepareReport, prepare
from hotrows.data.sample import write_avazu_log, write_criteo_log, write_taobao_log

from .logs import criteo_line, describe, read_split, read_vocabulary, write_lines

pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
    # PySpark warns of pandas 3, and leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[Any]:
    """One session for all tests, which `prepare` finds. Compiling every small query would take most of the time."""
    pyspark = pytest.importorskip("pyspark.sql")
    session = (
        pyspark.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .getOrCreate()
    )
    yield session
    session.stop()


def prepare_on_both(kind: str, log: Path, **options: Any) -> tuple[Path, PrepareReport]:
    """Prepare on both engines, compare everything, and return DuckDB's data set."""
    outs = {engine: log.parent / engine for engine in ("duckdb", "spark")}
    reports = {engine: prepare(kind, log, out, engine=engine, **options) for engine, out in outs.items()}
    described = {engine: describe(out) for engine, out in outs.items()}
    for part in ("name", "schema", "splits"):
        assert described["spark"][part] == described["duckdb"][part]
    assert reports["spark"].num_rows == reports["duckdb"].num_rows
    assert reports["spark"].lookups == reports["duckdb"].lookups
    assert set(reports["spark"].skipped) == set(reports["duckdb"].skipped)
    for table in {column["table"] for column in described["duckdb"]["schema"]["categorical"]}:
        assert read_vocabulary(outs["spark"], table) == read_vocabulary(outs["duckdb"], table)
    for split in ("train", "valid", "test"):
        found = {engine: read_split(out, split) for engine, out in outs.items()}
        assert found["spark"].to_pylist() == found["duckdb"].to_pylist()
        assert sum(len(batch.label) for batch in open_dataset(outs["spark"], verify=True).loader(split, 32)) == len(
            found["duckdb"]
        )
    assert len({codec(out / "train" / "part-00000.parquet") for out in outs.values()}) == 1
    return outs["duckdb"], reports["duckdb"]


def codec(path: Path) -> str:
    return str(pq.ParquetFile(path).metadata.row_group(0).column(0).compression)


def test_criteo(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_criteo_log(log, 300, seed=5)
    lines = log.read_text().splitlines()
    lines[40:40] = [criteo_line(1, {1: -7, 2: 0}, C1="once"), "", criteo_line(7), criteo_line(), "0\t1"]
    lines[200:200] = [criteo_line(0, {3: "seven"}), criteo_line("", {1: 5})]
    out, report = prepare_on_both("criteo", write_lines(log, lines), min_count=3, test=0.2, on_error="skip")
    skipped = {skipped.reason: (skipped.num_rows, skipped.line) for skipped in report.skipped}
    assert skipped == {
        "too few fields": (1, 45), "I3 is not a number": (1, 201), "label is neither 0 nor 1": (2, 43),
    }  # fmt: skip
    rare, missing, *_ = read_vocabulary(out, "C3")
    assert min(rare[2], missing[2]) > 0
    assert 0.0 in read_split(out, "train")["I1"].to_pylist()


def test_avazu_by_day(tmp_path: Path) -> None:
    write_avazu_log(tmp_path / "log.csv.gz", 144)
    _, report = prepare_on_both("avazu", tmp_path / "log.csv.gz", split="day")
    assert report.num_samples["test"] == 48


def test_table_out_of_order(tmp_path: Path) -> None:
    config = tmp_path / "clicks.toml"
    config.write_text('label = "y"\ncategorical = ["c", "d"]\ndense = ["x"]\ntime = "t"\nlog_scale = false\n')
    rows = [f'{x / 3 - 9},{x % 2},{(x * 37) % 200},"v,{x % 13}",{x // 7 or ""}' for x in range(200)]
    log = write_lines(tmp_path / "log.csv", ["x,y,t,c,d", *rows])
    out, _ = prepare_on_both("table", log, config=config, min_count=4, valid=0.2, test=0.2)
    assert {value for value, _, _ in read_vocabulary(out, "c")} > {None, "v,1"}


def test_columns_of_any_name(tmp_path: Path) -> None:
    names = ["../../evil", "a/b", "user.id", "q'u`o", "weight", "value_0", "id", "count", "_c0", "a;b{c}(d)=", "é"]
    config = tmp_path / "clicks.toml"
    config.write_text(f'label = "label"\ncategorical = {json.dumps(names)}\n', encoding="utf-8")
    rows = [",".join(f"v{(row + column) % 4}" for column in range(len(names))) for row in range(40)]
    lines = [",".join(["", *names, "row", "label"]), *(f"{row},{text},0,{row % 2}" for row, text in enumerate(rows))]
    out, _ = prepare_on_both("table", write_lines(tmp_path / "log.csv", lines), config=config)
    assert read_split(out, "train").column_names == ["label", *names]


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    data = gzip.compress("".join(criteo_line(0, {1: row}) + "\n" for row in range(300)).encode(), mtime=0)
    log = tmp_path / "log.gz"
    for damaged in (data[:-7] + bytes([data[-7] ^ 4]) + data[-6:], data + b"garbage"):
        log.write_bytes(damaged)
        for engine in ("duckdb", "spark"):
            with pytest.raises(BadInputError, match=r"gzip member 1.*copy or download"):
                prepare("criteo", log, tmp_path / "out", engine=engine)


def test_values_that_are_no_numbers_and_no_times(tmp_path: Path) -> None:
    config = tmp_path / "clicks.toml"
    config.write_text('label = "y"\ncategorical = ["c"]\ndense = ["x"]\ntime = "t"\n')
    good = [f"{row % 2},a,{row},2024-02-{row + 10}" for row in range(20)]
    for bad in (
        "1,a,inf,2024-02-10",
        "1,a,1e39,2024-02-10",
        "1,a,1,2024-02-31",
        "1,a,1,2024-02-10 29:00",
        "1,a,1_000,2024-02-10",
    ):
        log = write_lines(tmp_path / "log.csv", ["y,c,x,t", *good[:4], bad, *good[4:]])
        words = []
        for engine in ("duckdb", "spark"):
            with pytest.raises(BadInputError, match=r"log\.csv, line 6: ") as error:
                prepare("table", log, tmp_path / "out", config=config, engine=engine)
            words.append(str(error.value))
        assert words[0] == words[1]
    lines = ["y,c,x,t", *good[:4], "1,a,nan,2024-02-29 23:00", "1,a,NaN,2024-02-29", "1,a,2.5,2024-02-29", *good[4:]]
    prepare_on_both("table", write_lines(tmp_path / "log.csv", lines), config=config)


def test_taobao_at_random(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    write_taobao_log(log, 300, seed=5)
    lines = log.read_text().splitlines()
    lines[10:10] = ["1,2", "1,2,3,stare,1511544070", "1,2,3,pv,soon"]
    _, report = prepare_on_both("taobao", write_lines(log, lines), split="random", on_error="skip")
    assert report.num_skipped == 3


def test_bad_line_is_named(session: Any, tmp_path: Path) -> None:
    session.conf.set("spark.sql.files.maxPartitionBytes", "500b")  # several parts of a small file
    lines = [criteo_line(row % 2, {1: row}, C1="a") for row in range(10)]
    for bad in ("0\t1\t2", criteo_line(0, {3: "seven"}), criteo_line(2)):
        log = write_lines(tmp_path / "log", [*lines, bad, *lines])
        words = []
        for engine in ("duckdb", "spark"):
            with pytest.raises(BadInputError, match="log, line 11: ") as error:
                prepare("criteo", log, tmp_path / "out", engine=engine)
            words.append(str(error.value))
        assert words[0] == words[1]
    session.conf.unset("spark.sql.files.maxPartitionBytes")


def test_with_the_vocabulary_of_another_data_set(tmp_path: Path) -> None:
    write_taobao_log(tmp_path / "first", 300, seed=3)
    prepare("taobao", tmp_path / "first", tmp_path / "data", engine="spark")
    write_taobao_log(tmp_path / "log", 300, seed=4)
    out, report = prepare_on_both("taobao", tmp_path / "log", vocabulary=tmp_path / "data")
    assert sum(found.num_new for found in (report.lookups or {}).values()) > 0
    for other in (tmp_path / "data", tmp_path / "spark"):
        assert describe(other)["vocabulary_checksums"] == describe(out)["vocabulary_checksums"]


def test_a_line_break_in_quotes_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "clicks.toml"
    config.write_text('label = "y"\ncategorical = ["c"]\n')
    log = write_lines(tmp_path / "log.csv", ["y,c,z", "1,a,2", '1,"a', 'b",2'])
    with pytest.raises(BadInputError, match="line 3: a quote that does not end in its line, which Spark does not read"):
        prepare("table", log, tmp_path / "out", config=config, engine="spark")
    assert not (tmp_path / "out").exists()
