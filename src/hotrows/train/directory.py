"""The run directory: claimed by one run, and removed again if the run fails before it has any result."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from shutil import rmtree

from hotrows.data.directories import check_directory
from hotrows.runtime.defer_sigint import defer_sigint

CONFIG = "config.json"
METRICS = "metrics.jsonl"
BEFORE_TRAINING = (CONFIG, "environment.json", METRICS)  # the files that a run writes before its first result
TENSORBOARD = "tensorboard"


@contextmanager
def run_directory(out: str | None) -> Iterator[Path]:
    """Claim a directory for a run, with an empty config.json in it.

    A directory belongs to one run, also if several are started at the same time. If the block raises before a step was
    logged or anything was saved, then what the run has written is removed, and with it the directories made for it.

    Args:
        out: a directory that is empty or not there. None takes a new one in runs/, named by the time.
    """
    claimed: tuple[Path, list[Path]] | None = None
    try:
        with defer_sigint():  # an interrupt comes when it is known what must be removed
            claimed = _claim(Path(out)) if out is not None else _claim_by_time()
        yield claimed[0]
    except BaseException:
        with defer_sigint():
            if claimed is not None and not _has_results(claimed[0]):
                _remove(*claimed)
        raise


def check_free(out: str | None) -> None:
    """Raise if a run could not be written there. Nothing is made."""
    if out is None:
        return
    if not out:
        raise ValueError("out is empty: name a directory, or leave it out for a new one in runs/")
    directory = check_directory(out)
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"{directory} exists and is not empty: choose another --out, or remove it")


def _claim(directory: Path) -> tuple[Path, list[Path]]:
    """The directory, and those that were made for it, the innermost first."""
    check_free(str(directory))
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / CONFIG).open("x").close()  # only one of several runs succeeds
    except FileExistsError:
        raise ValueError(f"{directory}: another run has just begun here, choose another --out") from None
    except OSError as error:
        raise ValueError(f"{directory} cannot be written ({error.strerror}): choose another --out") from None
    return directory, made


def _claim_by_time() -> tuple[Path, list[Path]]:
    name = time.strftime("%Y%m%d-%H%M%S")
    made = [path for path in (Path("runs"),) if not path.exists()]
    for number in count(1):
        directory = Path("runs") / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            directory.mkdir(parents=True)
            (directory / CONFIG).open("x").close()
            return directory, [directory, *made]
    raise AssertionError("there is always another number")


def _has_results(directory: Path) -> bool:
    metrics = directory / METRICS
    if metrics.exists() and metrics.stat().st_size > 0:
        return True
    known = {*BEFORE_TRAINING, TENSORBOARD}
    return any(path.name not in known and path.suffix != ".part" for path in directory.iterdir())


def _remove(directory: Path, made: list[Path]) -> None:
    for name in BEFORE_TRAINING:
        (directory / name).unlink(missing_ok=True)
    rmtree(directory / TENSORBOARD, ignore_errors=True)
    for path in made:
        with suppress(OSError):  # another run may have made a directory beside this one
            path.rmdir()
