"""Run files: an unknown key or a wrong value is an error that says what is allowed."""

from pathlib import Path

import pytest

from hotrows.strategies import STRATEGIES
from hotrows.strategies.freqcache import FreqCacheOptions
from hotrows.strategies.heca import HecaOptions
from hotrows.train.config import RunConfig, read_run
from hotrows.train.run import strategy_of


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
    assert RunConfig.from_dict(config.to_json(), "again") == config


def test_sections_of_strategies_become_their_options(tmp_path: Path) -> None:
    config = read_run(write(tmp_path, 'strategy = "heca"\n[heca]\nhot = 12\n[freqcache]\nbuffer_rows = 100'))
    assert config.options == {"heca": HecaOptions(hot=12), "freqcache": FreqCacheOptions(buffer_rows=100)}
    content = config.to_json()
    assert content["heca"]["hot"] == 12
    assert content["freqcache"]["buffer_rows"] == 100
    assert RunConfig.from_dict(content, "again") == config


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_a_strategy_gets_its_own_options_and_no_others(strategy: str) -> None:
    """The setting `device` of a run has the name of a strategy, and must not be taken for its options."""
    made = strategy_of(RunConfig(strategy=strategy, device="cpu"))
    assert made.options == STRATEGIES[strategy].options_type()


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
def test_bad_run_files(tmp_path: Path, text: str, message: str) -> None:
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
        ({"data": "x", "train": {"max_steps": 0}}, "train.max_steps is 0, it must be 1 or more"),
        ({"data": "x", "train": {"eval_every": 0}}, "train.eval_every is 0, it must be 1 or more"),
        ({"data": "x", "train": {"precision": "fp8"}}, "train.precision is 'fp8': known are fp32, tf32, bf16"),
        ({"data": "x", "schedule": {"decay": "exp"}}, "schedule.decay is 'exp'"),
        ({"data": "x", "dense_optimizer": {"name": "lion"}}, "dense_optimizer.name is 'lion'"),
    ],
)
def test_bad_settings(content: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig.from_dict(content, "test").check()
