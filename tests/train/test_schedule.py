"""Learning rates over time."""

import pytest

from hotrows.train.config import ScheduleConfig
from hotrows.train.schedule import factor_at


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
