"""Taobao's UserBehavior log: user, item, category, behavior, timestamp; the header is optional.

One sample is one interaction: will the user do more than look (cart, favourite or buy: label 1; page view: label 0)
with this item, given the items and categories of up to 20 interactions of the same user before it? The one dense
column is the time since the last of them in seconds, which is 0 for a user's first interaction.
"""

from pathlib import Path
from typing import Literal

import ibis

from hotrows.data.prepare.files import check_first_line, first_line
from hotrows.data.prepare.log import Expression, History, Log, LogFile, Problem, Table, column, no_time

COLUMNS: dict[str, Literal["number", "text"]] = {
    "user_id": "text",
    "item_id": "text",
    "category_id": "text",
    "behavior": "text",
    "timestamp": "number",
}
BEHAVIORS = ("pv", "cart", "fav", "buy")


def taobao(paths: tuple[Path, ...]) -> Log:
    return Log(
        name="taobao",
        files=tuple(_file(path) for path in paths),
        columns=tuple(COLUMNS),
        label=lambda table: ibis.ifelse(table.behavior == "pv", 0, 1),
        dense={"seconds_since_last": _seconds_since_last},
        categorical={"user": column("user_id"), "item": column("item_id"), "category": column("category_id")},
        problems=(
            Problem("unknown behavior", "behavior " + ", ".join(BEHAVIORS), _bad_behavior),
            Problem("no user", "a user_id", lambda table: table.user_id.isnull()),
            Problem("no timestamp", "timestamp in seconds", no_time("timestamp").found),
        ),
        time="timestamp",
        # Days begin at midnight in Beijing.
        day=lambda table: ((table.timestamp + 8 * 3600) / 86_400).floor(),
        history=History("user", {"item_history": "item", "category_history": "category"}),
    )


def _file(path: Path) -> LogFile:
    header = first_line(path).rstrip("\r\n").split(",") == list(COLUMNS)
    check_first_line(path, ",", len(COLUMNS), ",".join(COLUMNS))
    return LogFile(path, COLUMNS, ",", header=header)


def _bad_behavior(table: Table) -> Expression:
    return table.behavior.isnull() | ~table.behavior.isin(BEHAVIORS)


def _seconds_since_last(table: Table) -> Expression:
    last = table.timestamp.lag().over(group_by=table.user_id, order_by=table.row)
    return table.timestamp - last
