"""`evaluate_run` on other data than that of the run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotrows.data.checksums import OWN_CHECKSUM, sha256_of_description
from hotrows.data.prepare import prepare
from hotrows.data.sample import write_criteo_log
from hotrows.train.config import RunConfig
from hotrows.train.run import Run, evaluate_run, run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("evaluated")
    write_criteo_log(directory / "log.txt", 2000, seed=1)
    prepare("criteo", directory / "log.txt", directory / "data")
    content: dict[str, Any] = {
        "data": str(directory / "data"), "model": {"name": "dlrm:rmc2", "dim": 4}, "device": "cpu",
        "train": {"max_steps": 3}, "out": str(directory / "run"),
    }  # fmt: skip
    return run(RunConfig.from_dict(content, "test"), progress=False)


def changed(finished: Run, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """A copy of the data of the run with another description."""
    copy = tmp_path / "changed"
    shutil.copytree(finished.directory.parent / "data", copy)
    description = json.loads((copy / "dataset.json").read_text())
    change(description)
    description[OWN_CHECKSUM] = sha256_of_description(description)
    (copy / "dataset.json").write_text(json.dumps(description))
    return str(copy)


def test_columns_are_found_by_their_names(finished: Run, tmp_path: Path) -> None:
    def reverse(description: dict[str, Any]) -> None:
        description["schema"]["dense"].reverse()
        description["schema"]["categorical"].reverse()

    found = evaluate_run(finished.directory, changed(finished, tmp_path, reverse))
    assert found["test"] == finished.summary["test"]


def test_data_that_lacks_a_column_is_refused(finished: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the data lacks I13; the model lacks nothing"):
        evaluate_run(
            finished.directory, changed(finished, tmp_path, lambda description: description["schema"]["dense"].pop())
        )
