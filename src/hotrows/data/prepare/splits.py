"""Divides rows into training, validation and test: by time, by day, or at random."""

from collections.abc import Callable
from dataclasses import dataclass

from hotrows.data.prepare.expressions import split_of
from hotrows.data.prepare.log import Expression
from hotrows.data.schema import SPLITS


@dataclass(frozen=True)
class Splits:
    """The rows of each split: a range of the log in the order of time.

    Args:
        drawn: for a random split, draws the split of each row in the range.
    """

    rows: dict[str, range]
    drawn: Callable[[Expression], Expression] | None = None

    def contains(self, split: str, row: Expression) -> Expression:
        rows = self.rows[split]
        inside = (row >= rows.start) & (row < rows.stop)
        return inside if self.drawn is None else inside & (self.drawn(row) == split)


def check_fractions(valid: float, test: float) -> None:
    if valid + test >= 1:
        raise ValueError(f"valid is {valid} and test is {test}, they must leave something for training")


def by_time(num_rows: int, valid: float, test: float) -> Splits:
    """Use the last fraction of the log for the test, and the fraction before it for validation."""
    first_test = num_rows - round(num_rows * test)
    return before(first_test, num_rows, round(num_rows * valid))


def before(first_test: int, num_rows: int, num_valid: int) -> Splits:
    first_valid = max(first_test - num_valid, 0)
    ranges = (range(first_valid), range(first_valid, first_test), range(first_test, num_rows))
    return Splits(dict(zip(SPLITS, ranges, strict=True)))


def at_random(num_rows: int, valid: float, test: float, seed: int) -> Splits:
    fractions = {"valid": valid, "test": test}
    return Splits(dict.fromkeys(SPLITS, range(num_rows)), lambda row: split_of(row, fractions, seed))
