"""What `prepare` must know of a log: its columns in the file, and the expressions that make samples from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# Ibis builds its expression classes at run time, so a type checker sees little of them.
Table = Any
Expression = Any
Make = Callable[[Table], Expression]

FLOAT32_MAX = 3.4028234663852886e38
LATEST_TIME = 1e20  # far beyond nanoseconds since 1970; the day of a number is an int64

_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_HOUR = "([01][0-9]|2[0-3])"


def _date(year: str, leap_year: str, separator: str) -> str:
    """A regular expression for the dates that exist, the same for every engine."""
    months = (
        f"(0[13578]|1[02]){separator}(0[1-9]|[12][0-9]|3[01])",
        f"(0[469]|11){separator}(0[1-9]|[12][0-9]|30)",
        f"02{separator}(0[1-9]|1[0-9]|2[0-8])",
    )
    return f"({year}{separator}({'|'.join(months)})|{leap_year}{separator}02{separator}29)"


ISO_TIME = (
    f"^{_date('[0-9]{4}', _LEAP_YEAR, '[-/]')}"
    f"([T ]{_HOUR}(:[0-5][0-9](:([0-5][0-9]|60)([.,][0-9]+)?)?)?)?(Z| ?UTC|[+-]{_HOUR}(:?[0-5][0-9])?)?$"
)
YYMMDDHH = f"^{_date('[0-9]{2}', '([02468][048]|[13579][26])', '')}{_HOUR}$"


@dataclass(frozen=True)
class LogFile:
    """One file of a log and how to read it.

    Args:
        columns: every column of the file in order, and whether it is a number or text. Parquet files need none.
        delimiter: None for Parquet.
        header: True if the first line names the columns.
        quote: the character around fields that contain the delimiter; empty if there is none.
    """

    path: Path
    columns: Mapping[str, Literal["number", "text"]] = field(default_factory=dict)
    delimiter: str | None = None
    header: bool = False
    quote: str = ""


@dataclass(frozen=True)
class Problem:
    """A reason why rows cannot be used. `found` is true for rows that have it."""

    reason: str
    expected: str
    found: Make


@dataclass(frozen=True)
class History:
    """Sequence columns: the ids of the same user's earlier rows, oldest first.

    Args:
        user: the categorical column that identifies users.
        sequences: the categorical column whose ids each new column holds, by the name of the new column. Both share
            a table.
        length: the most ids of a history.
    """

    user: str
    sequences: Mapping[str, str]
    length: int = 20


@dataclass(frozen=True)
class Log:
    """A log as samples.

    Args:
        label: 0 or 1 for every row.
        dense: a number for every row, by column; null if it is missing.
        categorical: a text for every row, by column; null if it is missing.
        time: the column that the log is ordered by; None if the file is already in the order of time.
        day: the day of every row; None if each file is a day.
        log_scale: dense values become log(1 + x), negatives 0.
    """

    name: str
    files: tuple[LogFile, ...]
    columns: tuple[str, ...]
    label: Make
    dense: Mapping[str, Make]
    categorical: Mapping[str, Make]
    problems: tuple[Problem, ...]
    time: str | None = None
    day: Make | None = None
    history: History | None = None
    log_scale: bool = True


def column(name: str) -> Make:
    """The column of the log, unchanged."""
    return lambda table: table[name]


def bad_label(name: str) -> Problem:
    def found(table: Table) -> Expression:
        return table[name].isnull() | ~table[name].cast("float64").isin([0.0, 1.0])

    return Problem(f"{name} is neither 0 nor 1", f"{name} 0 or 1", found)


def infinite(name: str) -> Problem:
    """Dense values are float32. NaN is a missing value, and no problem."""

    def found(table: Table) -> Expression:
        value = table[name].cast("float64")
        return (value.abs() > FLOAT32_MAX) & ~value.isnan()  # engines order NaN above all numbers

    return Problem(f"{name} is infinite or too large", f"a number of at most 3.4e38 in {name}", found)


def no_time(name: str) -> Problem:
    """A time is a number up to 1e20, a timestamp, or ISO text of a date that exists and perhaps a time of day."""

    def found(table: Table) -> Expression:
        time = table[name]
        if time.type().is_floating():
            return time.isnull() | time.isnan() | (time.abs() > LATEST_TIME)
        if time.type().is_string():
            return time.isnull() | ~time.re_search(ISO_TIME)
        return time.isnull()

    return Problem(f"no {name}, or no possible time", f"a time in {name}, as a number or as 2024-02-29 23:59:59", found)
