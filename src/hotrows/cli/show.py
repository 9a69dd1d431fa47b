"""The program's output for people: progress bars, tables, and where results were written."""

from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from hotrows.stores.memory_checks import readable

if TYPE_CHECKING:
    from hotrows.data.prepare import PrepareReport
    from hotrows.train.run import Run


class Steps:
    """Shows a bar for each named step of long work. It is called with a step's name and the share that is done."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True)
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Steps":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def __call__(self, step: str, done: float) -> None:
        if step not in self._tasks:
            self._tasks[step] = self._progress.add_task(step, total=1.0)
        self._progress.update(self._tasks[step], completed=done)


def show_prepared(report: "PrepareReport") -> None:
    print_line = Console(highlight=False).print
    print_line(f"[bold]{escape(str(report.out))}[/bold] is ready: {report.num_rows:,} lines in {report.seconds:.1f} s")
    table = _pairs()
    for split, num in report.num_samples.items():
        table.add_row(split, f"{num:,} samples")
    table.add_row("ids", f"{sum(report.num_ids.values()):,} in {len(report.num_ids)} tables")
    print_line(table)
    if report.lookups is not None:
        print_line("lookups of values that the vocabulary does not have, which got the rare id:")
        table = _pairs()
        for name, found in report.lookups.items():
            share = f"{found.num_new / found.num:.2%}" if found.num else "none"
            table.add_row(f"  {escape(name)}", f"{found.num_new:,} of {found.num:,} ({share})")
        print_line(table)
    if report.num_skipped:
        print_line(f"[yellow]skipped {report.num_skipped:,} bad lines:[/yellow]")
    for skipped in report.skipped:
        first = f"(first: {skipped.path}, line {skipped.line})"
        print_line(escape(f"  {skipped.num_rows:,}: {skipped.reason} {first}"))


def show_run(run: "Run") -> None:
    """Print the results of a training run."""
    from hotrows.report.units import fixed
    from hotrows.strategies import strategy_type

    summary = run.summary
    table = _pairs()
    if summary["interrupted"]:
        table.add_row("interrupted", "yes: all that was trained is in the run directory")
    for split in ("valid", "test"):
        if summary[split]:
            table.add_row(f"{split} AUC", fixed(summary[split]["auc"], 5))
            table.add_row(f"{split} log loss", f"{summary[split]['logloss']:.5f}")
    table.add_row("training loss", fixed(summary["train"]["loss"], 5))
    table.add_row("samples per second", f"{summary['samples_per_second']:,.0f}")
    cache: dict[str, Any] = summary["cache"]
    share = f"{cache['slots_share']:.2%}"
    table.add_row("rows on the device", f"{cache['rows']:,} of {summary['num_rows']:,} ({share})")
    table.add_row("hit rate", f"{cache['hit_rate']:.1%} of the unique rows of a batch were there already")
    for name, text in strategy_type(summary["strategy"]).describe_outcome(summary["strategy_outcome"]):
        table.add_row(name, text)
    table.add_row("moved", f"{readable(cache['bytes_in'])} in, {readable(cache['bytes_out'])} out")
    table.add_row("memory", f"{readable(summary['device_memory'])} device, {readable(summary['host_memory'])} host")
    table.add_row("report", escape(str(run.directory / "report.html")))
    Console().print(table)


def _pairs() -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    return table
