"""How many rows a cache holds, from what the user wrote: 500_000, "1.5%" or "2GB"."""

import logging
import math
import re

logger = logging.getLogger("hotrows")

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_AMOUNT = re.compile(r"\s*(\d[\d_]{0,99}(?:\.\d+)?|\.\d+)\s*(%|[kmgt]i?b)?\s*", re.IGNORECASE)
_ALLOWED = 'give a number of rows (500_000), a share of the rows ("1.5%"), or memory ("2GB")'


def cache_rows(cache: int | str, num_rows: int, record_bytes: int) -> int:
    """The number of slots for a cache over `num_rows` rows."""
    wanted = _parse(cache, num_rows, record_bytes)
    if wanted < 1:
        raise ValueError(
            f"cache is {cache!r}, but one row with its optimizer state takes {record_bytes} bytes: {_ALLOWED}"
        )
    if wanted > num_rows:
        logger.warning("cache of %s: %d rows, but there are only %d; using those", cache, wanted, num_rows)
        return num_rows
    return wanted


def check_cache(cache: int | str) -> None:
    """Raise ValueError if `cache` is not a valid size. Called before any table is made."""
    _parse(cache, 1, 1)


def memory_bytes(text: str) -> int | None:
    """The bytes of a text such as "2GB"; None if it is no amount of memory."""
    found = _AMOUNT.fullmatch(text)
    unit = _UNITS.get((found[2] or "").upper()) if found else None
    return None if found is None or unit is None else int(float(found[1].replace("_", "")) * unit)


def _parse(cache: int | str, num_rows: int, record_bytes: int) -> int:
    if isinstance(cache, bool) or not isinstance(cache, int | str):
        raise ValueError(f"cache is {cache!r}: {_ALLOWED}")
    if isinstance(cache, int):
        if cache < 1:
            raise ValueError(f"cache is {cache}: {_ALLOWED}, at least one row")
        return cache
    found = _AMOUNT.fullmatch(cache)
    if found is None:
        raise ValueError(f"cache is {cache!r}: {_ALLOWED}")
    number, unit = float(found[1].replace("_", "")), (found[2] or "").upper()
    if number <= 0:
        raise ValueError(f"cache is {cache!r}: {_ALLOWED}, more than nothing")
    if unit == "%":
        if number > 100:
            raise ValueError(f"cache is {cache!r}: a share of the rows is at most 100%")
        return min(num_rows, math.ceil(num_rows * number / 100))
    if not unit:
        if number != int(number):
            raise ValueError(f"cache is {cache!r}: {_ALLOWED}")
        return int(number)
    return int(number * _UNITS[unit]) // record_bytes
