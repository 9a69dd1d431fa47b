"""The same expressions give the same data set on Spark."""

import shutil
from pathlib import Path

import pytest

from hotrows.data.prepare import prepare
from hotrows.data.sample import write_taobao_log

from .logs import read_split, read_vocabulary


@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
# PySpark warns of pandas 3, and leaves sockets to the garbage collector.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_spark_prepares_the_same_data_set(tmp_path: Path) -> None:
    pyspark = pytest.importorskip("pyspark.sql")
    log = tmp_path / "log.csv"
    write_taobao_log(log, 300, seed=5)
    lines = log.read_text().splitlines()
    lines[10:10] = ["1,2", "1,2,3,stare,1511544070", "1,2,3,pv,soon"]
    log.write_text("".join(line + "\n" for line in lines))
    session = (
        pyspark.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .getOrCreate()
    )
    try:
        reports = {
            engine: prepare("taobao", log, tmp_path / engine, engine=engine, split="random", on_error="skip")
            for engine in ("spark", "duckdb")
        }
    finally:
        session.stop()
    assert reports["spark"].num_samples == reports["duckdb"].num_samples
    assert reports["spark"].num_ids == reports["duckdb"].num_ids
    assert [reports[engine].num_skipped for engine in ("spark", "duckdb")] == [3, 3]
    for table in ("user", "item", "category"):
        assert read_vocabulary(tmp_path / "spark", table) == read_vocabulary(tmp_path / "duckdb", table)
    for split in ("train", "valid", "test"):
        assert read_split(tmp_path / "spark", split).to_pylist() == read_split(tmp_path / "duckdb", split).to_pylist()
