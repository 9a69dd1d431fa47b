"""What an engine does: read a text file into rows that it keeps, run an expression, write ordered Parquet.

Everything between reading and writing is Ibis expressions, the same for every engine. Rows are numbered by their
position in what is kept in order, which costs nothing to know.
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
    """Rows in order: a Parquet file, or a table that the engine keeps under this name."""

    place: Path | str
    num_rows: int

    @classmethod
    def of_file(cls, path: Path) -> "Part":
        return cls(path, int(pq.read_metadata(path).num_rows))


@dataclass(frozen=True)
class Rejected:
    """Lines that are no rows, for one reason."""

    reason: str
    expected: str
    num_rows: int
    line: int | None


@dataclass(frozen=True)
class Read:
    """A text file as rows, without the lines that were rejected."""

    parts: tuple[Part, ...]
    rejected: tuple[Rejected, ...]
    rejected_lines: frozenset[int] = frozenset()


class Engine(Protocol):
    name: str

    def read(self, file: LogFile, columns: Sequence[str], name: str) -> Read:
        """Keep the columns of a text file under this new name, in the order of the lines."""

    def table(self, parts: Sequence[Part], columns: Sequence[str], rows: range | None = None) -> Table:
        """Parts as one table, with the number of each row, int64, as column `row`."""

    def scan(self, parts: Sequence[Part], column: str) -> Iterator[pa.Array]:
        """The values of one column in order."""

    def lookup(self, path: Path) -> Table:
        """A Parquet file as a table whose order does not matter."""

    def fetch(self, expression: Expression) -> dict[str, Any]:
        """The one row of a small result."""

    def store(self, expression: Table, name: str, order_by: Sequence[str]) -> tuple[Part, ...]:
        """Keep a table in this order, without its column `row`, under this new name."""

    def write_vocabularies(
        self,
        samples: Table,
        targets: Mapping[str, Path],
        build: Callable[[Table], Table],
        progress: Callable[[float], None],
    ) -> None:
        """Write what `build` makes of each of these columns to a Parquet file, ordered by `id`.

        Args:
            samples: these columns, and `weight`, how often a row counts; `build` gets them as `value` and `weight`.
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
        """Write what `build` makes of rows of a table to shards, each in the order of `row`, which is left out.

        Args:
            targets: new directories, and the rows that go there.
            rows_per_shard: rows that a shard is built of, of which `build` may leave some out.
        """

    def close(self) -> None: ...
