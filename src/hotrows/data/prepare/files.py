"""The files of a log: their order, their first lines, and the lines that errors are about."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, cast

from hotrows.data.prepare.errors import BadInputError


def list_files(given: Path) -> tuple[Path, ...]:
    """The file, or the files of a directory in natural order: day_2 comes before day_10."""
    if not given.exists():
        raise BadInputError(given, "there is no such file", "a log file or a directory of them")
    found = [path for path in given.iterdir() if path.is_file() and path.name[0] not in "._"] if given.is_dir() else []
    paths = tuple(sorted(found, key=_natural)) if given.is_dir() else (given,)
    if not paths:
        raise BadInputError(given, "the directory has no files", "the files of a log")
    for path in paths:
        if path.stat().st_size == 0:
            raise BadInputError(path, "the file is empty", "a log")
        if path.suffix == ".gz" and not is_gzip(path):
            raise BadInputError(path, "its name ends in .gz, and it does not begin as a gzip file", "a complete .gz")
    return paths


def first_line(path: Path, after: int = 0) -> str:
    """A line near the beginning of the file, with its line end; '' past the end of the file."""
    try:
        with _open_text(path) as file:
            return next(islice(file, after, None), "")
    except (EOFError, OSError, zlib.error) as error:
        raise BadInputError(path, f"it cannot be read ({error})", "a complete log, plain or .gz") from error


def header_fields(path: Path, delimiter: str, needed: Iterable[str]) -> list[str]:
    """The names in the first line. Raises if a needed name is missing."""
    line = first_line(path).rstrip("\r\n")
    fields = next(csv.reader([line], delimiter=delimiter)) if len(delimiter) == 1 else line.split(delimiter)
    missing = [name for name in needed if name not in fields]
    if missing:
        if len(fields) == 1:
            raise BadInputError(path, f"no {delimiter!r} in {line[:60]!r}", f"names with {delimiter!r} between", 1)
        raise BadInputError(path, f"no column {', '.join(missing)}", f"a header with it; it has {', '.join(fields)}", 1)
    if not first_line(path, after=1):
        raise BadInputError(path, "no rows after the header", "a log", 1)
    return fields


def check_first_line(path: Path, delimiter: str, num_fields: int, expected: str) -> None:
    """Raise if a file begins with an empty line or has another delimiter, before all of its lines are read."""
    line = first_line(path)
    if not line.strip("\r\n"):
        raise BadInputError(path, "the first line is empty", expected, 1)
    if num_fields > 1 and delimiter not in line:
        raise BadInputError(path, f"no {delimiter!r} in {line[:60].rstrip()!r}", expected, 1)


def line_of_record(path: Path, record: int, header: bool, rejected: frozenset[int] = frozenset()) -> int | None:
    """The line of the record with this number, counted from 0. Blank and rejected lines are not records."""
    with _open_text(path) as file:
        return next(islice(_record_lines(file, header, rejected), record, None), None)


def lines_of_records(
    path: Path, records: Sequence[int], header: bool, rejected: frozenset[int] = frozenset()
) -> list[int]:
    """The lines of the records with these ascending numbers, as `line_of_record` finds them."""
    with _open_text(path) as file:
        lines = _record_lines(file, header, rejected)
        starts = [0, *(record + 1 for record in records)]
        return [next(islice(lines, record - start, None)) for record, start in zip(records, starts, strict=False)]


def last_readable_line(path: Path) -> int:
    """How many lines of a truncated file can be read."""
    number = 0
    try:
        with _open_text(path) as file:
            for number, _ in enumerate(file, start=1):  # noqa: B007
                pass
    except (EOFError, OSError, zlib.error):
        pass
    return number


def is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _record_lines(file: Iterable[str], header: bool, rejected: frozenset[int]) -> Iterator[int]:
    for number, line in enumerate(file, start=1):
        if not (header and number == 1) and number not in rejected and line.strip("\r\n"):
            yield number


def _open_text(path: Path) -> IO[str]:
    # Only \n ends a line, as in the engines. Other line separators of Unicode are part of a value.
    raw = cast(IO[bytes], gzip.GzipFile(path)) if is_gzip(path) else path.open("rb")
    return io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace", newline="\n")


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = re.findall(r"\d+|\D+", path.name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]
