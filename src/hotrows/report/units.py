"""Numbers as a reader wants them: 33.8 M, 1.24 GB, 5 min 12 s."""

import math

NOT_MEASURED = "not measured"
_COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def digits(value: float, significant: int = 3) -> str:
    """`value` with about this many significant digits, and commas between thousands."""
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.{significant - 1}e}"
    exponent = int(f"{value:.{significant - 1}e}".split("e")[1])  # after rounding, so that 999.9 counts as 1000
    return f"{value:,.{max(0, significant - 1 - exponent)}f}"


def count(value: float | None) -> str:
    """A count in words, such as 33.8 M. Small whole numbers keep all their digits."""
    if value is None:
        return NOT_MEASURED
    if abs(value) < 1e4 and value == int(value):
        return f"{int(value):,}"
    return _scaled(value, _COUNTS, "")


def whole(value: float | None) -> str:
    """A count with every digit, such as 15,000, unless it is too long to read."""
    if value is None:
        return NOT_MEASURED
    return f"{value:,.0f}" if abs(value) < 1e7 else count(value)


def size(value: float | None) -> str:
    """Bytes, in powers of 1000."""
    return NOT_MEASURED if value is None else _scaled(value, _BYTES, "bytes")


def percent(share: float | None) -> str:
    """A share as text: 0.015 is 1.5%. Only a share of exactly 0 or 1 is written as 0.0% or 100%."""
    if share is None:
        return NOT_MEASURED
    value = 100 * share
    if value == 100:
        return "100%"
    if 99.95 <= value < 100:
        return "> 99.9%"
    if 0 < value < 0.01:
        return "< 0.01%"
    return f"{value:.1f}%" if value >= 1 or value == 0 else f"{value:.2f}%"


def fixed(value: float | None, decimals: int = 4) -> str:
    """The value with this many decimals. NaN, as the AUC of samples that are all alike, counts as not measured."""
    return NOT_MEASURED if value is None or math.isnan(value) else f"{value:.{decimals}f}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NOT_MEASURED
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def byte_unit(largest: float) -> tuple[float, str]:
    """The unit in which an axis up to `largest` bytes reads well, and its bytes."""
    return next(((factor, unit) for factor, unit in _BYTES if largest >= factor), (1.0, "bytes"))


def _scaled(value: float, prefixes: tuple[tuple[float, str], ...], plain: str) -> str:
    for factor, unit in prefixes:
        # A value that would be rounded to 1,000 k is written as 1.00 M.
        if abs(value) >= 0.9995 * factor:
            return f"{digits(value / factor)} {unit}"
    return f"{digits(value)} {plain}".rstrip()
