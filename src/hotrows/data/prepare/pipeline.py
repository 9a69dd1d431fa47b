"""`prepare`, from top to bottom: read, check, order, split, count, encode, write."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import ibis

import hotrows
from hotrows.data.checksums import VOCABULARY_CHECKSUMS, checksum_of_vocabulary
from hotrows.data.directories import check_directory
from hotrows.data.prepare import expressions
from hotrows.data.prepare.column_names import file_stems, table_name
from hotrows.data.prepare.engines import Engine, Part, connect
from hotrows.data.prepare.errors import BadInputError, OutputError
from hotrows.data.prepare.files import line_of_record, list_files
from hotrows.data.prepare.given_vocabulary import GivenVocabulary, count_lookups, read_vocabulary, write_recounted
from hotrows.data.prepare.gzip_check import gzip_checked
from hotrows.data.prepare.log import History, Log, LogFile, Table
from hotrows.data.prepare.order import is_sorted
from hotrows.data.prepare.output import new_directory, write_description
from hotrows.data.prepare.report import Lookups, PrepareReport, Skipped
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
    vocabulary: str | Path | None = None,
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
        vocabulary: a prepared data set, whose vocabulary is used in place of one of this log's own. So a model that was
            trained on that data set can be evaluated on this one. A value that it does not have gets the rare id.
        progress: called with the name of the current step and the share of it that is done, 0 to 1.
    """
    started = time.perf_counter()
    chosen = PrepareDefaults(min_count, split, valid, test, seed, engine, memory_limit, on_error)
    check_options(chosen)
    check_fractions(valid, test)
    input, out = Path(input), _free(out)
    on_progress = progress or (lambda phase, done: None)
    log = open_log(kind, list_files(input), config)
    given = _given_vocabulary(vocabulary, log, min_count)
    options = {name: value for name, value in asdict(chosen).items() if name != "engine"}
    with new_directory(out) as directory:
        work = directory / "work"
        running = connect(engine, memory_limit, work)
        try:
            job = _Job(running, log, directory, work, on_error == "skip", on_progress, given)
            schema, files = job.run(chosen)
        finally:
            running.close()
        rmtree(work)
        num_samples = {name: sum(Part.of_file(path).num_rows for path in files[name]) for name in SPLITS}
        on_progress("finishing", 0.0)
        lookups = job.recount(schema, files)
        description = job.describe(schema, files, num_samples)
        description["source"] |= {"kind": kind, "options": options, "engine": engine}
        write_description(directory, description)
    on_progress("finishing", 1.0)
    skipped, seconds = tuple(job.skipped), time.perf_counter() - started
    return PrepareReport(log.name, out, job.num_read, skipped, schema.tables, num_samples, seconds, lookups)


def _free(out: str | Path) -> Path:
    """The directory, which must not be there yet."""
    try:
        directory = check_directory(out)
    except ValueError as error:
        raise OutputError(str(error)) from None
    if directory.exists():
        raise OutputError(f"{directory} exists already: choose another directory, or remove it first")
    return directory


