"""`prepare` with the vocabulary of another data set."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from hotrows.cli.main import app
from hotrows.data.checksums import OWN_CHECKSUM, checksum_of_vocabulary, sha256_of_description
from hotrows.data.dataset import open_dataset
from hotrows.data.prepare import prepare
from hotrows.data.sample import write_criteo_log, write_taobao_log
from hotrows.data.verify import verify

from .logs import criteo_line, describe, read_split, read_vocabulary, write_lines

FIRST = [criteo_line(row % 2, C1=f"v{row % 3}", C2="once" if row == 5 else "x") for row in range(20)]
SECOND = [
    criteo_line(0, C1="v1", C2="x"),
    criteo_line(1, C1="new", C2="once"),
    criteo_line(1, C1="v1", C2=""),
    criteo_line(0, C1="newer", C2="x"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    prepare("criteo", write_lines(tmp_path / "first", FIRST), tmp_path / "data")
    return tmp_path / "data"


def test_known_values_keep_their_ids_and_new_ones_are_rare_and_counted(data: Path, tmp_path: Path) -> None:
    log = write_lines(tmp_path / "second", SECOND)
    report = prepare("criteo", log, tmp_path / "more", vocabulary=data, valid=0, test=0.25)
    ids = {value: id for value, id, _ in read_vocabulary(data, "C1")}
    assert read_split(tmp_path / "more", "train")["C1"].to_pylist() == [ids["v1"], 0, ids["v1"]]
    assert read_split(tmp_path / "more", "test")["C1"].to_pylist() == [0]
    assert read_split(tmp_path / "more", "train")["C2"].to_pylist() == [2, 0, 1]
    assert report.lookups is not None
    assert [(report.lookups[name].num, report.lookups[name].num_new) for name in ("C1", "C2", "C3")] == [
        (4, 2), (4, 1), (4, 0),
    ]  # fmt: skip
    for table in ("C1", "C2"):
        before, after = read_vocabulary(data, table), read_vocabulary(tmp_path / "more", table)
        assert [one[:2] for one in before] == [one[:2] for one in after]
    assert read_vocabulary(tmp_path / "more", "C1")[0] == (None, 0, 1)
    assert {value: count for value, _, count in read_vocabulary(tmp_path / "more", "C1")[2:]} == {
        "v0": 0, "v1": 2, "v2": 0,
    }  # fmt: skip
    described = describe(tmp_path / "more")
    assert described["vocabulary_checksums"] == describe(data)["vocabulary_checksums"]
    assert described["source"]["vocabulary"] == str(data)
    assert not verify(tmp_path / "more").damaged


@pytest.mark.parametrize("kind", ["criteo", "taobao"])
def test_the_own_vocabulary_gives_the_same_data_set(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    {"criteo": write_criteo_log, "taobao": write_taobao_log}[kind](log, 1_000, seed=2)
    prepare(kind, log, tmp_path / "data", min_count=3)
    report = prepare(kind, log, tmp_path / "again", vocabulary=tmp_path / "data")
    first, again = open_dataset(tmp_path / "data"), open_dataset(tmp_path / "again", verify=True)
    assert again.schema == first.schema
    for split in ("train", "valid", "test"):
        assert read_split(tmp_path / "again", split).equals(read_split(tmp_path / "data", split))
    for table, counts in first.counts().items():
        assert torch.equal(again.counts()[table], counts)
    assert set(report.lookups or {}) == {column.name for column in first.schema.categorical}


def test_a_log_that_is_all_for_training(data: Path, tmp_path: Path) -> None:
    log = write_lines(tmp_path / "second", SECOND)
    report = prepare("criteo", log, tmp_path / "more", vocabulary=data, valid=0, test=0)
    assert report.num_samples == {"train": 4, "valid": 0, "test": 0}


def test_the_program_prints_the_lookups_of_new_values(data: Path, tmp_path: Path) -> None:
    log = write_lines(tmp_path / "second", SECOND)
    arguments = ["prepare", "criteo", str(log), "--vocabulary", str(data), "--out", str(tmp_path / "more"), "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "lookups of values that the vocabulary does not have" in result.stdout
    assert "  C1   2 of 4 (50.00%)" in result.stdout
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["lookups"]["C1"] == {"num": 4, "num_new": 2}


def test_the_checksum_of_a_vocabulary_is_that_of_values_and_ids(tmp_path: Path) -> None:
    def checksum(values: list[str | None], counts: list[int], **options: Any) -> str:
        pq.write_table(pa.table({"value": pa.array(values, pa.string()), "count": counts}), tmp_path / "v", **options)
        return checksum_of_vocabulary(tmp_path / "v")

    base = checksum([None, None, "a", "bc"], [1, 2, 3, 4])
    assert checksum([None, None, "a", "bc"], [4, 3, 2, 1], row_group_size=1, compression="zstd") == base
    others = [
        [None, None, "ab", "c"], [None, None, "bc", "a"], [None, "", "a", "bc"], [None, None, "a", "bc", ""],
        [None, None, None, "a", "bc"],
    ]  # fmt: skip
    assert len({base, *(checksum(values, [0] * len(values)) for values in others)}) == 1 + len(others)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_short, "C1.parquet: this vocabulary is damaged, its SHA-256 is"),
        (flip_a_bit, "C1.parquet: this vocabulary is damaged, its SHA-256 is"),
        (Path.unlink, "C1.parquet: this vocabulary cannot be read .*copy the directory again, or prepare"),
    ],
)
def test_a_damaged_vocabulary(damage: Callable[[Path], None], message: str, data: Path, tmp_path: Path) -> None:
    damage(data / "vocabulary" / "C1.parquet")
    refused(tmp_path, message, vocabulary=data)


def test_a_vocabulary_without_checksums_that_has_other_rows_than_described(data: Path, tmp_path: Path) -> None:
    description = describe(data)
    description["checksums"] = {}
    description[OWN_CHECKSUM] = sha256_of_description(description)
    (data / "dataset.json").write_text(json.dumps(description))
    path = data / "vocabulary" / "C1.parquet"
    whole = pq.read_table(path)
    pq.write_table(whole.slice(0, 3), path)
    refused(tmp_path, "C1.parquet: this vocabulary is damaged: it must have 5 rows of value, id", vocabulary=data)
    pq.write_table(whole.drop_columns(["value"]), path)
    refused(tmp_path, "C1.parquet: this vocabulary is damaged: it must have 5 rows of value, id", vocabulary=data)
    cut_short(path)
    refused(tmp_path, "C1.parquet: this vocabulary cannot be read", vocabulary=data)


def test_a_vocabulary_of_other_columns(data: Path, tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.csv", ["y,C1,site", *["1,a,b"] * 3])
    config = tmp_path / "table.toml"
    config.write_text('label = "y"\ncategorical = ["C1", "site"]\n')
    message = r"data is of other categorical columns than the log: the vocabulary lacks site, the log lacks C2, C3"
    with pytest.raises(ValueError, match=message):
        prepare("table", log, tmp_path / "out", config=config, vocabulary=data)
    assert not (tmp_path / "out").exists()


def test_what_has_no_vocabulary(data: Path, tmp_path: Path) -> None:
    refused(tmp_path, "nowhere is not a prepared data set, it has no dataset.json", vocabulary=tmp_path / "nowhere")
    refused(tmp_path, "is not a prepared data set, it has no dataset.json", vocabulary="synthetic:criteo-kaggle")
    (data / "dataset.json").write_text("{")
    refused(tmp_path, "dataset.json is damaged", vocabulary=data)


def test_a_min_count_beside_a_vocabulary(data: Path, tmp_path: Path) -> None:
    message = "min_count is 7, and the vocabulary of .*data was made with a min_count of its own: leave one"
    refused(tmp_path, message, vocabulary=data, min_count=7)


def refused(directory: Path, message: str, **options: Any) -> None:
    log = write_lines(directory / "second", SECOND)
    before = sorted(directory.iterdir())
    with pytest.raises(ValueError, match=message):
        prepare("criteo", log, directory / "out", **options)
    assert sorted(directory.iterdir()) == before
