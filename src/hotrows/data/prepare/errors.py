"""What can go wrong in `prepare`, said to the user."""

from pathlib import Path


class BadInputError(ValueError):
    """The log, or the file that describes it, is not what it should be. Nothing was written.

    Args:
        expected: what should be there instead.
        line: the line of the file, counted from 1; None where the file as a whole is wrong.
    """

    def __init__(self, path: Path, found: str, expected: str, line: int | None = None) -> None:
        place = f"{path}, line {line:,}" if line is not None else str(path)
        super().__init__(f"{place}: {found}; expected {expected}")
        self.path = path
        self.line = line


class OutputError(ValueError, OSError):
    """The data set cannot be written: the directory exists, or the disk is full. Nothing was left behind."""
