"""The product: whatever the cache, the result is that of having all rows on the device, bit for bit."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import hotrows
from tests.invariants import check_invariants
from tests.scenarios import (
    UNCACHED,
    Scenario,
    Setting,
    assert_equal,
    examples,
    finish,
    result_of,
    scenarios,
    settings_for,
    train,
    train_in_torch,
)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), scenario=scenarios())
def test_equal_to_uncached(device: str, data: st.DataObject, scenario: Scenario) -> None:
    setting = data.draw(settings_for(scenario.num_rows, device))
    assert_equal(finish(scenario, setting), finish(scenario, Setting("100%", device=device)))


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data(), scenario=scenarios())
def test_close_to_torch(device: str, data: st.DataObject, scenario: Scenario) -> None:
    setting = data.draw(settings_for(scenario.num_rows, device))
    found, expected = finish(scenario, setting), train_in_torch(scenario)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), scenario=scenarios(several_passes=False))
def test_invariants_hold_after_every_step(device: str, data: st.DataObject, scenario: Scenario) -> None:
    setting = data.draw(settings_for(scenario.num_rows, device))
    truth = train(scenario, UNCACHED if device == "cpu" else Setting("100%", device=device))
    for bags, uncached in zip(train(scenario, setting), truth, strict=True):
        check_invariants(bags, result_of(uncached))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", ["sgd", "row-wise-adagrad", "adam"])
def test_equal_at_a_size_that_keeps_all_streams_busy(optimizer: str, device: str) -> None:
    """Batches of thousands of lookups with hot rows, a small cache, and no stream that is slowed down."""
    random = torch.Generator().manual_seed(0)
    tables = tuple(hotrows.Table(f"t{i}", size, dim=32) for i, size in enumerate((40_000, 9_000, 50)))
    batches = tuple(
        torch.stack([(torch.rand(1500, generator=random).pow(6) * table.num_rows).long() for table in tables], 1)
        for _ in range(40)
    )
    scenario = Scenario(tables, "sum", optimizer, batches, passes=1, accumulate=False, seed=0)
    expected = finish(scenario, Setting("100%", device=device))
    for cache, depth, coalesce in ((12_000, 4, 4), (12_000, 4, 1), (7_000, 4, 2), (5_000, 8, None), (1_800, 4, 4)):
        setting = Setting(cache, depth=depth, window=16, device=device, coalesce=coalesce)
        assert_equal(finish(scenario, setting), expected)
