"""How the program reports errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from hotrows.errors import NotFiniteError

NOT_FINITE = 3  # the exit code
INTERRUPTED = 130


@contextmanager
def reported_plainly() -> Iterator[None]:
    """Report a user's mistake, a full disk or too little memory, with exit code 2, and a loss or a prediction that is
    not finite with exit code 3. A bug keeps its traceback.
    """
    try:
        yield
    except (ValueError, OSError, MemoryError) as error:
        _report(str(error))
    except NotFiniteError as error:
        _report(str(error), NOT_FINITE)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported for this
            raise
        _report(f"{error} Make the cache, the batches or the model smaller.")


@contextmanager
def nothing_written(out: str) -> Iterator[None]:
    """Report Ctrl-C, with the exit code of a program that it ends, for work that leaves nothing behind then."""
    try:
        yield
    except KeyboardInterrupt:
        _report("interrupted" if Path(out).exists() else f"interrupted: {out} was not written", INTERRUPTED)


def _report(message: str, exit_code: int = 2) -> None:
    typer.secho(f"hotrows: {message}", fg="red", err=True)
    raise typer.Exit(exit_code) from None
