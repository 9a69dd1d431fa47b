"""Every kind of log that `prepare` reads trains with every model."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hotrows.data.dataset import open_dataset
from hotrows.data.prepare import prepare
from hotrows.data.prepare.pipeline import KINDS
from hotrows.data.sample import write_avazu_log, write_criteo_log, write_taobao_log
from hotrows.data.schema import SPLITS
from hotrows.models import MODELS
from hotrows.train.config import RunConfig
from hotrows.train.run import evaluate_run, run

from .logs import describe, read_split, write_lines

TALKINGDATA = Path(__file__).parents[2] / "examples" / "talkingdata.toml"
NUM_ROWS = 600


def write_talkingdata_log(path: Path, num_rows: int) -> None:
    """Write a log like TalkingData's, whose rows are out of order."""
    random = np.random.default_rng(0)
    lines = ["ip,app,device,os,channel,click_time,attributed_time,is_attributed"]
    for row in range(num_rows):
        ip, app, device, system, channel = random.integers(1, (200, 50, 5, 20, 60))
        second = row * 7 % num_rows
        time = f"2017-11-07 {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        label = int(random.random() < app / 60)
        lines.append(f"{ip},{app},{device},{system},{channel},{time},{time if label else ''},{label}")
    write_lines(path, lines)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a data set of every kind, and one of TalkingData's columns without a time."""
    directory = tmp_path_factory.mktemp("kinds")
    (directory / "table.toml").write_text(
        'label = "is_attributed"\ncategorical = ["app", "channel"]\ndense = ["device", "os"]\n'
    )
    write_criteo_log(directory / "criteo.log", NUM_ROWS)
    write_avazu_log(directory / "avazu.log", NUM_ROWS)
    write_taobao_log(directory / "taobao.log", NUM_ROWS)
    for name, config in {"table": directory / "table.toml", "talkingdata": TALKINGDATA}.items():
        write_talkingdata_log(directory / f"{name}.log", NUM_ROWS)
        prepare("table", directory / f"{name}.log", directory / name, config=config)
    for kind in sorted(set(KINDS) - {"table"}):
        prepare(kind, directory / f"{kind}.log", directory / kind)
    return directory


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", [*KINDS, "talkingdata"])
def test_every_kind_trains_with_every_model(prepared: Path, tmp_path: Path, kind: str, model: str) -> None:
    content: dict[str, Any] = {
        "data": str(prepared / kind), "out": str(tmp_path / "run"), "device": "cpu",
        "model": {"name": model, "dim": 4}, "train": {"batch_size": 128},
        "optimizer": {"name": "adagrad", "lr": 0.05}, "dense_optimizer": {"name": "adam", "lr": 0.001},
    }  # fmt: skip
    finished = run(RunConfig.from_dict(content, "test"), progress=False)
    assert finished.summary["samples"] == 420
    assert finished.summary["num_rows"] == sum(open_dataset(prepared / kind).schema.tables.values())
    assert 0 < finished.summary["test"]["logloss"] < 5
    assert evaluate_run(finished.directory)["test"] == finished.summary["test"]


def test_columns_of_a_table_stand_together_and_it_is_counted_once(prepared: Path, tmp_path: Path) -> None:
    report = prepare("taobao", prepared / "taobao.log", tmp_path / "out")
    schema = open_dataset(tmp_path / "out").schema
    order = ["user", "item", "item_history", "category", "category_history"]
    assert [column["name"] for column in describe(tmp_path / "out")["schema"]["categorical"]] == order
    assert [name for table in schema.embedding_tables for name in table.feature_names] == order
    assert report.num_ids == schema.tables
    assert list(report.num_ids) == ["user", "item", "category"]


def test_a_table_with_a_time_is_sorted_and_one_without_keeps_the_order_of_its_file(prepared: Path) -> None:
    rows = [line.split(",") for line in (prepared / "table.log").read_text().splitlines()[1:]]
    for name, expected in {"table": rows, "talkingdata": sorted(rows, key=lambda row: row[5])}.items():
        found = pa.concat_tables([read_split(prepared / name, split) for split in SPLITS])
        assert found["label"].to_pylist() == [float(row[7]) for row in expected]
    assert [row[5] for row in rows] != sorted(row[5] for row in rows)
