"""Criteo's logs (Kaggle and Terabyte): label, 13 integers, 26 categories; tab-separated, no header."""

from pathlib import Path
from typing import Literal

from hotrows.data.prepare.files import check_first_line
from hotrows.data.prepare.log import Log, LogFile, bad_label, column, infinite

INTEGERS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
COLUMNS: dict[str, Literal["number", "text"]] = {
    "label": "number",
    **dict.fromkeys(INTEGERS, "number"),
    **dict.fromkeys(CATEGORIES, "text"),
}


def criteo(paths: tuple[Path, ...]) -> Log:
    """Describe the log. Several files are days, in the order of their names."""
    for path in paths:
        check_first_line(path, "\t", len(COLUMNS), "label, 13 integers, 26 categories, with tabs between")
    return Log(
        name="criteo",
        files=tuple(LogFile(path, COLUMNS, "\t") for path in paths),
        columns=tuple(COLUMNS),
        label=column("label"),
        dense={name: column(name) for name in INTEGERS},
        categorical={name: column(name) for name in CATEGORIES},
        problems=(bad_label("label"), *(infinite(name) for name in INTEGERS)),
    )
