"""The command `verify`: compares a prepared data set with its checksums."""

from pathlib import Path
from typing import Annotated

import typer

from hotrows.cli.errors import reported_plainly
from hotrows.json_text import json_text


def verify(
    data: Annotated[Path, typer.Argument(help="A directory that `hotrows prepare` has written.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object as the last line, for machines.")
    ] = False,
) -> None:
    """Read all files of a prepared data set, and compare them with the checksums that `prepare` wrote.

    The exit code is 0 if every file is as it was written, and 2 if a file is missing or damaged, each of which is
    named, or if the data set has no checksums. Training compares the same data with checksums while it reads them;
    this command finds damage before, for example after the directory was copied.
    """
    from hotrows.cli.show import Steps
    from hotrows.data.verify import verify as verify_files
    from hotrows.stores.memory_checks import readable

    with reported_plainly(), Steps() as steps:
        report = verify_files(data, steps)
    for damage in report.damaged:
        typer.secho(f"{data / damage.file}: {damage.problem}", fg="red", err=True)
    if report.damaged:
        typer.secho(
            f"hotrows: {data}: {len(report.damaged)} of {report.num_files} files are damaged; copy the directory "
            "again, or prepare the data again",
            fg="red",
            err=True,
        )
    else:
        typer.echo(f"{data}: all {report.num_files} files are as they were written, {readable(report.num_bytes)}")
    if as_json:
        print(json_text(report.to_json()), flush=True)
    if report.damaged:
        raise typer.Exit(2)
