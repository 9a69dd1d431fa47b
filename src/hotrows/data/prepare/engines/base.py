"""What an engine does: read a text file into Parquet, run an expression, write ordered Parquet.

Everything between reading and writing is Ibis expressions, the same for every engine. Rows are numbered by their
position in ordered Parquet files, which costs nothing to know.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hotrows.data.prepare.log import Expression, LogFile, Table

ROWS_PER_GROUP = 65_536


@dataclass(frozen=True)
class Rejected:
    """Lines that are no rows, for one reason."""

    reason: str
    expected: str
    num_rows: int
    line: int | None


@dataclass(frozen=True)
class Read:
    """A text file as Parquet, without the lines that were rejected."""

    parts: tuple[Path, ...]
    rejected: tuple[Rejected, ...]
    rejected_lines: frozenset[int] = frozenset()


class Engine(Protocol):
    name: str

    def read(self, file: LogFile, columns: Sequence[str], directory: Path) -> Read:
        """Read the columns of a text file into Parquet files in this new directory, in the order of the lines."""

    def table(self, parts: Sequence[Path], columns: Sequence[str] = (), rows: range | None = None) -> Table:
        """Ordered Parquet files as one table, with the number of each row, int64, as column `row`."""

    def lookup(self, path: Path) -> Table:
        """A Parquet file as a table whose order does not matter."""

    def fetch(self, expression: Expression) -> dict[str, Any]:
        """The one row of a small result."""

    def store(self, expression: Table, directory: Path, order_by: Sequence[str]) -> tuple[Path, ...]:
        """Write a table in this order, without its column `row`, to Parquet files in this new directory."""

    def write_vocabulary(self, occurrences: Table, build: Callable[[Table], Table], path: Path) -> None:
        """Write what `build` makes of a table to one Parquet file, ordered by `id`; `build` is always the same."""

    def write_shards(
        self,
        parts: Sequence[Path],
        columns: Sequence[str],
        targets: Mapping[Path, range],
        build: Callable[[Table], Table],
        rows_per_shard: int,
        progress: Callable[[float], None],
    ) -> list[tuple[Path, ...]]:
        """Write what `build` makes of rows of a table to shards, each in the order of `row`, which is left out.

        Args:
            targets: new directories, and the rows that go there.
            rows_per_shard: rows that a shard is built of, of which `build` may leave some out.
        """

    def close(self) -> None: ...
