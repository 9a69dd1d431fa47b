"""Learning rates over time."""

import pytest

from hotrows.train.config import ScheduleConfig
from hotrows.train.schedule import factor_at, num_changing


def test_warm_up_then_constant() -> None:
    config = ScheduleConfig(warmup_steps=4)
    assert [factor_at(config, step, 100) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_decay_goes_down_to_the_end(decay: str) -> None:
    config = ScheduleConfig(warmup_steps=10, decay=decay, end=0.1)
    factors = [factor_at(config, step, 110) for step in range(10, 111)]
    assert factors[0] == 1.0
    assert factors == sorted(factors, reverse=True)
    assert factors[50] == pytest.approx(0.55)
    assert factors[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("decay", ["none", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_rates_change_no_more_after_the_last_change(warmup: int, decay: str) -> None:
    config = ScheduleConfig(warmup_steps=warmup, decay=decay, end=0.1)
    factors = [factor_at(config, step, 20) for step in range(21)]
    last = num_changing(config, 20)
    assert set(factors[last:]) == {factors[last]}
    assert last == (warmup if decay == "none" else 20)
