"""The names of columns: which ones `prepare` refuses, and the names of files that it makes of them."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from hotrows.data.prepare.errors import BadInputError

LONGEST_STEM = 200  # bytes; file systems allow 255 for the whole name
# Names that the engines or the queries of `prepare` give to columns of their own.
RESERVED = frozenset({
    "row", "file_row_number", "rowid", "filename", "file_index", "_metadata",
    "_weight", "_bad_line", "_no_number", "_group", "_part", "_index", "_first", "_user",
})  # fmt: skip
_RESERVED_PATTERN = re.compile(r"_(value|id|not_read)_[0-9]+")
_RENAME = "rename the column in the log"


def file_stems(names: Sequence[str]) -> dict[str, str]:
    """A file name without ending for each of these names. `urllib.parse.unquote` gives the names back.

    Names of letters, digits, `_`, `-` and dots are unchanged. Other characters are percent-encoded, so that no name
    leads out of a directory, and so is a dot or a `_` at the beginning, because Spark does not read such files. If
    names differ in case only, their capitals are encoded as well, because some file systems would take their files for
    one.
    """
    folded = Counter(name.casefold() for name in names)
    return {name: _encoded(name, capitals=folded[name.casefold()] > 1) for name in names}


def table_name(column: str) -> str:
    """The embedding table of a column: its name, in which dots are percent-encoded. PyTorch allows no dots there."""
    return column.replace("%", "%25").replace(".", "%2E")


def check_column_names(path: Path, features: Iterable[str], needed: Iterable[str]) -> None:
    """Raise for a name that the data set cannot have.

    Args:
        path: the file that the error is about.
        features: the dense and categorical columns. The data set has them beside its column `label`.
        needed: all columns that are read, each once.
    """
    seen: dict[str, str] = {}
    for name in needed:
        _check_one(path, name)
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise BadInputError(path, f"columns {other!r} and {name!r} differ in case only", f"other names: {_RENAME}")
    for name in features:
        if name.casefold() == "label":
            raise BadInputError(path, f"column {name!r} has the name of the labels", f"another name: {_RENAME}")


def check_header(path: Path, needed: Iterable[str], header: Sequence[str], any_case: bool) -> None:
    """Raise if a needed column is there twice.

    Args:
        any_case: True if the engines cannot tell apart names that differ in case only.
    """
    for name in needed:
        same = [other for other in header if (other.casefold() == name.casefold() if any_case else other == name)]
        if len(same) > 1:
            raise BadInputError(
                path,
                f"several columns are named {' or '.join(map(repr, dict.fromkeys(same)))}",
                f"one column of each name: {_RENAME}",
            )


def _check_one(path: Path, name: str) -> None:
    if not name.strip():
        raise BadInputError(path, f"a column has the empty name {name!r}", f"a name: {_RENAME}")
    if not name.isprintable():
        raise BadInputError(path, f"column {name!r} has an unprintable character", f"a printable name: {_RENAME}")
    if name.casefold() in RESERVED or _RESERVED_PATTERN.fullmatch(name.casefold()):
        raise BadInputError(path, f"prepare uses the name of column {name!r} itself", f"another name: {_RENAME}")
    if (size := len(_encoded(name, capitals=True))) > LONGEST_STEM:
        raise BadInputError(
            path,
            f"the name of column {name[:30] + '…'!r} needs {size} bytes as a file name",
            f"at most {LONGEST_STEM}: {_RENAME}",
        )


def _encoded(name: str, capitals: bool) -> str:
    kept = r"a-z0-9_-" if capitals else r"A-Za-z0-9_-"
    encoded = re.sub(rf"[^.{kept}]|^[._]", lambda found: _percent(found[0]), name)
    assert "/" not in encoded
    return encoded


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())
