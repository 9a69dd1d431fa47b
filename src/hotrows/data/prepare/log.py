"""What `prepare` must know of a log: its columns in the file, and the expressions that make samples from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# Ibis builds its expression classes at run time, so a type checker sees little of them.
Table = Any
Expression = Any
Make = Callable[[Table], Expression]


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
    return Problem(
        f"{name} is infinite", f"a finite number in {name}", lambda table: table[name].cast("float64").isinf()
    )
