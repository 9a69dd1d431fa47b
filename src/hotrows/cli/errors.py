"""How the program says what went wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def said_plainly() -> Iterator[None]:
    """Errors of the user's are one line and exit code 2; ours keep their traceback."""
    try:
        yield
    except (ValueError, FileNotFoundError, PermissionError) as error:
        typer.secho(f"hotrows: {error}", fg="red", err=True)
        raise typer.Exit(2) from None
