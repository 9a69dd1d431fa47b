"""Suggested cache sizes."""

import numpy as np
import pytest

from hotrows.profile.miss_ratio import MissRatioCurve
from hotrows.profile.suggest import suggest

CURVE = MissRatioCurve(np.array([0.0, 100.0, 1000.0, 5000.0]), np.array([1.0, 0.5, 0.1, 0.05]))


def test_more_hits_need_more_rows() -> None:
    rows = [suggest(CURVE, 10_000, 64, hit_rate=wanted / 100).rows for wanted in range(1, 100)]
    assert rows == sorted(rows)
    assert (rows[49], rows[89]) == (100, 1000)


def test_more_memory_holds_more_rows() -> None:
    found = [suggest(CURVE, 10_000, 64, memory=memory) for memory in (64, 6400, 64_000, 640_000, 10**9)]
    assert [f.rows for f in found] == [1, 100, 1000, 10_000, 10_000]
    hits = [f.hit_rate for f in found]
    assert hits == sorted(hits)
    assert suggest(CURVE, 10_000, 64, memory="64KB").rows == 1000


def test_memory_limits_the_hit_rate() -> None:
    found = suggest(CURVE, 10_000, 64, hit_rate=0.9, memory="6.4KB")
    assert (found.rows, found.num_bytes) == (100, 6400)
    assert found.hit_rate == pytest.approx(0.5)
    assert "needs 1,000 rows" in found.reason
    assert suggest(CURVE, 10_000, 64, hit_rate=0.5, memory="1MB").rows == 100


def test_the_reason_says_that_a_hit_rate_is_out_of_reach() -> None:
    found = suggest(CURVE, 10_000, 64, hit_rate=0.99)
    assert 4500 < found.rows <= 5000
    assert "0.99 is out of reach" in found.reason
    assert found.hit_rate == pytest.approx(0.95, abs=0.002)


def test_bad_arguments() -> None:
    for hit_rate in (0, 1, 90):
        with pytest.raises(ValueError, match="it must be between 0 and 1"):
            suggest(CURVE, 10_000, 64, hit_rate=hit_rate)
    with pytest.raises(ValueError, match=r'give bytes .* or a text such as "2GB"'):
        suggest(CURVE, 10_000, 64, memory="1.5%")
    with pytest.raises(ValueError, match="too little for a single row"):
        suggest(CURVE, 10_000, 64, memory=10)
