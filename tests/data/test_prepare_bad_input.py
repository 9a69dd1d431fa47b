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
from hotrows.data.sample import write_avazu_log, write_criteo_log

from .logs import criteo_line, read_split, read_vocabulary, write_lines

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
        *(
            (
                f'label = "y"\ncategorical = ["c"]\ndelimiter = {delimiter}',
                "delimiter is .*; expected 1 to 4 characters",
            )
            for delimiter in ('"abcde"', '"\\n"', "'\"'", '"\\r"')
        ),
        ("label = " + "[" * 5000, "columns.toml: maximum recursion depth"),
    ],
)
def test_bad_config(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "columns.toml").write_text(text)
    log = write_lines(tmp_path / "log.csv", ["y,c", "0,a"])
    with pytest.raises(BadInputError, match=message):
        prepare("table", log, tmp_path / "out", config=tmp_path / "columns.toml")


TABLE = 'label = "y"\ncategorical = ["c"]\ndense = ["x"]\n'
ROWS = b"1,a,2\n0,b,3\n" * 5
LONG = b"a" * 50_000_000

TABLES = [
    pytest.param(b"\xff\xfey\0,\0c\0,\0x\0\n\0", r"log.csv: the file is UTF-16; expected UTF-8", id="UTF-16"),
    pytest.param(b"y,c,x,c\n" + ROWS, r"several columns are named 'c'; expected one column of each", id="twice"),
    pytest.param(b"y,c,x\r" + ROWS.replace(b"\n", b"\r"), r"line 1: lines end in \\r alone; expected", id="CR"),
    pytest.param(b"y,c,x\r\n" + ROWS, r"line 2: lines end in \\n and in \\r\\n, and this", id="LF in CRLF"),
    pytest.param(
        b"y,c,x\n" + ROWS + b"1,a,2\r\n", r"line 12: lines end in .*; expected the same line ends", id="CRLF in LF"
    ),
    pytest.param(
        b"y,c,x\n" + ROWS * 50_000 + b"1,a,2\r\n" * 100, r"line 500,002: lines end in \\n and in", id="CRLF late"
    ),
    pytest.param(b'y,"c\nd",x,c\n' + ROWS, r"line 1: a name in quotes has a line break, or its quotes", id="name"),
    pytest.param(b'y,c,x\n1,"a\nb",2\n0,b\n', r"line 4: too few fields; expected 3 fields, found 2", id="break, few"),
    pytest.param(b'y,c,x\n1,"a\n""b",2\n0,b,z\n', r"line 4: x is not a number", id="break, no number"),
    pytest.param(b'y,c,x\n1,"a\n\nb",2\n\n7,b,3\n', r"line 6: y is neither 0 nor 1", id="break, no label"),
    pytest.param(b'y,c,x\n1,"a\n",2\n1\n1,"\n",2\n1,b,z\n', r"line 4: too few fields", id="breaks"),
    pytest.param(b'y,c,x\n1,"a,2\n' + ROWS, r"line 2: a quote that does not end", id="open quote"),
    pytest.param(
        b"y,c,x\n1,a,2\n1," + LONG + b",2\n", r"line 3: a line too long; expected lines of at most 32,000,000 bytes",
        id="50 MB",
    ),
    pytest.param(
        b"y,c,x\n1,a,2\n" + b"1," * 25_000_000 + b"\n",
        r"line 3: more than 32,768 fields in one line; expected 3 fields, and a line end behind them", id="many fields",
    ),
    pytest.param(LONG + b"\n" + ROWS, r"log.csv: no CSV in 'aaaa.*\(field larger than field limit", id="long name"),
    pytest.param(
        b",".join(b"n%d" % number for number in range(1000)) + b"\n" + ROWS, "it has n0, .*, n49 and 950 more",
        id="many names",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), TABLES)
