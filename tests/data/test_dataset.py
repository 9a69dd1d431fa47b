"""Data sets by name, and what is said about those that cannot be opened."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hotrows.data.dataset import PreparedDataSet, open_dataset
from hotrows.data.synthetic import SyntheticDataSet
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


@pytest.mark.parametrize("contents", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "name": "x", "schema": 3}'])
def test_a_damaged_description(prepared: Path, contents: str) -> None:
    (prepared / "dataset.json").write_text(contents)
    with pytest.raises(ValueError, match=r"dataset\.json is damaged"):
        open_dataset(prepared)


def test_a_missing_shard(prepared: Path) -> None:
    (prepared / "train/part-00001.parquet").unlink()
    with pytest.raises(ValueError, match=r"1 shard\(s\) .* are missing, the first is .*train/part-00001\.parquet"):
        open_dataset(prepared)


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
