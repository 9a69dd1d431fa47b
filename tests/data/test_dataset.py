"""Data sets by name, and the errors for those that cannot be opened."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotrows.data.dataset import PreparedDataSet, open_dataset
from hotrows.data.schema import Schema
from hotrows.data.synthetic import SyntheticDataSet
from hotrows.train.config import RunConfig
from hotrows.train.run import evaluate_run, run
from tests.data.prepared import PLAIN, SEQUENCES, write_prepared


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    write_prepared(tmp_path / "data", PLAIN, {"train": 100, "valid": 20, "test": 10})
    return tmp_path / "data"


def edit(directory: Path, **changes: object) -> None:
    path = directory / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_prepared_directory(prepared: Path) -> None:
    dataset = open_dataset(str(prepared))
    assert isinstance(dataset, PreparedDataSet)
    assert dataset.name == "generated"
    assert dataset.schema == PLAIN
    assert [dataset.num_samples(split) for split in ("train", "valid", "test")] == [100, 20, 10]
    assert sum(len(batch.label) for batch in dataset.loader("valid", 8)) == 20


def test_a_synthetic_one() -> None:
    dataset = open_dataset("synthetic:criteo-kaggle?samples=7000&seed=1&scale=0.01&drift=0.5")
    assert isinstance(dataset, SyntheticDataSet)
    assert [dataset.num_samples(split) for split in ("train", "valid", "test")] == [6000, 500, 500]


def test_counts_are_those_of_the_training_split(tmp_path: Path) -> None:
    train = write_prepared(tmp_path, SEQUENCES, {"train": 300, "test": 50})["train"]
    counts = open_dataset(tmp_path).counts()
    items = np.concatenate([train["item"].to_numpy(), train["past"].combine_chunks().flatten().to_numpy()])
    assert {table: len(c) for table, c in counts.items()} == {"user": 90, "item": 60}
    assert counts["user"].tolist() == np.bincount(train["user"].to_numpy(), minlength=90).tolist()
    assert counts["item"].tolist() == np.bincount(items, minlength=60).tolist()


def test_a_damaged_vocabulary_is_named(prepared: Path) -> None:
    path = prepared / "vocabulary/C2.parquet"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"vocabulary/C2\.parquet: this vocabulary cannot be read"):
        open_dataset(prepared).counts()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "there is no data set 'nowhere': give a directory that `hotrows prepare` has written, or one of"),
        ("synthetic:movielens", "no data set synthetic:movielens: give one of synthetic:criteo-kaggle, synthetic:crit"),
        ("synthetic:avazu?rows=3", "there is no parameter 'rows', the known ones are samples, seed, scale, drift"),
        ("synthetic:avazu?samples=many", "samples is 'many', give a whole number"),
        ("synthetic:avazu?scale=x", "scale is 'x', give a number"),
        ("synthetic:avazu?scale=0", "scale is 0, it must be more than 0 and at most 1"),
        ("synthetic:avazu?drift=2", "drift is 2, it must be from 0 to 1"),
        ("synthetic:avazu?samples=3", "samples is 3, it must be 10 or more"),
    ],
)
def test_unknown_names_and_parameters(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_dataset(name)


def test_a_directory_that_is_not_prepared(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a prepared data set, it has no dataset\.json: make one with `hotro"):
        open_dataset(tmp_path)


def test_a_newer_format(prepared: Path) -> None:
    edit(prepared, format=2)
    with pytest.raises(ValueError, match=r"is of format 2, this version of hotrows reads format 1: update hotrows"):
        open_dataset(prepared)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "name": "x", "schema": 3}'])
def test_a_damaged_description(prepared: Path, content: str) -> None:
    (prepared / "dataset.json").write_text(content)
    with pytest.raises(ValueError, match=r"dataset\.json is damaged"):
        open_dataset(prepared)


def test_a_missing_shard(prepared: Path) -> None:
    (prepared / "train/part-00001.parquet").unlink()
    with pytest.raises(ValueError, match=r"1 shard\(s\) .* are missing, the first is .*train/part-00001\.parquet"):
        open_dataset(prepared)


def describe_files(directory: Path) -> None:
    """Write sizes and checksums into dataset.json, as `prepare` does."""
    content = {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*.parquet")}
    edit(
        directory,
        sizes={name: len(found) for name, found in content.items()},
        checksums={name: hashlib.sha256(found).hexdigest() for name, found in content.items()},
    )


def test_a_shard_of_another_size(prepared: Path) -> None:
    describe_files(prepared)
    path = prepared / "valid/part-00000.parquet"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(
        ValueError, match=rf"valid/part-00000\.parquet: .* {size + 1:,} bytes, dataset\.json says {size:,}"
    ):
        open_dataset(prepared)


@pytest.mark.parametrize("name", ["train/part-00001.parquet", "vocabulary/C1.parquet"])
def test_changed_content_is_found_on_request(prepared: Path, name: str) -> None:
    describe_files(prepared)
    open_dataset(prepared, verify=True)
    content = bytearray((prepared / name).read_bytes())
    content[len(content) // 2] ^= 1
    expected = hashlib.sha256((prepared / name).read_bytes()).hexdigest()
    (prepared / name).write_bytes(content)
    open_dataset(prepared)
    found = hashlib.sha256(content).hexdigest()
    with pytest.raises(ValueError, match=rf"{name}: .* SHA-256 is {found}, dataset\.json says {expected}"):
        open_dataset(prepared, verify=True)


def test_what_has_no_checksum_cannot_be_verified(prepared: Path) -> None:
    with pytest.raises(ValueError, match=r"dataset\.json has no checksum of .*train/part-00000\.parquet"):
        open_dataset(prepared, verify=True)


def test_a_vocabulary_that_is_missing_is_found_on_request(prepared: Path) -> None:
    describe_files(prepared)
    (prepared / "vocabulary/C1.parquet").unlink()
    with pytest.raises(ValueError, match=r"vocabulary/C1\.parquet: this file is missing"):
        open_dataset(prepared, verify=True)


def test_evaluation_takes_ids_beyond_the_trained_tables_as_rare(tmp_path: Path) -> None:
    small = Schema(PLAIN.dense, tuple(replace(column, num_ids=5) for column in PLAIN.categorical))
    write_prepared(tmp_path / "small", small, {"train": 200})
    tables = write_prepared(tmp_path / "large", PLAIN, {"test": 96}, seed=1)
    write_prepared(tmp_path / "mapped", small, {"test": 96})
    for number, path in enumerate(sorted((tmp_path / "mapped/test").iterdir())):
        table = tables["test"].slice(number * 48, 48)
        for column in small.categorical:
            ids = table[column.name].to_numpy()
            assert (ids >= 5).any()
            position = table.schema.get_field_index(column.name)
            table = table.set_column(position, column.name, pa.array(np.where(ids < 5, ids, 0)))
        pq.write_table(table, path)
    config = {
        "data": str(tmp_path / "small"),
        "out": str(tmp_path / "run"),
        "device": "cpu",
        "model": {"name": "wide-deep", "dim": 4},
        "train": {"batch_size": 50},
    }
    run(RunConfig.from_dict(config, "test"), progress=False)
    large = evaluate_run(tmp_path / "run", str(tmp_path / "large"))
    assert large["test"] == evaluate_run(tmp_path / "run", str(tmp_path / "mapped"))["test"]


def test_evaluation_on_a_larger_synthetic_set_is_refused(tmp_path: Path) -> None:
    name = "synthetic:avazu?samples=500&scale={}"
    config = {
        "data": name.format(0.0001),
        "out": str(tmp_path),
        "device": "cpu",
        "model": {"name": "wide-deep", "dim": 4},
        "train": {"batch_size": 100},
    }
    run(RunConfig.from_dict(config, "test"), progress=False)
    with pytest.raises(ValueError, match="has more ids than the model's tables have rows"):
        evaluate_run(tmp_path, name.format(0.001))


def test_another_number_of_samples(prepared: Path) -> None:
    splits = json.loads((prepared / "dataset.json").read_text())["splits"]
    splits["train"]["num_samples"] = 99
    edit(prepared, splits=splits)
    with pytest.raises(ValueError, match=r"the shards of 'train' have 100 samples, its dataset\.json says 99"):
        open_dataset(prepared).loader("train", 10)


def test_columns_that_do_not_fit(prepared: Path) -> None:
    schema = json.loads((prepared / "dataset.json").read_text())["schema"]
    edit(prepared, schema={**schema, "dense": ["I1", "I7"]})
    with pytest.raises(ValueError, match=r"part-00000\.parquet: there is no column 'I7'"):
        open_dataset(prepared).loader("train", 10)
    edit(prepared, schema={"dense": ["I1", "C1"], "categorical": []})
    with pytest.raises(ValueError, match=r"part-00000\.parquet: column 'C1' is int32, expected float"):
        open_dataset(prepared).loader("train", 10)


def test_synthetic_data_needs_no_pyarrow() -> None:
    code = (
        "import sys, hotrows.data.dataset as d; d.open_dataset('synthetic:avazu'); assert 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