def test_tables_that_cannot_be_read(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "columns.toml").write_text(TABLE)
    (tmp_path / "log.csv").write_bytes(content)
    with pytest.raises(BadInputError, match=message):
        prepare("table", tmp_path / "log.csv", tmp_path / "out", config=tmp_path / "columns.toml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["columns.toml", "log.csv"]


def test_lines_of_skipped_rows_behind_line_breaks_in_quotes(tmp_path: Path) -> None:
    (tmp_path / "columns.toml").write_text(TABLE)
    (tmp_path / "log.csv").write_bytes(b'y,c,x\n1,"a\nb",2\n1\n0,"\n",z\n1,"q\n",1\n5,b,1\n' + ROWS)
    report = prepare(
        "table", tmp_path / "log.csv", tmp_path / "out", config=tmp_path / "columns.toml", on_error="skip", min_count=1,
        valid=0, test=0,
    )  # fmt: skip
    assert {skipped.reason: skipped.line for skipped in report.skipped} == {
        "too few fields": 4, "x is not a number": 5, "y is neither 0 nor 1": 9,
    }  # fmt: skip
    assert {value for value, _, _ in read_vocabulary(tmp_path / "out", "c")} == {None, "a\nb", "q\n", "a", "b"}


def test_logs_without_a_header_that_are_not_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"1\t" * 1_000_000)
    with pytest.raises(BadInputError, match=r"log, line 1: more than .* fields in one line; expected 40 fields"):
        prepare("criteo", log, tmp_path / "out")
    log.write_bytes(gzip.compress(log.read_bytes()))
    with pytest.raises(BadInputError, match=r"log, line 1: more than .* fields in one line; expected 40 fields"):
        prepare("criteo", log, tmp_path / "out")
    log.write_bytes("\r".join(GOOD).encode())
    with pytest.raises(BadInputError, match=r"log, line 1: lines end in \\r alone"):
        prepare("criteo", log, tmp_path / "out")
    ended = [criteo_line(0, C26="a")] * 9
    log.write_bytes(("\r\n".join(ended) + "\n" + "\n".join(ended)).encode())
    with pytest.raises(BadInputError, match=r"log, line 9: lines end in \\n and in \\r\\n"):
        prepare("criteo", log, tmp_path / "out")


def test_a_header_of_avazu_with_a_name_twice(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    write_avazu_log(log, 20)
    log.write_text(log.read_text().replace("device_id", "device_ip", 1))
    with pytest.raises(BadInputError, match=r"several columns are named 'device_ip'|no column device_id"):
        prepare("avazu", log, tmp_path / "out")
    lines = [f"{line},{'C14' if number == 0 else 1}" for number, line in enumerate(log.read_text().splitlines())]
    write_lines(log, [lines[0].replace("device_ip", "device_id", 1), *lines[1:]])
    with pytest.raises(BadInputError, match="several columns are named 'C14'; expected one column of each name"):
        prepare("avazu", log, tmp_path / "out")


def test_a_first_row_without_its_time(tmp_path: Path) -> None:
    (tmp_path / "columns.toml").write_text('label = "y"\ncategorical = ["c"]\ntime = "t"\n')
    log = write_lines(tmp_path / "log.csv", ["y,c,t", "1,a", "1,a,7"])
    with pytest.raises(BadInputError, match=r"log\.csv, line 2: too few fields; expected 3 fields, found 2"):
        prepare("table", log, tmp_path / "out", config=tmp_path / "columns.toml")
    write_lines(log, ["y,c,t", '1,"a,b",7', "1,a,8"])
    report = prepare("table", log, tmp_path / "out", config=tmp_path / "columns.toml", valid=0, test=0)
    assert report.num_rows == 2


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
@pytest.mark.parametrize("header", [True, False])
def test_a_byte_order_mark_is_no_part_of_a_value(name: str, header: bool, tmp_path: Path) -> None:
    columns = "" if header else 'columns = ["c", "y", "x"]\n'
    (tmp_path / "columns.toml").write_text(TABLE + columns)
    content = b"\xef\xbb\xbf" + b"c,y,x\n" * header + b"a,1,2\nb,0,3\n" * 2
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    options = {"config": tmp_path / "columns.toml", "valid": 0, "test": 0, "min_count": 1}
    assert prepare("table", tmp_path / name, tmp_path / "out", **options).num_rows == 4
    assert [value for value, _, _ in read_vocabulary(tmp_path / "out", "c")] == [None, None, "a", "b"]


def test_too_little_memory_for_a_log_of_15_mb(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_criteo_log(log, 62_000, seed=1)
    assert log.stat().st_size > 14_000_000
    message = "the engine needs more memory for this log than memory_limit=20MB allows: give a larger one, such as 1GB"
    with pytest.raises(MemoryError, match=message):
        prepare("criteo", log, tmp_path / "out", memory_limit="20MB")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


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
