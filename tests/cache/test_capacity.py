"""Sizes as users write them."""

import pytest

from hotrows.cache.capacity import cache_rows


@pytest.mark.parametrize(
    ("written", "rows"),
    [
        (500, 500),
        ("500", 500),
        ("1_000", 1000),
        ("1.5%", 150),
        (" 1.5 % ", 150),
        ("100%", 10_000),
        ("0.001%", 1),
        ("64kB", 1000),
        ("1.28 kb", 20),
        ("1KiB", 16),
        ("1GB", 10_000),
    ],
)
def test_sizes(written: int | str, rows: int) -> None:
    assert cache_rows(written, 10_000, 64) == rows


@pytest.mark.parametrize(
    "written", [0, -1, "0", "", "%", "1.5 %x", "1,5%", "1.5.2%", "-3%", "101%", "2PB", "12B", 1.5, None, True]
)
def test_what_is_no_size(written: object) -> None:
    with pytest.raises(ValueError, match="cache is"):
        cache_rows(written, 10_000, 64)  # type: ignore[arg-type]
