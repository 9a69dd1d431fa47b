"""`prepare`, from top to bottom: read, check, order, split, count, encode, write."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import ibis

import hotrows
from hotrows.data.directories import check_directory
from hotrows.data.prepare import expressions
from hotrows.data.prepare.column_names import file_stems, table_name
from hotrows.data.prepare.engines import Engine, Part, connect
from hotrows.data.prepare.errors import BadInputError, OutputError
from hotrows.data.prepare.files import line_of_record, list_files
from hotrows.data.prepare.gzip_check import gzip_checked
from hotrows.data.prepare.log import History, Log, LogFile, Table
from hotrows.data.prepare.order import is_sorted
from hotrows.data.prepare.output import new_directory, write_description
from hotrows.data.prepare.report import PrepareReport, Skipped
from hotrows.data.prepare.splits import Splits, at_random, before, by_time, check_fractions
from hotrows.data.prepare_defaults import DEFAULTS, PrepareDefaults
from hotrows.data.schema import SPLITS, Column, Schema
from hotrows.options import check_options

KINDS = ("criteo", "avazu", "taobao", "table")
ROWS_PER_SHARD = 1 << 20

Progress = Callable[[str, float], None]


def prepare(
    kind: str,
    input: str | Path,
    out: str | Path,
    *,
    min_count: int = DEFAULTS.min_count,
    split: str = DEFAULTS.split,
    valid: float = DEFAULTS.valid,
    test: float = DEFAULTS.test,
    seed: int = DEFAULTS.seed,
    engine: str = DEFAULTS.engine,
    memory_limit: str = DEFAULTS.memory_limit,
    on_error: str = DEFAULTS.on_error,
    config: Path | None = None,
    progress: Progress | None = None,
) -> PrepareReport:
    """Make a data set of a click log: shards, vocabularies and `dataset.json` in the new directory `out`.

    Args:
        kind: the log's format, one of `KINDS`.
        input: a file, or a directory of files that are read in the order of their names.
        min_count: values that occur fewer times in the training split share the id `rare`.
        split: `time`: the last `test` of the log, and `valid` before it; `day`: the last day (or file) is for testing;
            `random`: drawn by `seed`.
        engine: `duckdb` or `spark`.
        memory_limit: the memory that the engine may use before it spills to disk, beside `out`.
        on_error: `stop` at the first bad line, or `skip` all of them and report how many.
        config: for `table`, the TOML file that names the columns.
        progress: called with the name of the current step and the share of it that is done, 0 to 1.
    """
    started = time.perf_counter()
    chosen = PrepareDefaults(min_count, split, valid, test, seed, engine, memory_limit, on_error)
    check_options(chosen)
    check_fractions(valid, test)
    input, out = Path(input), _free(out)
    on_progress = progress or (lambda phase, done: None)
    log = open_log(kind, list_files(input), config)
    options = asdict(chosen)
    del options["engine"]
    with new_directory(out) as directory:
        work = directory / "work"
        running = connect(engine, memory_limit, work)
        try:
            job = _Job(running, log, directory, work, on_error == "skip", on_progress)
            rows = job.read_in_order()
            splits = job.split(rows, split, valid, test, seed)
            schema = job.count(rows, splits, min_count)
            files = job.write(rows, splits, schema)
        finally:
            running.close()
        rmtree(work)
        num_samples = {name: sum(Part.of_file(path).num_rows for path in files[name]) for name in SPLITS}
        on_progress("finishing", 0.0)
        description = job.describe(schema, files, num_samples)
        description["source"] |= {"kind": kind, "options": options, "engine": engine}
        write_description(directory, description)
    on_progress("finishing", 1.0)
    skipped, seconds = tuple(job.skipped), time.perf_counter() - started
    return PrepareReport(log.name, out, job.num_read, skipped, schema.tables, num_samples, seconds)


def _free(out: str | Path) -> Path:
    """The directory, which must not be there yet."""
    try:
        directory = check_directory(out)
    except ValueError as error:
        raise OutputError(str(error)) from None
    if directory.exists():
        raise OutputError(f"{directory} exists already: choose another directory, or remove it first")
    return directory


def open_log(kind: str, paths: tuple[Path, ...], config: Path | None) -> Log:
    """Check the first lines of a log, and describe how to read it."""
    from hotrows.data.prepare import avazu, criteo, table, taobao

    if kind == "table":
        if config is None:
            raise ValueError("table needs a config: a TOML file that names label, categorical and dense columns")
        return table.table(paths, config)
    formats = {"criteo": criteo.criteo, "avazu": avazu.avazu, "taobao": taobao.taobao}
    if kind not in formats:
        raise ValueError(f"unknown kind of log {kind!r}; known: {', '.join(KINDS)}")
    return formats[kind](paths)


@dataclass(frozen=True)
class _Rows:
    """Usable rows in the order of time, and the number of the first row of the log's last file."""

    parts: tuple[Part, ...]
    num_rows: int
    last_file: int


