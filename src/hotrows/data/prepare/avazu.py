"""Avazu's click log: CSV with a header. Every column is a category, and `hour` gives the time (YYMMDDHH).

`id` is dropped, and so are columns that the original log does not have. `hour` becomes two categories: hour of the day
and day of the week.
"""

from pathlib import Path

import ibis

from hotrows.data.prepare.column_names import check_header
from hotrows.data.prepare.files import check_first_line, header_fields
from hotrows.data.prepare.log import YYMMDDHH, Expression, Log, LogFile, Problem, Table, bad_label, column

CATEGORIES = (
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category",
    "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21",
)  # fmt: skip
NEEDED = ("click", "hour", *CATEGORIES)


def avazu(paths: tuple[Path, ...]) -> Log:
    return Log(
        name="avazu",
        files=tuple(_file(path) for path in paths),
        columns=NEEDED,
        label=column("click"),
        dense={},
        categorical={
            "hour_of_day": lambda table: table.hour.substr(6, 2),
            "weekday": _weekday,
            **{name: column(name) for name in CATEGORIES},
        },
        problems=(bad_label("click"), Problem("hour is not YYMMDDHH", "hour as YYMMDDHH", _bad_hour)),
        time="hour",
        day=lambda table: table.hour.substr(0, 6),
    )


def _file(path: Path) -> LogFile:
    fields = header_fields(path, ",", NEEDED)
    check_header(path, NEEDED, fields, any_case=False)
    check_first_line(path, ",", len(fields), f"{len(fields)} fields, as in the header")
    columns = {name: "number" if name == "click" else "text" for name in fields}
    return LogFile(path, columns, ",", header=True)  # type: ignore[arg-type]


def _bad_hour(table: Table) -> Expression:
    return table.hour.isnull() | ~table.hour.re_search(YYMMDDHH)


def _weekday(table: Table) -> Expression:
    """The day of the week, 0 for Sunday, by Zeller's rule: integer arithmetic is the same on every engine."""
    year, month, day = (table.hour.substr(start, 2).cast("int64") for start in (0, 2, 4))
    before_march = ibis.ifelse(month <= 2, 1, 0)
    year = year + 2000 - before_march
    month = month + 12 * before_march - 2
    number = day + year + year // 4 - year // 100 + year // 400 + 31 * month // 12
    return (number.cast("int64") % 7).cast("string")
