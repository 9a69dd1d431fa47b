"""Whether a directory for results can be made, checked before any work is done for it."""

import os
from pathlib import Path

LONGEST_NAME = 255  # bytes, of every common file system
LONGEST_PATH = 4096 - 1 - LONGEST_NAME  # bytes, so that Linux takes the paths of the files in it
ADVICE = "choose another --out"


def check_directory(out: str | Path) -> Path:
    """Raise ValueError if this cannot be a directory, because of its name or of what is there already."""
    text, directory = os.fspath(out), Path(out)
    if not text:
        raise ValueError("out is empty: name a directory")
    if "\0" in text:
        raise ValueError(f"out is {text!r}, and a path cannot have a NUL character: {ADVICE}")
    for part in directory.parts:
        _check_length("the name", part, LONGEST_NAME)
    _check_length("the path", str(directory), LONGEST_PATH)
    present = next((path for path in (directory, *directory.parents) if os.path.lexists(path)), directory)
    if present.is_symlink() and not present.exists():
        raise ValueError(
            f"{present} is a symbolic link to {os.readlink(present)}, which is not there: {ADVICE}, or remove the link"
        )
    if present.exists() and not present.is_dir():
        raise ValueError(f"{present} is a file: {ADVICE}")
    return directory


def _check_length(what: str, text: str, longest: int) -> None:
    length = len(os.fsencode(text))
    if length > longest:
        raise ValueError(f"out: {what} {text[:20]!r}… has {length:,} bytes, at most {longest:,} are allowed: {ADVICE}")