def _given_vocabulary(directory: str | Path | None, log: Log, min_count: int) -> GivenVocabulary | None:
    if directory is None:
        return None
    if min_count != DEFAULTS.min_count:
        raise ValueError(
            f"min_count is {min_count}, and the vocabulary of {directory} was made with a min_count of its own: leave "
            "one of them out"
        )
    return read_vocabulary(Path(directory), log)


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
        self, engine: Engine, log: Log, directory: Path, work: Path, skip: bool, on_progress: Progress,
        given: GivenVocabulary | None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.log = log
        self.directory = directory
        self.work = work
        self.skip = skip
        self.on_progress = on_progress
        self.skipped: list[Skipped] = []
        self.num_read = 0
        stems = file_stems(tuple(log.categorical))
        self.given = given
        self.vocabularies = {name: directory / "vocabulary" / f"{stem}.parquet" for name, stem in stems.items()}

    def run(self, options: PrepareDefaults) -> tuple[Schema, dict[str, tuple[Path, ...]]]:
        """All phases that need the engine. Returns the columns, and the shards of every split."""
        rows = self.read_in_order()
        splits = self.split(rows, options.split, options.valid, options.test, options.seed)
        schema = self.count(rows, splits, options.min_count)
        return schema, self.write(rows, splits, schema)

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
        """Write the vocabulary of every table, if none was given. Only the training split is counted."""
        (self.directory / "vocabulary").mkdir()
        if self.given is not None:
            return self._schema(self.given.num_ids)
        tables = self._occurrences(self.engine.table(rows.parts, self.log.columns), splits)
        num_done = 0
        for samples, names in tables:

            def report(part: float, num_done: int = num_done, num: int = len(names)) -> None:
                self.on_progress("counting", (num_done + part * num) / len(self.vocabularies))

            self.engine.write_vocabularies(
                samples,
                {name: self.vocabularies[name] for name in names},
                lambda occurrences: expressions.vocabulary(occurrences, min_count),
                report,
            )
            num_done += len(names)
        return self._schema({name: Part.of_file(path).num_rows for name, path in self.vocabularies.items()})

    def _schema(self, num_ids: Mapping[str, int]) -> Schema:
        """The columns of the data set, from the number of ids in each categorical column of the log."""
        columns = [Column(name, num_ids[name], table_name(name)) for name in self.log.categorical]
        if self.log.history:
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

    def recount(self, schema: Schema, files: Mapping[str, Sequence[Path]]) -> dict[str, Lookups] | None:
        """Write a vocabulary that was given, with the counts of this training split. Returns what was looked up."""
        if self.given is None:
            return None
        found = count_lookups(files, schema)
        for name, path in self.vocabularies.items():
            write_recounted(self.given.files[name], path, found.training[table_name(name)])
        return dict(found.columns)

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
            VOCABULARY_CHECKSUMS: {
                table_name(name): checksum_of_vocabulary(path) for name, path in self.vocabularies.items()
            },
            "source": {
                "input": [str(file.path) for file in self.log.files],
                "hotrows": hotrows.__version__,
                "rows_read": self.num_read,
                "rows_skipped": {skipped.reason: skipped.num_rows for skipped in self.skipped},
                **({"vocabulary": str(self.given.directory)} if self.given is not None else {}),
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
                quote = file.quote if self.engine.reads_line_breaks else ""
                line = line_of_record(file, row, quote, rejected_lines) if text else row + 1
                self._skip_or_stop(problem.reason, problem.expected, num_rows, file.path, line)
                num_bad += num_rows
        return num_bad

    def _skip_or_stop(self, reason: str, expected: str, num_rows: int, path: Path, line: int | None) -> None:
        if not self.skip:
            raise BadInputError(path, reason, expected, line)
        self.skipped.append(Skipped(reason, num_rows, path, line, expected))

    def _occurrences(self, table: Table, splits: Splits) -> list[tuple[Table, list[str]]]:
        """The values that training looks up: tables of some columns each, whose `_weight` is how often it does."""
        log = self.log
        in_histories = set(log.history.sequences.values()) if log.history else set()
        training = table.filter(splits.contains("train", table.row))
        texts = {name: make(training) for name, make in log.categorical.items() if name not in in_histories}
        found = [(training.select(**texts, _weight=ibis.literal(1)), list(texts))] if texts else []
        if log.history:
            names = [name for name in log.categorical if name in in_histories]
            found.append((self._with_lookups(table, log.history, splits, names), names))
        return found

    def _with_lookups(self, table: Table, history: History, splits: Splits, names: Sequence[str]) -> Table:
        """The columns that histories are made of. A row is looked up by its own sample, and by the later ones."""
        samples = expressions.values(table, self.log)
        weight = expressions.lookups(samples, history, history.user, splits.contains("train", samples.row))
        weighted = samples.select("row", *names, _weight=weight)
        parts = self.engine.store(weighted.filter(weighted._weight > 0), "weighted", ["row"])
        return self.engine.table(parts, [*names, "_weight"])

    def _encode(self, table: Table) -> Table:
        files = self.vocabularies if self.given is None else self.given.files
        vocabularies = {name: self.engine.lookup(path) for name, path in files.items()}
        samples = expressions.values(table, self.log)
        if self.log.history:
            # Rare users share an id, but each has a history of its own.
            samples = samples.mutate(_user=samples[self.log.history.user])
        return expressions.encode(samples, vocabularies)

    def _rows_per_shard(self, schema: Schema) -> int:
        """The rows of a shard. Each shard joins the vocabularies again, so large vocabularies need larger shards."""
        return max(ROWS_PER_SHARD, sum(schema.tables.values()) // 4)
