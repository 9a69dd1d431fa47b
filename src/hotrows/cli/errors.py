"""How the program reports errors."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def reported_plainly() -> Iterator[None]:
    """Report a user's mistake, a full disk or too little memory, with exit code 2. A bug keeps its traceback."""
    try:
        yield
    except (ValueError, OSError, MemoryError) as error:
        _report(str(error))
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported for this
            raise
        _report(f"{error} Make the cache, the batches or the model smaller.")


def _report(message: str) -> None:
    typer.secho(f"hotrows: {message}", fg="red", err=True)
    raise typer.Exit(2) from None
