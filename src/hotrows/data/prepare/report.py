"""The result of `prepare` in numbers: rows read and skipped, ids per column, samples per split."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Skipped:
    """Rows that were skipped for one reason, and where the first of them is."""

    reason: str
    num_rows: int
    path: Path
    line: int | None
    expected: str


@dataclass(frozen=True)
class Lookups:
    """How many ids the samples have in a column, and how many of them are the rare id.

    With the vocabulary of another data set, these are the values that it does not have: values that are new, and those
    that were rare there.
    """

    num: int
    num_new: int


@dataclass(frozen=True)
class PrepareReport:
    """What `prepare` has made.

    Args:
        num_rows: the lines that were read, the skipped ones included.
        num_ids: the rows of each table. A table that several columns share is there once.
        lookups: by column, if the vocabulary of another data set was given; else None.
    """

    name: str
    out: Path
    num_rows: int
    skipped: tuple[Skipped, ...]
    num_ids: dict[str, int]
    num_samples: dict[str, int]
    seconds: float
    lookups: dict[str, Lookups] | None = None

    @property
    def num_skipped(self) -> int:
        return sum(skipped.num_rows for skipped in self.skipped)

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["out"] = str(self.out)
        plain["skipped"] = [{**asdict(skipped), "path": str(skipped.path)} for skipped in self.skipped]
        return plain
