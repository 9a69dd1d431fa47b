"""`hotrows verify` as a user calls it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hotrows.cli.main import app
from hotrows.data.sample import write_criteo_log


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_criteo_log(tmp_path / "log.txt", 300, seed=1)
    made = CliRunner().invoke(app, ["prepare", "criteo", str(tmp_path / "log.txt"), "--out", str(tmp_path / "data")])
    assert made.exit_code == 0, made.output
    return tmp_path / "data"


def test_a_whole_data_set(data: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(data), "--json"])
    assert result.exit_code == 0, result.output
    assert "all 29 files are as they were written" in result.stdout
    found = json.loads(result.stdout.splitlines()[-1])
    size = sum(path.stat().st_size for path in data.rglob("*.parquet"))
    assert found == {"data": str(data), "ok": True, "files": 29, "bytes": size, "damaged": []}


def test_a_damaged_one(data: Path) -> None:
    shard = data / "train/part-00000.parquet"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    (data / "vocabulary/C7.parquet").unlink()
    result = CliRunner().invoke(app, ["verify", str(data), "--json"])
    assert result.exit_code == 2
    for words in ("part-00000.parquet: its contents", "C7.parquet: this file is missing", "2 of 29 files are damaged"):
        assert words in result.stderr
    assert "prepare the data again" in result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert not found["ok"]
    assert [damage["file"] for damage in found["damaged"]] == ["train/part-00000.parquet", "vocabulary/C7.parquet"]


@pytest.mark.parametrize("damage", ["dataset.json", "nothing there"])
def test_what_cannot_be_verified(data: Path, damage: str) -> None:
    if damage == "dataset.json":
        (data / damage).write_text((data / damage).read_text().replace('"criteo"', '"critea"', 1))
    result = CliRunner().invoke(app, ["verify", str(data if damage == "dataset.json" else data / "nowhere")])
    assert result.exit_code == 2
    assert "hotrows: " in result.stderr


def test_help_names_the_exit_codes() -> None:
    text = " ".join(CliRunner().invoke(app, ["verify", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert "exit code is 0 if every file is as it was written, and 2 if" in text
    assert "--json" in text
