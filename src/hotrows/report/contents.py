"""The rows in the cache at the end of a run, by table."""

from html import escape
from typing import Any, NamedTuple

from hotrows.report.bars import bar
from hotrows.report.chart import heading, not_measured, note
from hotrows.report.run import Run, number
from hotrows.report.units import count, percent

_MOST_TABLES = 30


class _Table(NamedTuple):
    name: str
    num_rows: float
    cached: float


def contents(run: Run) -> str:
    """A line per table, the one with the most cached rows first.

    It has the share of the table that is cached, and the table's share of the cached rows.
    """
    key, title = "contents", "Cache contents by table"
    tables = _tables(run.cache.get("tables"))
    if not tables:
        return not_measured(key, title)
    used = sum(table.cached for table in tables)
    slots = number(run.cache, "slots")
    body = "".join(_line(table, used) for table in _most_cached(tables))
    head = "<th>table</th><th>rows</th><th>cached</th><th>share of the table</th><th>share of what is cached</th>"
    full = f"{count(used)} of {count(slots)} slots used" if slots else f"{count(used)} rows cached"
    small = [table for table in tables if table.num_rows and table.cached == table.num_rows]
    text = f"{len(small)} of {len(tables)} tables are on the device completely." if small else ""
    return f"""
<figure class="card contents" data-plot="{key}">
{heading(title, full)}
<table><thead><tr>{head}</tr></thead>
<tbody>{body}</tbody></table>
{note(text)}
</figure>"""


def _tables(entries: Any) -> list[_Table]:
    found = []
    for entry in entries if isinstance(entries, list) else []:
        num_rows, cached = number(entry, "rows"), number(entry, "cached")
        if num_rows is not None and cached is not None:
            found.append(_Table(str(entry.get("name", "")), num_rows, cached))
    return sorted(found, key=lambda table: (-table.cached, -table.num_rows))


def _most_cached(tables: list[_Table]) -> list[_Table]:
    if len(tables) <= _MOST_TABLES:
        return tables
    rest = tables[_MOST_TABLES:]
    others = _Table(f"{len(rest)} others", sum(t.num_rows for t in rest), sum(t.cached for t in rest))
    return [*tables[:_MOST_TABLES], others]


def _line(table: _Table, used: float) -> str:
    of_table = table.cached / table.num_rows if table.num_rows else 0.0
    of_cache = table.cached / used if used else 0.0
    return (
        f"<tr><th>{escape(table.name)}</th><td>{count(table.num_rows)}</td><td>{count(table.cached)}</td>"
        f"<td>{_bar(of_table, 1, f'share of {table.name} that is cached')}</td>"
        f"<td>{_bar(of_cache, 3, f'share of the cached rows that are of {table.name}')}</td></tr>\n"
    )


def _bar(share: float, color: int, label: str) -> str:
    return f'<div class="with-bar">{bar(share, color, label)}<span>{percent(share)}</span></div>'
