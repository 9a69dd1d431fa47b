"""The errors of `prepare`, in the user's words."""

from pathlib import Path


class BadInputError(ValueError):
    """The log, or the file that describes it, cannot be used. Nothing was written.

    Args:
        expected: what the file should have instead.
        line: the line of the file, counted from 1; None if the file as a whole is wrong.
    """

    def __init__(self, path: Path, found: str, expected: str, line: int | None = None) -> None:
        location = f"{path}, line {line:,}" if line is not None else str(path)
        super().__init__(f"{location}: {found}; expected {expected}")
        self.path = path
        self.line = line


class OutputError(ValueError, OSError):
    """The data set cannot be written: the directory exists, or the disk is full. Nothing was left behind."""
