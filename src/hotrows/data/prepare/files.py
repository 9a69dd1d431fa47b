"""The files of a log: their order, their first lines, and the lines that errors are about."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from mmap import ACCESS_READ, MADV_RANDOM, mmap
from pathlib import Path
from typing import IO, Any, cast

from hotrows.data.prepare.errors import BadInputError
from hotrows.data.prepare.log import LogFile

MOST_NAMES = 50  # of a header, in a message
_WINDOW_BYTES = 1 << 16
_MOST_MORE_FIELDS = 10_000  # than there should be, before a line is refused without being read


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
            _check_encoding(path, cast(Any, file).buffer.peek(2)[:2])
            return next(islice(file, after, None), "")
    except BadInputError:
        raise
    except (EOFError, OSError, zlib.error) as error:
        raise BadInputError(path, f"it cannot be read ({error})", "a complete log, plain or .gz") from error


def header_fields(path: Path, delimiter: str, needed: Iterable[str]) -> list[str]:
    """The names in the first line. Raises if a needed name is missing."""
    line = first_line(path)
    expected = f"names with {delimiter!r} between"
    _check_line_end(path, line)
    if goes_on(line, False, delimiter, '"'):
        raise BadInputError(path, "a name in quotes has a line break, or its quotes do not end", expected, 1)
    fields = fields_of(path, line, delimiter)
    missing = [name for name in needed if name not in fields]
    if missing:
        if len(fields) == 1:
            raise BadInputError(path, f"no {delimiter!r} in {line[:60].rstrip()!r}", expected, 1)
        there = ", ".join(fields[:MOST_NAMES]) + (f" and {len(fields) - MOST_NAMES} more" * (len(fields) > MOST_NAMES))
        raise BadInputError(path, f"no column {', '.join(missing)}", f"a header with it; it has {there}", 1)
    if not first_line(path, after=1):
        raise BadInputError(path, "no rows after the header", "a log", 1)
    return fields


def check_first_line(path: Path, delimiter: str, num_fields: int, expected: str) -> None:
    """Raise if a file begins with an empty line or has another delimiter, before all of its lines are read."""
    line = first_line(path)
    if not line.strip("\r\n"):
        raise BadInputError(path, "the first line is empty", expected, 1)
    _check_line_end(path, line)
    check_field_counts(path, delimiter, num_fields)
    if num_fields > 1 and delimiter not in line:
        raise BadInputError(path, f"no {delimiter!r} in {line[:60].rstrip()!r}", expected, 1)


def fields_of(path: Path, line: str, delimiter: str) -> list[str]:
    """The fields of the first or second line of a file."""
    line = line.rstrip("\r\n")
    if len(delimiter) > 1:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error as error:
        raise BadInputError(path, f"no CSV in {line[:60]!r} ({error})", f"fields with {delimiter!r} between") from error


def check_field_counts(path: Path, delimiter: str, num_fields: int) -> None:
    """Raise for a line with very many fields, as a file without line ends has. The engines take hours for it.

    Only lines that are longer than a window are looked at. Of a compressed file, that is the first line only.
    """
    with path.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as mapped:
        mapped.madvise(MADV_RANDOM)  # one page of each window is read
        content: Any = first_line(path).encode() if is_gzip(path) else mapped
        separator, position, start, found = delimiter.encode(), 0, 0, 0
        while position < len(content):
            stop = min(position + _WINDOW_BYTES, len(content))
            end = content.rfind(b"\n", position, stop)
            if end >= 0:
                position = start = end + 1
                found = 0
                continue
            found += content[position:stop].count(separator)
            position = stop
            if found > num_fields + _MOST_MORE_FIELDS:
                line = content[:start].count(b"\n") + 1
                raise BadInputError(
                    path, f"more than {found:,} fields in one line", f"{num_fields} fields, and a line end behind them",
                    line,
                )  # fmt: skip


def mixed_line_end(path: Path) -> int | None:
    """The first line that does not end as line 1 does. None if there is none; the last line may have no end."""
    with _open_text(path) as file:
        first = next(file, "").endswith("\r\n")
        for number, line in enumerate(file, start=2):
            if line.endswith("\n") and line.endswith("\r\n") != first:
                return number
    return None


def line_of_record(file: LogFile, record: int, quote: str, rejected: frozenset[int] = frozenset()) -> int | None:
    """The line of the record with this number, counted from 0. Blank and rejected lines are not records.

    Args:
        quote: the character around fields that may have line breaks; empty if the engine reads no such fields.
        rejected: the first lines of records.
    """
    with _open_text(file.path) as lines:
        return next(islice(_record_lines(lines, file, quote, rejected), record, None), None)


def lines_of_records(
    file: LogFile, records: Sequence[int], quote: str, rejected: frozenset[int] = frozenset()
) -> list[int]:
    """The lines of the records with these ascending numbers, as `line_of_record` finds them."""
    with _open_text(file.path) as opened:
        lines = _record_lines(opened, file, quote, rejected)
        starts = [0, *(record + 1 for record in records)]
        return [next(islice(lines, record - start, None)) for record, start in zip(records, starts, strict=False)]


def lines_of_numbers(file: LogFile, numbers: Sequence[int]) -> dict[int, int]:
    """The lines with these numbers, in which a record that goes over several lines counts once, as in DuckDB."""
    if not file.quote or not numbers:
        return {number: number for number in numbers}
    with _open_text(file.path) as lines:
        wanted = set(numbers)
        return {number: line for number, line, _ in _numbered(lines, file, file.quote) if number in wanted}


def goes_on(line: str, inside: bool, delimiter: str, quote: str) -> bool:
    """Whether a field in quotes goes on in the next line.

    Args:
        inside: the line begins within such a field.
    """
    position = 0
    at_start = not inside
    while True:
        if at_start and line.startswith(quote, position):
            inside, position = True, position + len(quote)
        at_start = False
        if inside:
            end = line.find(quote, position)
            if end < 0:
                return True
            position = end + len(quote)
            if line.startswith(quote, position):  # two of them are one of the text
                position += len(quote)
                continue
            inside = False
        found = line.find(delimiter, position)
        if found < 0:
            return False
        position, at_start = found + len(delimiter), True


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


def _record_lines(lines: Iterable[str], file: LogFile, quote: str, rejected: frozenset[int]) -> Iterator[int]:
    for number, line, text in _numbered(lines, file, quote):
        if not (file.header and number == 1) and line not in rejected and text.strip("\r\n"):
            yield line


def _numbered(lines: Iterable[str], file: LogFile, quote: str) -> Iterator[tuple[int, int, str]]:
    """For each record and each blank line its number, counted from 1, its first line, and the text of that line."""
    number, inside = 0, False
    for line, text in enumerate(lines, start=1):
        if not inside:
            number += 1
            yield number, line, text
        if quote and (inside or quote in text):
            inside = goes_on(text, inside, file.delimiter or ",", quote)


def _check_encoding(path: Path, begin: bytes) -> None:
    if begin in (b"\xff\xfe", b"\xfe\xff"):
        raise BadInputError(path, "the file is UTF-16", "UTF-8, as `iconv -f UTF-16 -t UTF-8` makes")


def _check_line_end(path: Path, line: str) -> None:
    if "\r" in line.rstrip("\r\n") and '"' not in line:
        raise BadInputError(path, "lines end in \\r alone", "lines that end in \\n or \\r\\n, as `mac2unix` makes", 1)


def _open_text(path: Path) -> IO[str]:
    # Only \n ends a line, as in the engines. Other line separators of Unicode are part of a value.
    raw = cast(IO[bytes], gzip.GzipFile(path)) if is_gzip(path) else path.open("rb")
    return io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace", newline="\n")


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = re.findall(r"\d+|\D+", path.name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]
