"""`hotrows reproduce`: measures the figures of a paper again, and shows ours beside the published values."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from hotrows.cli.errors import reported_plainly
from hotrows.json_text import json_text

if TYPE_CHECKING:
    from hotrows.reproduce import Paper
    from hotrows.reproduce.bench import Bench
    from hotrows.reproduce.experiment import Experiment, Result

FIGURES_HELP = "Run in this order; by default all of them."


class ReproduceCommand(typer.core.TyperCommand):
    """A command whose help lists the figures of each paper. They are imported when the help is shown."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from hotrows.reproduce import PAPERS

        listed = (f"{name} {', '.join(each.name for each in paper.experiments)}" for name, paper in PAPERS.items())
        for parameter in self.params:
            if parameter.name == "figures":
                parameter.help = f"{FIGURES_HELP} Allowed: for {'; for '.join(listed)}."  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


def reproduce(
    paper: Annotated[str | None, typer.Argument(help="freqcache or heca.")] = None,
    figures: Annotated[list[str] | None, typer.Argument(help=FIGURES_HELP)] = None,
    scale: Annotated[str, typer.Option(help="small: minutes on a CPU; full: the paper's sizes, for a GPU.")] = "small",
    data: Annotated[
        str | None, typer.Option(help="A prepared directory in place of the synthetic Criteo Kaggle.")
    ] = None,
    avazu: Annotated[str | None, typer.Option(help="A prepared directory in place of the synthetic Avazu.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps of each run; by default the scale's.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 or bf16; by default tf32 for full scale on a GPU, else fp32.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    out: Annotated[
        str, typer.Option(help="CSV, PNG and JSON go to a folder of the paper's name in here.")
    ] = "runs/reproduce",
    listed: Annotated[bool, typer.Option("--list", help="List what can be reproduced, and stop.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object as the last line, for machines.")
    ] = False,
) -> None:
    """Run a paper's experiments again. Each figure gets a table with the published values, a CSV and a plot.

    The exit code is 1 if a figure does not show what it must. On a CPU, speeds are printed and not judged. Ctrl-C keeps
    finished figures, and the passes that are complete.
    """
    from hotrows.reproduce import PAPERS

    if listed:
        _show_list({paper: PAPERS[paper]} if paper in PAPERS else PAPERS, as_json)
        return
    with reported_plainly():
        from hotrows.data.directories import check_directory
        from hotrows.reproduce.bench import Bench
        from hotrows.reproduce.experiment import choose

        if paper not in PAPERS:
            raise ValueError(f"paper is {paper!r}: known are {', '.join(PAPERS)}; --list says what each has")
        scales = PAPERS[paper].scales
        if scale not in scales:
            raise ValueError(f"scale is {scale!r}: known are {', '.join(scales)}")
        if steps is not None and steps < 2:
            raise ValueError(f"steps is {steps}, it must be 2 or more")
        directory = check_directory(check_directory(out) / paper)
        chosen = choose(PAPERS[paper].experiments, figures or [], paper)
        precision = _choose_precision(precision, device, scale)
        given = {shape: name for shape, name in (("criteo-kaggle", data), ("avazu", avazu)) if name is not None}
        found, interrupted = _run_all(paper, chosen, Bench(scales[scale], device, given, steps, precision), directory)
    failed = [
        f"{one['figure']}: {claim['text']}" for one in found for claim in one["claims"] if claim["holds"] is False
    ]
    if as_json:
        typer.echo(json_text({"paper": paper, "figures": found, "failed": failed, "interrupted": interrupted}))
    if interrupted:
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(1)


def _choose_precision(precision: str | None, device: str, scale: str) -> str:
    from hotrows.train.config import PRECISIONS
    from hotrows.train.run import choose_device

    on_gpu = choose_device(device).type == "cuda"
    chosen = ("tf32" if on_gpu and scale == "full" else "fp32") if precision is None else precision
    if chosen not in PRECISIONS or (chosen != "fp32" and not on_gpu):
        allowed = ", ".join(PRECISIONS) if on_gpu else "fp32 on a CPU"
        raise ValueError(f"precision is {chosen!r}: allowed is {allowed}")
    return chosen


def _run_all(
    paper: str, chosen: "list[Experiment]", bench: "Bench", directory: Path
) -> tuple[list[dict[str, Any]], bool]:
    """Run, write and show one figure after the other. Finished figures stay if a later one is interrupted."""
    from hotrows.cli.show import Steps
    from hotrows.reproduce.output import commit, write
    from hotrows.stores.pinned_memory import memory_kept

    commit()
    found: list[dict[str, Any]] = []
    try:
        with memory_kept():
            for experiment in chosen:
                with Steps() as steps:
                    bench.progress = steps
                    result = experiment.run(bench)
                found.append(write(directory, paper, experiment, bench, result))
                _show(experiment, bench, result, directory)
                if bench.passes_done is not None:
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        typer.secho(f"interrupted: {len(found)} of {len(chosen)} figures are in {directory}", fg="yellow", err=True)
        return found, True
    return found, False


def _show(experiment: "Experiment", bench: "Bench", result: "Result", directory: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    # In a log file, a table must not be cut off at the width of a terminal.
    console = Console(highlight=False)
    wide = console if console.is_terminal else Console(highlight=False, width=200)
    print_line = wide.print
    print_line(f"\n[bold]{experiment.title}[/bold]")
    settings = ", ".join(f"{key} {value}" for key, value in result.settings.items())
    print_line(
        f"{bench.scale.name} scale, {experiment.sizes(bench)}" + (f"; {settings}" if settings else ""),
        style="bright_black",
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in result.columns:
        words = any(isinstance(row[column.key], str) for row in result.rows)
        table.add_column(
            column.title, justify="left" if words else "right", style="yellow" if column.published else None
        )
    for row in result.rows:
        table.add_row(*(column.text(row[column.key]) for column in result.columns))
    print_line(table)
    for note in result.notes:
        print_line(note, style="bright_black")
    colors = {"yes": "green", "NO": "bold red", "not judged": "yellow"}
    for claim in result.claims:
        print_line(f"[{colors[claim.verdict]}]{claim.verdict}[/]: {claim.text} ({claim.found})")
    print_line(f"written: {directory / experiment.name}.csv, .png, .json")


def _show_list(papers: "dict[str, Paper]", as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for name, paper in papers.items():
        console.print(f"[bold]{name}[/bold]  {paper.title}")
        table = Table(box=None, show_header=False, pad_edge=False)
        for each in paper.experiments:
            table.add_row(f"  {each.name}", f"{each.title}. {each.about}")
        console.print(table)
    if as_json:
        names = {
            name: [{"name": each.name, "title": each.title, "about": each.about} for each in paper.experiments]
            for name, paper in papers.items()
        }
        typer.echo(json_text(names))
