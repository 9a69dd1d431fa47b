"""The protocol of an engine: read a text file into stored rows, run an expression, write ordered Parquet.

Everything between reading and writing is Ibis expressions, the same for every engine. Stored rows are in order, and the
number of a row is its position among them, which costs nothing to know.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from hotrows.data.prepare.log import Expression, LogFile, Table

ROWS_PER_GROUP = 65_536


@dataclass(frozen=True)
class Part:
    """Rows in order. Their source is a Parquet file, or a table that the engine stores under this name."""

    source: Path | str
    num_rows: int

    @classmethod
    def of_file(cls, path: Path) -> "Part":
        return cls(path, int(pq.read_metadata(path).num_rows))


@dataclass(frozen=True)
class Rejected:
    """Lines that could not be read as rows for one reason, and the first of them."""

    reason: str
    expected: str
    num_rows: int
    line: int | None


@dataclass(frozen=True)
class Read:
    """The rows of a text file, without the lines that were rejected."""

    parts: tuple[Part, ...]
    rejected: tuple[Rejected, ...]
    rejected_lines: frozenset[int] = frozenset()


class Engine(Protocol):
    """What runs the expressions.

    Attributes:
        reads_line_breaks: a field in quotes may have line breaks.
    """

    name: str
    reads_line_breaks: bool

    def read(self, file: LogFile, columns: Sequence[str], name: str) -> Read:
        """Store the columns of a text file under a new name, in the order of the lines."""

    def table(self, parts: Sequence[Part], columns: Sequence[str], rows: range | None = None) -> Table:
        """Parts as one table, with the number of each row, int64, as column `row`."""

    def scan(self, parts: Sequence[Part], column: str) -> Iterator[pa.Array]:
        """The values of one column in order."""

    def lookup(self, path: Path) -> Table:
        """A Parquet file as a table whose order does not matter."""

    def fetch(self, expression: Expression) -> dict[str, Any]:
        """Run an expression that has one row, and return that row."""

    def store(self, expression: Table, name: str, order_by: Sequence[str]) -> tuple[Part, ...]:
        """Store a table under a new name, in this order and without its column `row`."""

    def write_vocabularies(
        self,
        samples: Table,
        targets: Mapping[str, Path],
        build: Callable[[Table], Table],
        progress: Callable[[float], None],
    ) -> None:
        """Apply `build` to each column, and write the result to a Parquet file, ordered by `id`.

        Args:
            samples: the columns, and `_weight`, how often a row counts.
            targets: the file of each column.
            build: makes a table with `id` from a table with a column's values as `value`, and `_weight`.
        """

    def write_shards(
        self,
        parts: Sequence[Part],
        columns: Sequence[str],
        targets: Mapping[Path, range],
        build: Callable[[Table], Table],
        rows_per_shard: int,
        progress: Callable[[float], None],
    ) -> list[tuple[Path, ...]]:
        """Apply `build` to rows of a table, and write the result to shards in the order of `row`, without that column.

        Args:
            targets: new directories, and the rows that go there.
            rows_per_shard: how many rows a shard is built from. `build` may drop some of them.
        """

    def close(self) -> None: ...
