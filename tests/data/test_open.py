"""`hotrows.data.open`, and the example of docs/own-loop.md."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import hotrows.data
from hotrows.data.prepare import prepare
from hotrows.data.sample import write_criteo_log

GUIDE = Path(__file__).parents[2] / "docs" / "own-loop.md"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prepared directory `data` in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_criteo_log(tmp_path / "train.txt", 4_000, seed=1)
    prepare("criteo", "train.txt", "data")
    return tmp_path / "data"


def test_the_example_of_the_guide_trains(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    printed = capsys.readouterr().out
    assert "13 dense columns, 26 categorical ones" in printed
    assert "2800 samples, the most frequent value of C1 in" in printed
    label = torch.cat([batch.label for batch in names["data"].loader("test", 1024)]).mean()
    guessing = float(-(label * label.log() + (1 - label) * (1 - label).log()))
    assert float(printed.split()[-1]) < guessing


def test_what_it_says_is_in_the_data(data: Path) -> None:
    opened = hotrows.data.open(data, verify=True)
    batch = next(iter(opened.loader("train", 100)))
    assert batch.dense.shape == (100, len(opened.schema.dense))
    assert isinstance(batch.ids, torch.Tensor)
    assert batch.ids.shape == (100, len(opened.schema.categorical))
    assert sum(opened.num_samples(split) for split in ("train", "valid", "test")) == 4_000
    assert int(opened.counts()["C1"].sum()) == opened.num_samples("train")
    assert [table.num_rows for table in opened.schema.embedding_tables] == list(opened.schema.tables.values())


def test_synthetic_data_by_name() -> None:
    opened = hotrows.data.open("synthetic:avazu?scale=0.001&samples=1000")
    assert opened.num_samples("train") > 0


def test_what_cannot_be_opened(data: Path) -> None:
    with pytest.raises(ValueError, match="there is no data set 'nowhere': give a directory that `hotrows prepare`"):
        hotrows.data.open("nowhere")
    path = data / "vocabulary" / "C1.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"C1\.parquet: it has [\d,]+ bytes"):
        hotrows.data.open(data, verify=True)
