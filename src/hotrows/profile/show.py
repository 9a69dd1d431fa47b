"""A profile as tables in the terminal."""

from typing import TYPE_CHECKING

from hotrows.profile.frequencies import Skew
from hotrows.profile.measure import HOT_SHARE, TOP_SHARES, Profile

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

BAR = 30  # characters


def show(profile: Profile, console: "Console | None" = None) -> None:
    """Print it with rich."""
    from rich.columns import Columns
    from rich.console import Console
    from rich.markup import escape

    console = console or Console()
    console.print(
        f"[bold]{escape(profile.data)}[/bold]: {profile.num_samples:,} samples read, {len(profile.columns)} "
        f"categorical columns, {profile.pooled.num_ids:,} rows"
    )
    console.print(_titled("How ids are used: accesses by the most frequent ids", _columns(profile)))
    kept = _titled("What deduplication keeps", _deduplication(profile))
    missed = _titled(f"What LRU misses, batches of {profile.batch_size:,}", _misses(profile))
    console.print(Columns([kept, missed], padding=(0, 4)))
    found = profile.suggestion
    console.print(
        f"Suggested: [bold]--cache {found.cache}[/bold] ({found.share:.2%} of the rows, {_size(found.num_bytes)}), for "
        f"{found.reason}. LRU would hit {found.hit_rate:.1%}; a policy that looks ahead hits more."
    )


def _columns(profile: Profile) -> "Table":
    from rich.markup import escape

    table = _table()
    table.add_column("column")
    table.add_column("rows", justify="right")
    for share in TOP_SHARES:
        table.add_column(f"top {share * 100:.4g}%", justify="right")
    table.add_column(f"ids for {HOT_SHARE:.0%}", justify="right")
    for column in profile.columns:
        shared = "" if column.table == column.name else f" [dim]({escape(column.table)})[/dim]"
        table.add_row(escape(column.name) + shared, *_cells(column.skew))
    table.add_section()
    table.add_row("all", *_cells(profile.pooled), style="bold")
    return table


def _cells(skew: Skew) -> list[str]:
    tops = [f"{skew.share_of_top(share):.1%}" for share in TOP_SHARES]
    return [f"{skew.num_ids:,}", *tops, f"{skew.ids_for(HOT_SHARE):.3%}"]


def _deduplication(profile: Profile) -> "Table":
    table = _table()
    table.add_column("batch size", justify="right")
    table.add_column("kept", justify="right")
    for size, share in profile.deduplication.items():
        table.add_row(f"{size:,}", f"{share:.1%}")
    return table


def _misses(profile: Profile) -> "Table":
    table = _table()
    table.add_column("cache rows", justify="right")
    table.add_column("of all", justify="right")
    table.add_column("misses", justify="right")
    table.add_column("")
    for rows, share in profile.miss_ratio.items():
        bar = "█" * round(share * BAR)
        table.add_row(f"{rows:,}", f"{rows / profile.pooled.num_ids:.2%}", f"{share:.1%}", f"[cyan]{bar}[/cyan]")
    return table


def _table() -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, pad_edge=False)


def _titled(title: str, table: "Table") -> "RenderableType":
    """A table below its title. Rich would wrap a table's own title at the width of the table."""
    from rich.console import Group
    from rich.text import Text

    return Group(Text(title, style="bold"), table)


def _size(num_bytes: int) -> str:
    for unit, size in [("GB", 10**9), ("MB", 10**6), ("KB", 10**3)]:
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes} B"
