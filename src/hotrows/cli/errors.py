"""How the program reports errors."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def reported_plainly() -> Iterator[None]:
    """Report a user's mistake in one line, with exit code 2. A bug of the program keeps its traceback."""
    try:
        yield
    except (ValueError, FileNotFoundError, PermissionError) as error:
        typer.secho(f"hotrows: {error}", fg="red", err=True)
        raise typer.Exit(2) from None
