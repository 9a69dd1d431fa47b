"""Columns of any name: they are prepared and trained, or refused by name before anything is written."""

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotrows.data.dataset import open_dataset
from hotrows.data.prepare import BadInputError, prepare
from hotrows.data.prepare.column_names import LONGEST_STEM, check_column_names, file_stems, table_name
from hotrows.train.config import RunConfig
from hotrows.train.run import run

from .logs import describe, read_vocabulary

STRANGE = [
    "../../evil", "/etc/evil", "..", ".", ".hidden", "~", "a/b", "a\\b", "user.id", "a b", "C1", "C-2", "ID[1]*?",
    "x`y", "q\"uo'te", "weight", "value_0", "id_0", "value", "id", "count", "kind", "Unnamed: 0", "é漢", "_c0", "%2F",
    "a,b", "a;b{c}(d)=", "x" * 190,
]  # fmt: skip


def write_log(path: Path, columns: list[str], kind: str, categorical: list[str], label: str = "label") -> Path:
    values = {name: [f"v{(row + i) % 4}" for row in range(60)] for i, name in enumerate(columns)}
    table = pa.Table.from_arrays(
        [pa.array(values[name]) for name in columns] + [pa.array([0, 1] * 30)], names=[*columns, label]
    )
    log = path / f"log.{kind}"
    if kind == "parquet":
        pq.write_table(table, log)
    else:
        fields = ['"' + name.replace('"', '""') + '"' for name in table.column_names]
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        log.write_text("\n".join([",".join(fields), *(",".join(map(str, row)) for row in rows)]) + "\n", "utf-8")
    config = {"label": label, "categorical": categorical}
    (path / "clicks.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
    return log


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_of_strange_names_are_prepared_and_trained(kind: str, tmp_path: Path) -> None:
    inner = tmp_path / "some" / "where"
    inner.mkdir(parents=True)
    prepare("table", write_log(inner, STRANGE, kind, STRANGE), inner / "out", config=inner / "clicks.toml")
    assert sorted(path.name for path in inner.iterdir()) == sorted([f"log.{kind}", "clicks.toml", "out"])
    assert [path.name for path in tmp_path.iterdir()] == ["some"]
    assert [path.name for path in inner.parent.iterdir()] == ["where"]
    files = {path.name for path in (inner / "out" / "vocabulary").iterdir()}
    assert {unquote(name).removesuffix(".parquet") for name in files} == set(STRANGE)
    assert {"C1.parquet", "C-2.parquet", "weight.parquet", "user.id.parquet"} < files
    for name in STRANGE:
        assert {value for value, _, _ in read_vocabulary(inner / "out", table_name(name))} == {
            None,
            "v0",
            "v1",
            "v2",
            "v3",
        }
    assert set(open_dataset(inner / "out").counts()) == set(map(table_name, STRANGE))
    config = {
        "data": str(inner / "out"), "out": str(inner / "run"), "device": "cpu", "model": {"name": "dlrm", "dim": 4},
        "cache": {"size": "100%", "policy": "frequency"}, "train": {"batch_size": 16},
    }  # fmt: skip
    assert run(RunConfig.from_dict(config, "test"), progress=False).summary["steps"] == 3


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["row"], "prepare uses the name of column 'row' itself"),
        (["Row"], "prepare uses the name of column 'Row' itself"),
        (["file_row_number"], "prepare uses the name of column 'file_row_number' itself"),
        (["_value_1"], "prepare uses the name of column '_value_1' itself"),
        (["Label"], "column 'Label' has the name of the labels"),
        (["ID", "id"], "columns 'ID' and 'id' differ in case only"),
        (["nul\0"], r"column 'nul\\x00' has an unprintable character"),
        (["x" * 201], "the name of column 'x+…' needs 201 bytes as a file name; expected at most 200"),
        (["é" * 34], "the name of column 'é+…' needs 204 bytes as a file name"),
        ([""], "a column has the empty name ''"),
    ],
)
def test_columns_that_are_refused_by_name(columns: list[str], message: str, kind: str, tmp_path: Path) -> None:
    log = write_log(tmp_path, [*columns, "c"], kind, [*columns, "c"], label="y")
    with pytest.raises(BadInputError, match=rf"clicks.toml: {message}.*rename the column in the log"):
        prepare("table", log, tmp_path / "out", config=tmp_path / "clicks.toml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clicks.toml", f"log.{kind}"]


@pytest.mark.parametrize("label", ["row", "rowid"])
def test_a_label_column_that_is_refused_by_name(label: str, tmp_path: Path) -> None:
    log = write_log(tmp_path, ["c"], "csv", ["c"], label=label)
    with pytest.raises(BadInputError, match=f"prepare uses the name of column '{label}' itself"):
        prepare("table", log, tmp_path / "out", config=tmp_path / "clicks.toml")


@pytest.mark.parametrize("unused", [["", ""], ["Unnamed: 0", "row"], ["C", "label"], ["x", "x"], ["../x", "rowid"]])
def test_columns_that_are_not_read_may_have_any_name(unused: list[str], tmp_path: Path) -> None:
    log = write_log(tmp_path, ["c"], "csv", ["c"], label="y")
    header, *rows = log.read_text().splitlines()
    log.write_text("\n".join([",".join([*unused, header]), *(f"1,2,{row}" for row in rows)]) + "\n")
    prepare("table", log, tmp_path / "out", config=tmp_path / "clicks.toml")
    assert [column["name"] for column in describe(tmp_path / "out")["schema"]["categorical"]] == ["c"]


def test_a_needed_column_that_is_there_twice(tmp_path: Path) -> None:
    log = write_log(tmp_path, ["c"], "csv", ["c"], label="y")
    log.write_text("".join(f"c,{line}\n" for line in log.read_text().splitlines()))
    with pytest.raises(BadInputError, match=r"log\.csv: several columns are named 'c'; .*rename the column"):
        prepare("table", log, tmp_path / "out", config=tmp_path / "clicks.toml")
    log = write_log(tmp_path, ["c", "C"], "parquet", ["c"], label="y")
    with pytest.raises(BadInputError, match=r"log\.parquet: several columns are named 'c' or 'C'"):
        prepare("table", log, tmp_path / "out", config=tmp_path / "clicks.toml")


@given(st.lists(st.text(max_size=12), unique=True, max_size=6))
def test_file_names_are_different_and_stay_in_their_directory(names: list[str]) -> None:
    try:
        for name in names:
            check_column_names(Path("clicks.toml"), [name], [name])
    except BadInputError:
        return
    stems = file_stems(names)
    assert len({stem.casefold() for stem in stems.values()}) == len(names)
    for name, stem in stems.items():
        assert unquote(stem) == name
        assert Path("a", f"{stem}.parquet").resolve().parent == Path("a").resolve()
        assert len(stem) <= LONGEST_STEM
    assert len({table_name(name) for name in names}) == len(names)
    assert not any("." in table_name(name) for name in names)
