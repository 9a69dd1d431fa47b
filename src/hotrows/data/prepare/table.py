"""Any CSV or Parquet log. A TOML file names its columns:

```toml
label = "is_attributed"
categorical = ["ip", "app", "device", "os", "channel"]
dense = []                      # numbers
time = "click_time"             # optional: order and split by it; ISO text or numbers
log_scale = true                # dense values become log(1 + x), negatives 0
delimiter = ","                 # CSV only
columns = ["ip", "app", ...]    # CSV without a header: the names of all columns, in order
```

A dense value that is empty or NaN is missing, and becomes 0. One that is infinite or beyond float32 is an error, as is
a time that is missing, infinite, NaN or no possible date. Fractions are allowed in all dense and numeric time columns.
"""

import tomllib
from pathlib import Path
from typing import Any, Literal, cast

from hotrows.data.prepare.column_names import check_column_names, check_header
from hotrows.data.prepare.errors import BadInputError
from hotrows.data.prepare.files import check_first_line, first_line, header_fields
from hotrows.data.prepare.log import Expression, Log, LogFile, Make, Table, bad_label, column, infinite, no_time

KNOWN = {
    "label": str, "categorical": list, "dense": list, "time": str, "log_scale": bool, "delimiter": str, "columns": list,
}  # fmt: skip


def table(paths: tuple[Path, ...], config: Path) -> Log:
    settings = _read(config)
    label, time = settings["label"], settings.get("time")
    dense, categorical = settings.get("dense", []), settings["categorical"]
    needed = tuple(dict.fromkeys([label, *dense, *categorical, *([time] if time else [])]))
    check_column_names(config, (*dense, *categorical), needed)
    numbers = {label, *dense}
    log_files = tuple(
        _parquet_file(path, needed, numbers)
        if path.suffix in (".parquet", ".pq")
        else _csv_file(path, needed, settings)
        for path in paths
    )
    return Log(
        name=config.stem,
        files=log_files,
        columns=needed,
        label=column(label),
        dense={name: _number(name) for name in dense},
        categorical={name: _text(name) for name in categorical},
        problems=(bad_label(label), *(infinite(name) for name in dense), *((no_time(time),) if time else ())),
        time=time,
        day=_day(time) if time else None,
        log_scale=settings.get("log_scale", True),
    )


def _read(config: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(config.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInputError(config, str(error), "a TOML file that names the columns of the log") from error
    for name, value in settings.items():
        if name not in KNOWN:
            raise BadInputError(config, f"unknown setting {name!r}", "one of " + ", ".join(KNOWN))
        if not isinstance(value, KNOWN[name]):
            raise BadInputError(config, f"{name} is {value!r}", f"a {KNOWN[name].__name__}")
        if isinstance(value, list) and not all(isinstance(each, str) for each in value):
            raise BadInputError(config, f"{name} is {value!r}", "a list of texts, the names of columns")
        if name in ("time", "delimiter", "columns") and not value:
            raise BadInputError(config, f"{name} is empty", f"a value, or no {name}")
    for name in ("label", "categorical"):
        if not settings.get(name):
            raise BadInputError(config, f"no {name}", 'label = "a column" and categorical = ["columns"]')
    if set(settings["categorical"]) & {*settings.get("dense", []), settings["label"]}:
        raise BadInputError(config, "a categorical column is also dense or the label", "each column named once")
    return settings


def _csv_file(path: Path, needed: tuple[str, ...], settings: dict[str, Any]) -> LogFile:
    delimiter = settings.get("delimiter", "\t" if ".tsv" in path.name else ",")
    fields = settings.get("columns") or header_fields(path, delimiter, needed)
    check_first_line(path, delimiter, len(fields), f"{len(fields)} fields with {delimiter!r} between")
    missing = [name for name in needed if name not in fields]
    if missing:
        raise BadInputError(path, f"no column {', '.join(missing)}", f"one of {', '.join(fields)}")
    numbers = {settings["label"], *settings.get("dense", [])}
    header = "columns" not in settings
    time = settings.get("time")
    if time and _is_number(first_line(path, after=int(header)).rstrip("\r\n").split(delimiter)[fields.index(time)]):
        numbers.add(time)
    check_header(path, needed, fields, any_case=False)
    # A column that is not read may have any name, also none or that of another column, as pandas' index has.
    columns: dict[str, Literal["number", "text"]] = {
        name if name in needed else f"_not_read_{number}": "number" if name in numbers else "text"
        for number, name in enumerate(fields)
    }
    return LogFile(path, columns, delimiter, header, quote='"')


def _parquet_file(path: Path, needed: tuple[str, ...], numbers: set[str]) -> LogFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise BadInputError(path, f"it cannot be read ({error})", "a complete Parquet file") from error
    missing = [name for name in needed if name not in schema.names]
    if missing:
        raise BadInputError(path, f"no column {', '.join(missing)}", f"one of {', '.join(schema.names)}")
    check_header(path, needed, schema.names, any_case=True)
    if reserved := [name for name in schema.names if name.casefold() == "file_row_number"]:
        raise BadInputError(path, f"prepare uses the name of column {reserved[0]!r} itself", "a log without it")
    for name in numbers:
        kind = schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise BadInputError(path, f"column {name} is {kind}", "numbers")
    return LogFile(path)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(name: str) -> Make:
    return lambda table: table[name].cast("float64")


def _text(name: str) -> Make:
    return lambda table: table[name].cast("string")


def _day(name: str) -> Make:
    def make(table: Table) -> Expression:
        time = table[name]
        if time.type().is_timestamp() or time.type().is_date():
            return time.date()
        if time.type().is_numeric():
            return (time / 86_400).floor()
        return cast(Any, time).substr(0, len("2000-01-01"))

    return make
