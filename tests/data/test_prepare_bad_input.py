"""The errors of prepare for bad logs. No files are left after an error."""

import errno
import gzip
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotrows.data.prepare import BadInputError, OutputError, prepare
from hotrows.data.sample import write_avazu_log

from .logs import criteo_line, read_split, write_lines

GOOD = [criteo_line(row % 2, {1: row}, C1="a") for row in range(10)]


def with_line(number: int, line: str) -> list[str]:
    return [*GOOD[: number - 1], line, *GOOD[number:]]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (with_line(4, "0\t1\t2"), r"log, line 4: too few fields; expected 40 fields, found 3"),
        (with_line(5, GOOD[0] + "\tmore"), r"log, line 5: too many fields; expected 40 fields"),
        (with_line(6, criteo_line(0, {3: "seven"})), r"log, line 6: I3 is not a number; expected a number in I3"),
        (with_line(6, criteo_line(0, {3: "1_000"})), r"log, line 6: I3 is not a number; expected a number in I3"),
        (with_line(6, criteo_line(0, {4: "1e1_0", 5: "x"})), r"log, line 6: I4 is not a number"),
        ([GOOD[0], "", "0\t1", criteo_line("1_0")], r"log, line 3: too few fields; expected 40 fields, found 2"),
        ([GOOD[0], "", criteo_line("1_0"), "0\t1"], r"log, line 3: label is not a number; expected a number in label"),
        (with_line(7, criteo_line("x")), r"log, line 7: label is not a number"),
        (with_line(7, criteo_line(2)), r"log, line 7: label is neither 0 nor 1; expected label 0 or 1"),
        (with_line(3, criteo_line("")), r"log, line 3: label is neither 0 nor 1"),
        (with_line(8, criteo_line(1, {2: "inf"})), r"log, line 8: I2 is infinite"),
        (
            with_line(8, criteo_line(1, {2: "-1e39"})),
            r"log, line 8: I2 is infinite or too large; expected .* 3.4e38 in I2",
        ),
        ([GOOD[0], "", *with_line(5, criteo_line(2))], r"log, line 7: label is neither"),
        ([line.replace("\t", ",") for line in GOOD], r"log, line 1: no '\\t' in .*; expected label, 13 integers"),
        ([""], r"log, line 1: the first line is empty"),
    ],
)
def test_bad_line_is_named(lines: list[str], message: str, tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log", lines)
    with pytest.raises(BadInputError, match=message):
        prepare("criteo", log, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_skip_counts_by_reason(tmp_path: Path) -> None:
    lines = [*GOOD, "0\t1", criteo_line(5), "0", criteo_line(0, {1: "x"}), criteo_line(0, {1: "1_000"}), *GOOD]
    report = prepare("criteo", write_lines(tmp_path / "log", lines), tmp_path / "out", on_error="skip", test=0.5)
    assert report.num_rows == 25
    assert {skipped.reason: (skipped.num_rows, skipped.line) for skipped in report.skipped} == {
        "too few fields": (2, 11),
        "I1 is not a number": (2, 14),
        "label is neither 0 nor 1": (1, 12),
    }
    assert sum(report.num_samples.values()) == 20
    assert read_split(tmp_path / "out", "test")["label"].to_pylist() == [0.0, 1.0] * 5


def empty(path: Path) -> None:
    path.write_bytes(b"")


def truncated_gzip(path: Path) -> None:
    data = gzip.compress("".join(line + "\n" for line in GOOD * 1_000).encode(), compresslevel=0)
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("damage", "message"),
    [(empty, "the file is empty"), (truncated_gzip, r"log.gz, line [\d,]+: the compressed file breaks off")],
)
def test_broken_files(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    damage(tmp_path / "log.gz")
    with pytest.raises(BadInputError, match=message):
        prepare("criteo", tmp_path / "log.gz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such file"):
        prepare("criteo", tmp_path / "log", tmp_path / "out")


def test_only_bad_rows(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log", [criteo_line(3)] * 3)
    with pytest.raises(BadInputError, match="no usable row"):
        prepare("criteo", log, tmp_path / "out", on_error="skip")
    assert not (tmp_path / "out").exists()


def test_missing_column_and_wrong_delimiter_of_a_header(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    write_avazu_log(log, 20)
    text = log.read_text()
    log.write_text(text.replace("device_ip", "address", 1))
    with pytest.raises(BadInputError, match=r"log.csv, line 1: no column device_ip; expected a header with it; it has"):
        prepare("avazu", log, tmp_path / "out")
    log.write_text(text.replace(",", ";"))
    with pytest.raises(BadInputError, match=r"line 1: no ',' in"):
        prepare("avazu", log, tmp_path / "out")
    log.write_text(text.splitlines()[0] + "\n")
    with pytest.raises(BadInputError, match="no rows after the header"):
        prepare("avazu", log, tmp_path / "out")
    lines = text.splitlines()
    lines[5] = lines[5].replace(",141021", ",14-102", 1)
    with pytest.raises(BadInputError, match="line 6: hour is not YYMMDDHH"):
        prepare("avazu", write_lines(log, lines), tmp_path / "out")


def test_fractions_are_numbers_and_nan_is_missing(tmp_path: Path) -> None:
    lines = [*GOOD, criteo_line(0, {1: "3.5"}), criteo_line(0, {1: "NaN"}), criteo_line(0, {1: "3.4e38"})]
    prepare("criteo", write_lines(tmp_path / "log", lines), tmp_path / "out", valid=0, test=0)
    found = read_split(tmp_path / "out", "train")["I1"].to_pylist()
    assert found[10:] == pytest.approx([math.log(4.5), 0, math.log(3.4e38)])


@pytest.mark.parametrize(
    ("hour", "exists"),
    [
        ("14102129", False), ("14102124", False), ("14102123", True), ("14023101", False), ("14022901", False),
        ("16022901", True), ("14043100", False), ("14123100", True),
    ],
)  # fmt: skip
def test_hours_of_impossible_dates(hour: str, exists: bool, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    write_avazu_log(log, 20)
    lines = log.read_text().splitlines()
    fields = lines[5].split(",")
    fields[lines[0].split(",").index("hour")] = hour
    lines[5] = ",".join(fields)
    write_lines(log, lines)
    if exists:
        assert prepare("avazu", log, tmp_path / "out").num_rows == 20
        return
    with pytest.raises(BadInputError, match=r"log\.csv, line 6: hour is not YYMMDDHH"):
        prepare("avazu", log, tmp_path / "out")


@pytest.mark.parametrize(
    ("times", "time", "exists"),
    [
        (["2024-02-01 10:00:00", "2024-02-02 10:00:00"], time, exists)
        for time, exists in [
            ("2024-02-31 10:00:00", False), ("2024-02-29", True), ("2023-02-29", False), ("1900-02-29", False),
            ("2000-02-29T23:59:59.5Z", True), ("2024-02-03 29:00:00", False), ("2024-13-01", False), ("nan", False),
            ("soon", False), ("", False), ("2024-02-03 10:00+02:00", True), ("2024-02-03 10:00+25:00", False),
            ("2024-02-03 10:00+02:60", False),
        ]
    ]
    + [
        (["1", "2.5"], time, exists)
        for time, exists in [
            ("3.5", True), ("inf", False), ("NaN", False), ("", False), ("1e20", True), ("1e39", False),
        ]
    ],
)  # fmt: skip
def test_impossible_times_of_a_table(times: list[str], time: str, exists: bool, tmp_path: Path) -> None:
    (tmp_path / "clicks.toml").write_text('label = "y"\ncategorical = ["c"]\ntime = "t"\n')
    log = write_lines(tmp_path / "log.csv", ["y,c,t", *(f"1,a,{each}" for each in [*times, time])])
    if exists:
        assert prepare("table", log, tmp_path / "out", config=tmp_path / "clicks.toml").num_rows == 3
        return
    with pytest.raises(BadInputError, match=r"log\.csv, line 4: no t, or no possible time; expected a time in t"):
        prepare("table", log, tmp_path / "out", config=tmp_path / "clicks.toml")


def test_a_time_or_a_dense_value_with_an_underscore(tmp_path: Path) -> None:
    """DuckDB reads 1_000 as 1000."""
    (tmp_path / "clicks.toml").write_text('label = "y"\ncategorical = ["c"]\ndense = ["x"]\ntime = "t"\n')
    for bad, name in [("1,a,5,1_000", "t"), ("1,a,1_000,5", "x"), ('1,a,"1_000",5', "x"), ("1_0,a,5,1_0", "y")]:
        log = write_lines(tmp_path / "log.csv", ["y,c,x,t", "0,a_b,1,1", "", bad, "1,a,2,2"])
        with pytest.raises(
            BadInputError, match=rf"log\.csv, line 4: {name} is not a number; expected a number in {name}"
        ):
            prepare("table", log, tmp_path / "out", config=tmp_path / "clicks.toml")


def test_unknown_behavior(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.csv", ["1,2,3,pv,1511544070", "1,2,3,stare,1511544071"])
    with pytest.raises(BadInputError, match="line 2: unknown behavior; expected behavior pv, cart, fav, buy"):
        prepare("taobao", log, tmp_path / "out")


def test_parquet_cut_short_or_without_a_column(tmp_path: Path) -> None:
    config = tmp_path / "columns.toml"
    config.write_text('label = "y"\ncategorical = ["c"]\n')
    log = tmp_path / "log.parquet"
    pq.write_table(pa.table({"y": [0, 1], "d": ["a", "b"]}), log)
    with pytest.raises(BadInputError, match=r"no column c; expected one of y, d"):
        prepare("table", log, tmp_path / "out", config=config)
    pq.write_table(pa.table({"y": ["no", "yes"], "c": ["a", "b"]}), log)
    with pytest.raises(BadInputError, match="column y is string; expected numbers"):
        prepare("table", log, tmp_path / "out", config=config)
    log.write_bytes(log.read_bytes()[:-20])
    with pytest.raises(BadInputError, match="expected a complete Parquet file"):
        prepare("table", log, tmp_path / "out", config=config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label = ", "columns.toml: "),
        ('label = "y"', "no categorical"),
        ('label = "y"\ncategorical = ["c"]\nlable = 1', "unknown setting 'lable'; expected one of label, categorical"),
        ('label = "y"\ncategorical = "c"', "categorical is 'c'; expected a list"),
        ('label = "y"\ncategorical = [1]', r"categorical is \[1\]; expected a list of texts"),
        ('label = "y"\ncategorical = [["c"]]', r"categorical is \[\['c'\]\]; expected a list of texts"),
        ('label = "y"\ncategorical = ["c"]\ndense = [1]', r"dense is \[1\]; expected a list of texts"),
        ('label = "y"\ncategorical = ["c"]\ntime = ""', "time is empty; expected a value, or no time"),
        ('label = "y"\ncategorical = ["c"]\ndelimiter = ""', "delimiter is empty"),
        ('label = "y"\ncategorical = ["c"]\ncolumns = []', "columns is empty"),
        ("label = " + "[" * 5000, "columns.toml: maximum recursion depth"),
    ],
)
def test_bad_config(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "columns.toml").write_text(text)
    log = write_lines(tmp_path / "log.csv", ["y,c", "0,a"])
    with pytest.raises(BadInputError, match=message):
        prepare("table", log, tmp_path / "out", config=tmp_path / "columns.toml")


def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    bom = b"\xef\xbb\xbf"
    (tmp_path / "columns.toml").write_bytes(bom + b'label = "y"\ncategorical = ["c"]')
    (tmp_path / "log.csv").write_bytes(bom + b"y,c\n0,a\n1,b\n")
    report = prepare("table", tmp_path / "log.csv", tmp_path / "out", config=tmp_path / "columns.toml", valid=0, test=0)
    assert report.num_rows == 2


def test_existing_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(OutputError, match="exists already"):
        prepare("criteo", write_lines(tmp_path / "log", GOOD), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hotrows.data.prepare.pipeline.write_description", full)
    with pytest.raises(OutputError, match="is full"):
        prepare("criteo", write_lines(tmp_path / "log", GOOD), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_killed_run_leaves_no_data_set_and_can_be_run_again(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log", GOOD * 5)
    code = f"""if True:
        import os
        from pathlib import Path
        from hotrows.data.prepare import prepare
        def die(phase, done):
            if phase == "writing":
                os.kill(os.getpid(), 9)
        prepare("criteo", Path({str(log)!r}), Path({str(tmp_path / "out")!r}), progress=die)
    """
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.iterdir())) == 2
    prepare("criteo", log, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "out"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "crito"}, {"engine": "polars"}, {"split": "week"}, {"test": 1.5}, {"valid": 0.6, "test": 0.4},
        {"on_error": "ignore"}, {"min_count": 0}, {"kind": "table"}, {"split": "day"}, {"memory_limit": "plenty"},
    ],
)  # fmt: skip
def test_wrong_options(wrong: dict[str, object], tmp_path: Path) -> None:
    options = {"kind": "criteo", **wrong}
    with pytest.raises(ValueError, match=r"known|fraction|leave|must|needs|memory_limit"):
        prepare(input=write_lines(tmp_path / "log", GOOD), out=tmp_path / "out", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
