"""`evaluate_run` on other data than that of the run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

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


def prepare_other(finished: Run, tmp_path: Path, **options: Any) -> str:
    """Another log, prepared as the options say."""
    write_criteo_log(tmp_path / "other.txt", 500, seed=9)
    prepare("criteo", tmp_path / "other.txt", tmp_path / "other", **options)
    return str(tmp_path / "other")


def test_a_data_set_with_a_vocabulary_of_its_own_is_refused(finished: Run, tmp_path: Path) -> None:
    trained_on = finished.directory.parent / "data"
    with pytest.raises(ValueError, match=r"an id of C1, C2, .* and \d+ more stands for another value") as raised:
        evaluate_run(finished.directory, prepare_other(finished, tmp_path))
    assert f"other has another vocabulary than {trained_on} had when the model was trained on it" in str(raised.value)
    assert f"hotrows prepare … --vocabulary {trained_on}" in str(raised.value)


def test_a_data_set_with_the_vocabulary_of_the_training_is_evaluated(finished: Run, tmp_path: Path) -> None:
    other = prepare_other(finished, tmp_path, vocabulary=finished.directory.parent / "data")
    found = evaluate_run(finished.directory, other)
    assert found["test"] != finished.summary["test"]
    assert 0 <= found["test"]["auc"] <= 1


def test_data_that_was_prepared_anew_under_the_same_name_is_refused(finished: Run, tmp_path: Path) -> None:
    shutil.copytree(finished.directory, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["data"] = prepare_other(finished, tmp_path)
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"other has another vocabulary than .*other had when the model was trained"):
        evaluate_run(tmp_path / "run")


def test_prepared_data_is_not_for_a_model_of_synthetic_data_and_the_reverse(finished: Run, tmp_path: Path) -> None:
    synthetic = "synthetic:criteo-kaggle?scale=0.0001&samples=1000"
    with pytest.raises(ValueError, match=r"trained on prepared data, .*data, and .* is synthetic data: their ids do"):
        evaluate_run(finished.directory, synthetic)
    content: dict[str, Any] = {
        "data": synthetic, "model": {"name": "dlrm:rmc2", "dim": 4}, "device": "cpu", "train": {"max_steps": 1},
        "out": str(tmp_path / "run"),
    }  # fmt: skip
    trained = run(RunConfig.from_dict(content, "test"), progress=False)
    assert evaluate_run(trained.directory, synthetic)["test"] == trained.summary["test"]
    with pytest.raises(ValueError, match=r"trained on synthetic data, synthetic:.*, and .*data is prepared data"):
        evaluate_run(trained.directory, str(finished.directory.parent / "data"))


def test_a_model_of_an_earlier_version_is_evaluated_with_a_warning(
    finished: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(finished.directory, tmp_path / "run")
    saved = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    del saved["vocabulary"]
    torch.save(saved, tmp_path / "run" / "model.pt")
    assert evaluate_run(tmp_path / "run")["test"] == finished.summary["test"]
    assert "the model was saved by an earlier version of hotrows, without a checksum" in caplog.text


def test_data_of_an_earlier_version_is_evaluated_with_a_warning(
    finished: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = changed(finished, tmp_path, lambda description: description.pop("vocabulary_checksums"))
    assert evaluate_run(finished.directory, data)["test"] == finished.summary["test"]
    assert "was prepared by an earlier version of hotrows, without a checksum" in caplog.text
