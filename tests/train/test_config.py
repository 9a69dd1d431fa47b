"""Run files: every key is known or refused, in words."""

from pathlib import Path

import pytest

from hotrows.train.config import RunConfig, from_dict, read_run


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_sections_become_dataclasses(tmp_path: Path) -> None:
    config = read_run(
        write(
            tmp_path,
            """
            data = "synthetic:avazu"
            [model]
            name = "dlrm:rmc2"
            [cache]
            size = 500
            [optimizer]
            name = "adam"
            lr = 1
            betas = [0.8, 0.9]
            [train]
            batch_size = 64
            """,
        )
    )
    assert config.model.name == "dlrm:rmc2"
    assert config.cache.size == 500
    assert config.cache.depth == 4
    assert config.optimizer.arguments() == {"lr": 1.0, "betas": (0.8, 0.9)}
    assert from_dict(RunConfig, config.to_json(), "again") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dat = 1", "unknown 'dat'; known are cache, data,"),
        ("[train]\nbatchsize = 1", r"\[train\]: unknown 'batchsize'"),
        ("seed = 'a'", "seed is 'a', it must be int"),
        ("[train]\nbatch_size = true", "batch_size is True, it must be int"),
        ("train = 5", r"train is 5, it must be a section, \[train\]"),
        ("data = ", "this is not TOML"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_run(write(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such file"):
        read_run(tmp_path / "missing.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "data: name a prepared directory"),
        ({"data": "x", "train": {"batch_size": 0}}, "train.batch_size is 0, it must be 1 or more"),
        ({"data": "x", "train": {"precision": "fp8"}}, "train.precision is 'fp8': known are fp32, tf32, bf16"),
        ({"data": "x", "schedule": {"decay": "exp"}}, "schedule.decay is 'exp'"),
        ({"data": "x", "dense_optimizer": {"name": "lion"}}, "dense_optimizer.name is 'lion'"),
    ],
)
def test_runs_that_cannot_be(content: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_dict(RunConfig, content, "test").check()
