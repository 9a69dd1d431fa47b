"""Baselines: where their rows are. That they train alike is in test_contract."""

from pathlib import Path

import pytest
import torch

import hotrows
from hotrows.strategies import make_strategy
from hotrows.strategies.base import CacheSettings
from hotrows.train.config import RunConfig
from hotrows.train.run import build, strategy_of
from hotrows.train.trainer import embed
from tests.train.test_run import train

TABLES = [hotrows.Table("a", 70), hotrows.Table("b", 130)]


@pytest.mark.parametrize(("name", "on_host"), [("device", False), ("host", True)])
def test_where_rows_and_their_state_are(name: str, on_host: bool, device: torch.device) -> None:
    bags = make_strategy(name, CacheSettings()).make_bags(TABLES, 4, hotrows.optim.Adam(), device, 0)
    expected = "cpu" if on_host else device.type
    assert bags.device.type == bags.caches[0].records.device.type == expected
    assert bags.caches[0].holds_all_rows
    assert bags.caches[0].records.shape[0] == 200


def test_rows_stay_on_the_host_whatever_the_device_of_the_model() -> None:
    bags = make_strategy("host", CacheSettings()).make_bags(
        TABLES, 4, hotrows.optim.SGD(lr=0.1), torch.device("cuda"), 0
    )
    assert bags.device.type == "cpu"


def test_pooled_rows_come_to_the_model(device: torch.device) -> None:
    from hotrows.data.dataset import open_dataset

    content = {"data": "synthetic:criteo-kaggle?scale=0.0001&samples=100", "strategy": "host"}
    config = RunConfig.from_dict(content, "test")
    schema = open_dataset(config.data).schema
    parts = build(config, schema, device, strategy_of(config))
    ids = torch.zeros(3, len(schema.categorical), dtype=torch.int64)
    before = parts.bags.weight(schema.categorical[0].table)[0]
    found = embed(parts, ids)
    assert found.device.type == device.type
    found.sum().backward()
    assert not torch.equal(parts.bags.weight(schema.categorical[0].table)[0], before)


def test_a_host_run_is_a_device_run_on_a_cpu(tmp_path: Path) -> None:
    host, whole = (train(tmp_path / name, strategy=name) for name in ("host", "device"))
    for part in ("train", "valid", "test"):
        assert host.summary[part] == whole.summary[part]


@pytest.mark.gpu
def test_a_host_run_with_a_model_on_the_gpu(tmp_path: Path) -> None:
    host, whole = (train(tmp_path / name, strategy=name, device="cuda") for name in ("host", "device"))
    assert host.summary["test"]["auc"] == pytest.approx(whole.summary["test"]["auc"], abs=2e-3)
    assert host.summary["device_memory"] < whole.summary["device_memory"]