class _Job:
    """The phases of one run. They share the engine, the log and a working directory."""

    def __init__(
        self, engine: Engine, log: Log, directory: Path, work: Path, skip: bool, on_progress: Progress
    ) -> None:
        self.engine = engine
        self.log = log
        self.directory = directory
        self.work = work
        self.skip = skip
        self.on_progress = on_progress
        self.skipped: list[Skipped] = []
        self.num_read = 0
        stems = file_stems(tuple(log.categorical))
        self.vocabularies = {name: directory / "vocabulary" / f"{stem}.parquet" for name, stem in stems.items()}

    def read_in_order(self) -> _Rows:
        """Read every file, check every row, and leave out the bad ones or stop at the first."""
        parts: list[Part] = []
        num_good = num_bad = last_file = 0
        for number, file in enumerate(self.log.files):
            self.on_progress("reading", number / len(self.log.files))
            found, rejected_lines = self._read_file(file, number)
            num_rows = sum(part.num_rows for part in found)
            bad = self._check(found, file, rejected_lines) if num_rows else 0
            self.num_read += num_rows
            last_file = num_good
            num_good += num_rows - bad
            num_bad += bad
            parts += found
        if num_good == 0:
            raise BadInputError(self.log.files[0].path, "no usable row", "a log with at least one good row")
        if num_bad or (self.log.time and not is_sorted(self.engine.scan(parts, self.log.time))):
            good = expressions.without_problems(self.engine.table(parts, self.log.columns), self.log)
            order = [self.log.time, "row"] if self.log.time else ["row"]
            parts = list(self.engine.store(good, "ordered", order))
        self.on_progress("reading", 1.0)
        return _Rows(tuple(parts), num_good, last_file)

    def split(self, rows: _Rows, kind: str, valid: float, test: float, seed: int) -> Splits:
        if kind == "random":
            return at_random(rows.num_rows, valid, test, seed)
        if kind == "time":
            return by_time(rows.num_rows, valid, test)
        if self.log.day is None:
            if len(self.log.files) < 2:
                raise ValueError(
                    f"split='day' needs a directory of days, or a log with a time: {self.log.files[0].path} is one "
                    "file without; use split='time'"
                )
            return before(rows.last_file, rows.num_rows, round(rows.num_rows * valid))
        table = self.engine.table(rows.parts, self.log.columns)
        days = table.select("row", day=self.log.day(table)).group_by("day").aggregate(first=ibis._.row.min())
        last_day = self.engine.fetch(days.order_by(ibis.desc("day")).limit(1))["first"]
        return before(last_day, rows.num_rows, round(rows.num_rows * valid))

    def count(self, rows: _Rows, splits: Splits, min_count: int) -> Schema:
        """Write the vocabulary of every table. Only the training split is counted."""
        (self.directory / "vocabulary").mkdir()
        table = self.engine.table(rows.parts, self.log.columns)
        if self.log.history:
            samples = self._with_lookups(table, self.log.history, splits)
        else:
            training = table.filter(splits.contains("train", table.row))
            texts = {name: make(training) for name, make in self.log.categorical.items()}
            samples = training.select(**texts, _weight=ibis.literal(1))
        self.engine.write_vocabularies(
            samples,
            self.vocabularies,
            lambda occurrences: expressions.vocabulary(occurrences, min_count),
            lambda done: self.on_progress("counting", done),
        )
        columns = [
            Column(name, Part.of_file(path).num_rows, table_name(name)) for name, path in self.vocabularies.items()
        ]
        if self.log.history:
            num_ids = {column.name: column.num_ids for column in columns}
            for name, of in self.log.history.sequences.items():
                columns.append(Column(name, num_ids[of], table_name(of), self.log.history.length))
        return Schema(tuple(self.log.dense), tuple(columns))

    def write(self, rows: _Rows, splits: Splits, schema: Schema) -> dict[str, tuple[Path, ...]]:
        """Write the shards of every split."""
        parts, columns = rows.parts, self.log.columns
        order = ["label", *schema.dense, *(column.name for column in schema.categorical)]
        encode = self._encode
        if self.log.history:
            # A history may begin in an earlier shard, so histories are made for the whole log first.
            self.on_progress("histories", 0.0)
            table = encode(self.engine.table(parts, columns))
            table = table.mutate(**expressions.past(table, self.log.history, "_user"))
            parts = self.engine.store(table.select("row", *order), "samples", ["row"])
            columns, encode = tuple(order), lambda table: table
            self.on_progress("histories", 1.0)
        files: dict[str, tuple[Path, ...]] = {}
        rows_per_shard = self._rows_per_shard(schema)
        # Splits that are ranges of rows are written by one query. A random split has a query of its own.
        for group in [SPLITS] if splits.drawn is None else [(split,) for split in SPLITS]:

            def build(table: Table, split: str = group[0]) -> Table:
                chosen = table if splits.drawn is None else table.filter(splits.contains(split, table.row))
                return encode(chosen).select("row", *order)

            def report(part: float, num_done: int = len(files), num: int = len(group)) -> None:
                self.on_progress("writing", (num_done + part * num) / len(SPLITS))

            targets = {self.directory / split: splits.rows[split] for split in group}
            written = self.engine.write_shards(parts, columns, targets, build, rows_per_shard, report)
            files |= zip(group, written, strict=True)
        if not files["train"]:
            raise ValueError(f"{rows.num_rows} rows leave none for training: take smaller fractions for valid and test")
        return files

    def describe(
        self, schema: Schema, files: dict[str, tuple[Path, ...]], num_samples: dict[str, int]
    ) -> dict[str, Any]:
        """The content of dataset.json, for `write_description`."""
        splits = {
            name: {
                "num_samples": num_samples[name],
                "files": [path.relative_to(self.directory).as_posix() for path in files[name]],
            }
            for name in SPLITS
        }
        return {
            "name": self.log.name,
            "schema": {"dense": list(schema.dense), "categorical": [asdict(column) for column in schema.categorical]},
            "splits": splits,
            "vocabularies": {
                table_name(name): path.relative_to(self.directory).as_posix()
                for name, path in self.vocabularies.items()
            },
            "source": {
                "input": [str(file.path) for file in self.log.files],
                "hotrows": hotrows.__version__,
                "rows_read": self.num_read,
                "rows_skipped": {skipped.reason: skipped.num_rows for skipped in self.skipped},
            },
        }

    def _read_file(self, file: LogFile, number: int) -> tuple[tuple[Part, ...], frozenset[int]]:
        if file.delimiter is None:
            return (Part.of_file(file.path),), frozenset()
        with gzip_checked(file.path):
            read = self.engine.read(file, self.log.columns, f"read_{number:05d}")
        for rejected in read.rejected:
            self._skip_or_stop(rejected.reason, rejected.expected, rejected.num_rows, file.path, rejected.line)
            self.num_read += rejected.num_rows
        return read.parts, read.rejected_lines

    def _check(self, parts: Sequence[Part], file: LogFile, rejected_lines: frozenset[int]) -> int:
        """Count the rows of a file that were read but cannot be used, and report why."""
        table = self.engine.table(parts, self.log.columns)
        if not self.engine.fetch(expressions.num_problems(table, self.log))["num_bad"]:
            return 0
        found = self.engine.fetch(expressions.problems(table, self.log))
        num_bad = 0
        for number, problem in enumerate(self.log.problems):
            if num_rows := found[f"count_{number}"] or 0:
                row = found[f"row_{number}"]
                text = file.delimiter is not None
                line = line_of_record(file.path, row, file.header, rejected_lines) if text else row + 1
                self._skip_or_stop(problem.reason, problem.expected, num_rows, file.path, line)
                num_bad += num_rows
        return num_bad

    def _skip_or_stop(self, reason: str, expected: str, num_rows: int, path: Path, line: int | None) -> None:
        if not self.skip:
            raise BadInputError(path, reason, expected, line)
        self.skipped.append(Skipped(reason, num_rows, path, line, expected))

    def _with_lookups(self, table: Table, history: History, splits: Splits) -> Table:
        """The categories of all rows that training looks up. Column `_weight` is how often it does."""
        samples = expressions.values(table, self.log)
        weight = expressions.lookups(samples, history, history.user, splits.contains("train", samples.row))
        weighted = samples.select("row", *self.log.categorical, _weight=weight)
        parts = self.engine.store(weighted.filter(weighted._weight > 0), "weighted", ["row"])
        return self.engine.table(parts, [*self.log.categorical, "_weight"])

    def _encode(self, table: Table) -> Table:
        vocabularies = {name: self.engine.lookup(path) for name, path in self.vocabularies.items()}
        samples = expressions.values(table, self.log)
        if self.log.history:
            # Rare users share an id, but each has a history of its own.
            samples = samples.mutate(_user=samples[self.log.history.user])
        return expressions.encode(samples, vocabularies)

    def _rows_per_shard(self, schema: Schema) -> int:
        """The rows of a shard. Each shard joins the vocabularies again, so large vocabularies need larger shards."""
        return max(ROWS_PER_SHARD, sum(schema.tables.values()) // 4)
