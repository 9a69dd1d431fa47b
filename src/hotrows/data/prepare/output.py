"""The prepared directory. It is filled under a temporary name beside its final one, and renamed when it is complete."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from hotrows.data.checksums import OWN_CHECKSUM, SECTIONS, sections_of, sha256_of_description, sha256_of_file
from hotrows.data.description import DESCRIPTION, FORMAT
from hotrows.data.prepare.errors import OutputError
from hotrows.json_text import json_text


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """A directory to fill. It becomes `out` at the end of the block, or is removed if the block raises."""
    if out.exists():
        raise OutputError(f"{out} exists already: choose another directory, or remove it first")
    for old in out.parent.glob(f".{out.name}.unfinished-*"):
        _remove_if_unlocked(old)
    unfinished = out.parent / f".{out.name}.unfinished-{uuid4().hex[:8]}"
    try:
        unfinished.mkdir(parents=True)
        with (unfinished / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield unfinished
            (unfinished / "lock").unlink()
        os.rename(unfinished, out)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(f"the disk of {out.parent} is full; nothing was written") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ENAMETOOLONG):
            raise OutputError(f"cannot write {out}: {error}") from error
        raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _remove_if_unlocked(unfinished: Path) -> None:
    """Remove the directory of a killed run. A run that is alive holds its lock."""
    try:
        with (unfinished / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError:
        pass


def write_description(directory: Path, description: dict[str, Any]) -> None:
    """Write `dataset.json` with all checksums. It is written last, so a data set that has it is complete."""
    names = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*.parquet"))}
    shards = [name for split in description["splits"].values() for name in split["files"]]
    content = {
        "format": FORMAT,
        **description,
        "sizes": {name: path.stat().st_size for name, path in names.items()},
        "checksums": {name: sha256_of_file(path) for name, path in names.items()},
        SECTIONS: {name: sections_of(names[name]) for name in shards},
    }
    content[OWN_CHECKSUM] = sha256_of_description(content)
    with (directory / DESCRIPTION).open("w", encoding="utf-8") as file:
        file.write(json_text(content, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
