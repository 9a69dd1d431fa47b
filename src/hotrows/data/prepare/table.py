"""Any CSV or Parquet log. A TOML file names its columns, see `TableSettings`.

A dense value that is empty or NaN is missing, and becomes 0. One that is infinite or beyond float32 is an error, as is
a time that is missing, infinite, NaN or no possible date. Fractions are allowed in all dense and numeric time columns.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from hotrows.data.prepare.column_names import check_column_names, check_header
from hotrows.data.prepare.errors import BadInputError
from hotrows.data.prepare.files import check_first_line, fields_of, first_line, header_fields
from hotrows.data.prepare.log import Expression, Log, LogFile, Make, Table, bad_label, column, infinite, no_time
from hotrows.options import describe_options, option, required

MOST_DELIMITERS = 4  # characters, of DuckDB
_TYPES = {str: "text", bool: "true or false", tuple[str, ...]: "list of texts, the names of columns"}


@dataclass(frozen=True)
class TableSettings:
    """The TOML file of `hotrows prepare table --config`: which columns a log has, and what they are."""

    label: str = required("The column with 1 for a click and 0 for none.")
    categorical: tuple[str, ...] = required("The columns whose values get embedding rows, of any type.")
    dense: tuple[str, ...] = option((), "The columns with numbers.")
    time: str | None = option(
        None,
        "The column with the time, ISO text or a number. The log is ordered and split by it. Left out, the order of "
        "the file is that of time.",
    )
    log_scale: bool = option(True, "Dense values become log(1 + x), and negative ones 0.")
    delimiter: str | None = option(
        None, "What separates the fields of a CSV file. Left out, a tab for .tsv files and a comma for all others."
    )
    columns: tuple[str, ...] | None = option(
        None, "The names of all columns, in order, of a CSV file without a header. Left out, the first line has them."
    )


def table(paths: tuple[Path, ...], config: Path) -> Log:
    settings = _read(config)
    label, time, dense, categorical = settings.label, settings.time, settings.dense, settings.categorical
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
        log_scale=settings.log_scale,
    )


def _read(config: Path) -> TableSettings:
    try:
        content = tomllib.loads(config.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInputError(config, str(error), "a TOML file that names the columns of the log") from error
    known = {each.name: each for each in describe_options(TableSettings)}
    for name, value in content.items():
        if name not in known:
            raise BadInputError(config, f"unknown setting {name!r}", "one of " + ", ".join(known))
        _check_type(config, name, value, known[name].kind)
        if name in ("time", "delimiter", "columns") and not value:
            raise BadInputError(config, f"{name} is empty", f"a value, or no {name}")
    delimiter = content.get("delimiter")
    if delimiter is not None and (len(delimiter) > MOST_DELIMITERS or set(delimiter) & set('"\r\n\0')):
        raise BadInputError(
            config, f"delimiter is {delimiter!r}", f"1 to {MOST_DELIMITERS} characters, no quote and no line end"
        )
    for name in ("label", "categorical"):
        if not content.get(name):
            raise BadInputError(config, f"no {name}", 'label = "a column" and categorical = ["columns"]')
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }
    settings = TableSettings(**given)
    if set(settings.categorical) & {*settings.dense, settings.label}:
        raise BadInputError(config, "a categorical column is also dense or the label", "each column named once")
    return settings


def _check_type(config: Path, name: str, value: object, kind: Any) -> None:
    """Raise if a value is not of the type of its setting. A tuple of texts is a list in the file."""
    expected = next(each for each in _TYPES if kind in (each, each | None))
    texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
    if not (texts if expected == tuple[str, ...] else isinstance(value, expected)):
        raise BadInputError(config, f"{name} is {value!r}", f"a {_TYPES[expected]}")


def _csv_file(path: Path, needed: tuple[str, ...], settings: TableSettings) -> LogFile:
    delimiter = settings.delimiter or ("\t" if ".tsv" in path.name else ",")
    fields = settings.columns or header_fields(path, delimiter, needed)
    check_first_line(path, delimiter, len(fields), f"{len(fields)} fields with {delimiter!r} between")
    missing = [name for name in needed if name not in fields]
    if missing:
        raise BadInputError(path, f"no column {', '.join(missing)}", f"one of {', '.join(fields)}")
    numbers = {settings.label, *settings.dense}
    header = settings.columns is None
    time = settings.time
    if time:
        first = fields_of(path, first_line(path, after=int(header)), delimiter)
        if fields.index(time) < len(first) and _is_number(first[fields.index(time)]):
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
