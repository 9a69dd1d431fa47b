"""Axes cover what they show, with ticks and texts that can be read."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotrows.report.scale import position_axis, value_axis
from hotrows.report.units import count, duration, percent, size

NUMBERS = st.floats(min_value=-1e12, max_value=1e12, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-12)


@given(st.lists(NUMBERS, min_size=1, max_size=19))
def test_an_axis_covers_its_values(values: list[float]) -> None:
    axis = value_axis(values)
    assert 2 <= len(axis.ticks) <= 8
    assert len(axis.texts()) == len(axis.ticks)
    slack = 1e-6 * (axis.high - axis.low) + 1e-9 * max(abs(value) for value in values)
    assert all(axis.low - slack <= value <= axis.high + slack for value in values)
    assert all(0 <= axis.fraction(value) <= 1 for value in values)


@given(st.integers(min_value=0, max_value=10**12))
def test_positions_reach_the_right_edge(end: int) -> None:
    axis = position_axis(end)
    assert axis.fraction(end) == (1 if end else 0)
    assert all(0 <= tick <= axis.high * (1 + 1e-9) for tick in axis.ticks)
    assert len(axis.ticks) <= 6


def test_few_values_far_away_do_not_flatten_the_rest() -> None:
    usual = [0.5 + 0.01 * math.sin(index) for index in range(100)]
    assert value_axis([900.0, *usual]).high < 1
    assert value_axis([90.0, *usual], highest=100).high >= 90  # all values are shown if there is a highest one


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0, 100], ["0", "25", "50", "75", "100"]),
        ([0.44, 0.69], ["0.4", "0.5", "0.6", "0.7"]),
        ([0, 30_000_000], ["0", "10 M", "20 M", "30 M"]),
        ([0, 1e-5], ["0", "2.5e-06", "5e-06", "7.5e-06", "1e-05"]),
    ],
)
def test_ticks_read_well(values: list[float], texts: list[str]) -> None:
    assert value_axis(values).texts() == texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count(9999), "9,999"),
        (count(999_999), "1.00 M"),
        (count(33_762_577), "33.8 M"),
        (count(None), "not measured"),
        (size(0), "0 bytes"),
        (size(1_240_000_000), "1.24 GB"),
        (percent(0.99999), "> 99.9%"),
        (percent(1.0), "100%"),
        (percent(0.00001), "< 0.01%"),
        (percent(0.0), "0.0%"),
        (duration(4.25), "4.2 s"),
        (duration(312), "5 min 12 s"),
        (duration(7260), "2 h 1 min"),
    ],
)
def test_numbers_in_words(text: str, expected: str) -> None:
    assert text == expected
