"""A run: trains as a configuration says, and writes a directory with the results."""

import json
import logging
import platform
import re
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

import hotrows
from hotrows.cache.policies import POLICIES
from hotrows.data.dataset import PreparedDataSet, open_dataset
from hotrows.data.description import DESCRIPTION
from hotrows.data.schema import SPLITS, DataSet, Schema
from hotrows.data.synthetic import PREFIX
from hotrows.errors import NotFiniteError
from hotrows.models import MODELS, Model, make_model
from hotrows.models.own import check_logits
from hotrows.report import write_report
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.stores.memory_checks import available_memory, require_memory
from hotrows.strategies import DataKnowledge, Strategy, make_strategy
from hotrows.train.config import RunConfig, with_defaults
from hotrows.train.directory import CONFIG, METRICS, TENSORBOARD, check_free, run_directory
from hotrows.train.observers import MetricsFile, ProgressBar, TensorBoard
from hotrows.train.optimizers import check_optimizers, make_dense_optimizer, make_row_optimizer
from hotrows.train.precision import computing_in, set_matmul_precision
from hotrows.train.save import MODEL_FILE, check_room, load_model, save_failure, save_model, write_json
from hotrows.train.termination import ended_by_signals
from hotrows.train.timeline import Timeline
from hotrows.train.trainer import Observer, Outcome, Parts, Trainer, evaluate
from hotrows.train.vocabulary import check_vocabulary, vocabulary_of

logger = logging.getLogger("hotrows")


@dataclass
class Run:
    """A finished run."""

    directory: Path
    summary: dict[str, Any]


def run(config: RunConfig, *, trace: bool = False, progress: bool = True) -> Run:
    """Train as configured, and write the run directory: configuration, versions, metrics, report, model.

    Args:
        trace: also write trace.json, a timeline for Perfetto.
        progress: show a progress bar.
    """
    config.check()
    check_optimizers(config)
    check_free(config.out)
    device = choose_device(config.device)
    if config.train.precision != "fp32" and device.type == "cpu":
        raise ValueError(f"train.precision is {config.train.precision!r}, which is for CUDA: use fp32 on a CPU")
    data = open_dataset(config.data)
    if data.num_samples("train") == 0:
        raise ValueError(f"{data.name} has no samples in its train split")
    config = with_defaults(config, data.num_samples("train"))
    if data.num_samples("valid") == 0 and (config.train.keep == "best" or config.train.early_stopping is not None):
        raise ValueError(
            f"train.keep = 'best' and train.early_stopping need a validation split, and {data.name} has none: prepare "
            "it with --valid 0.1"
        )
    strategy = strategy_of(config, DataKnowledge(data))
    with ended_by_signals(), run_directory(config.out) as directory:
        return _run(config, data, device, strategy, directory, trace, progress)


def _run(
    config: RunConfig, data: DataSet, device: torch.device, strategy: Strategy, directory: Path, trace: bool,
    progress: bool,
) -> Run:  # fmt: skip
    """Train, and write the results into the run's own directory."""
    parts = build(config, data.schema, device, strategy)
    if config.save:
        check_room(directory, parts)
    write_json(directory / CONFIG, config.to_json())
    write_json(directory / "environment.json", environment(device))
    timeline = Timeline(keep=trace)
    for scheduler in parts.bags.schedulers:
        timeline.watch(scheduler.streams)
    observers: list[Observer] = [MetricsFile(directory / METRICS), TensorBoard(directory / TENSORBOARD)]
    if progress:
        observers.append(ProgressBar())
    trainer = Trainer(config, data, parts, strategy, observers, timeline)
    if config.save:
        trainer.after_training = lambda: save_model(directory, parts, data.schema.dense, vocabulary_of(data))
        trainer.restore = lambda: _load_into(parts, load_model(directory))
    try:
        outcome = trainer.train()
    except NotFiniteError as error:
        failure = save_failure(directory, error)
        write_report(directory)
        raise failure from None
    with defer_sigint():  # the results of a finished training are written, also if Ctrl-C comes now
        summary = {**summarize(config, parts, outcome), "strategy_outcome": strategy.outcome(parts.bags)}
        write_json(directory / "summary.json", summary)
        write_json(directory / "cache.json", cache_contents(parts))
        if trace:
            timeline.write(directory / "trace.json")
        write_report(directory)
    return Run(directory, summary)


def strategy_of(config: RunConfig, data: DataKnowledge | None = None) -> Strategy:
    """Make the configured strategy with its section of the run file. Warn about cache settings that it does not use.

    Args:
        data: what is known about the training split.
    """
    strategy = make_strategy(config.strategy, config.cache, config.options.get(config.strategy), data)
    overruled = strategy.overruled()
    if overruled:
        unused = ", ".join(f"cache.{name} = {value!r}" for name, value in overruled.items())
        logger.warning("strategy %s chooses these settings itself and does not use %s", config.strategy, unused)
    return strategy


def build(config: RunConfig, schema: Schema, device: torch.device, strategy: Strategy) -> Parts:
    """Make the model, the embedding bags and the optimizers. Every random value comes from the configured seed."""
    _check_dense_memory(config, schema, device)
    torch.manual_seed(config.seed)
    set_matmul_precision(config.train.precision)
    model = _make_model(config, schema).to(device)
    if config.model.name not in MODELS:
        check_logits(config.model.name, model, len(schema.dense), len(schema.categorical))
    rows = make_row_optimizer(config.optimizer)
    tables = [replace(table, init=config.model.init) for table in schema.embedding_tables]
    bags = strategy.make_bags(tables, model.embedding_dim, rows, device, config.seed)
    return Parts(model, bags, make_dense_optimizer(config.dense_optimizer, model.parameters()), device)


def evaluate_run(directory: Path, data: str | None = None, split: str = "test") -> dict[str, Any]:
    """Evaluate the model of a run in the run's precision.

    Args:
        data: a data set with the same columns and the same vocabulary; None takes the one that the run was trained on.

    Raises:
        ValueError: such as a data set that was prepared with another vocabulary.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}: known are {', '.join(SPLITS)}")
    config = RunConfig.from_dict(_read(directory / CONFIG), str(directory / CONFIG))
    config.check()
    check_optimizers(config)
    saved = load_model(directory)
    dataset: DataSet = _open_again(config.data) if data is None else open_dataset(data)
    schema = _schema_of_model(dataset, saved)
    check_vocabulary(dataset, saved.get("vocabulary"), config.data)
    if isinstance(dataset, PreparedDataSet):
        dataset = dataset.with_schema(schema)
    elif any(dataset.schema.tables[name] > num_rows for name, num_rows in schema.tables.items()):
        raise ValueError(
            f"{dataset.name} has more ids than the model's tables have rows: give the one it was trained on"
        )
    device = choose_device(config.device if torch.cuda.is_available() else "auto")
    parts = build(config, schema, device, strategy_of(config, DataKnowledge(dataset)))
    try:
        _load_into(parts, saved)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"{directory / MODEL_FILE} is not the model that {directory / CONFIG} describes: train it again ({error})"
        ) from error
    if dataset.num_samples(split) == 0:
        raise ValueError(f"{dataset.name} has no samples in its {split} split")
    loader = dataset.loader(split, config.train.eval_batch_size)
    precision = computing_in(config.train.precision, device)
    result = evaluate(parts, loader, precision, split, schema.dense)
    return {"model": config.model.name, "data": dataset.name, split: result}


def _load_into(parts: Parts, saved: dict[str, Any]) -> None:
    parts.model.load_state_dict(saved["model"])
    parts.bags.load_state_dict(saved["bags"])


def summarize(config: RunConfig, parts: Parts, outcome: Outcome) -> dict[str, Any]:
    """The summary of a run, as JSON values."""
    stats = parts.bags.stats()
    slots = sum(cache.num_slots for cache in parts.bags.caches)
    num_rows = sum(cache.store.num_rows for cache in parts.bags.caches)
    store_bytes = sum(cache.store.num_rows * cache.store.layout.num_bytes for cache in parts.bags.caches)
    return {
        "strategy": config.strategy,
        "model": config.model.name,
        "data": config.data,
        "steps": outcome.steps,
        "kept_step": outcome.kept_step,
        "samples": outcome.samples,
        "seconds": outcome.seconds,
        "samples_per_second": outcome.samples_per_second,
        "interrupted": outcome.interrupted,
        "train": {"loss": outcome.loss},
        "valid": outcome.valid,
        "test": outcome.test,
        "cache": {
            "rows": slots,
            "slots_share": slots / num_rows,
            "hit_rate": stats.hit_rate,
            "bytes_in": stats.bytes_in,
            "bytes_out": stats.bytes_out,
            "misses": stats.misses,
            "evictions": stats.evictions,
            "overflow": stats.overflow,
            "stalls": outcome.stalls,
            "policy": _policy(parts),
        },
        "device_memory": _device_memory(parts),
        "host_memory": store_bytes,
        "num_rows": num_rows,
        "dim": parts.bags.caches[0].dim,
    }


def _policy(parts: Parts) -> str | None:
    """The name of the policy that chose victims. None if all rows are on the device, and none was needed."""
    policy = getattr(parts.bags.caches[0].planner, "policy", None)  # the identity planner has none
    return next((name for name, kind in POLICIES.items() if type(policy) is kind), None)


def cache_contents(parts: Parts) -> dict[str, Any]:
    """The number of rows of each table that are in the cache."""
    found = parts.bags.cached_rows()
    tables = [{"name": table.name, "rows": table.num_rows, "cached": found[table.name]} for table in parts.bags.tables]
    slots = sum(cache.num_slots for cache in parts.bags.caches)
    return {"slots": slots, "used": sum(found.values()), "tables": tables}


def environment(device: torch.device) -> dict[str, Any]:
    """The machine and the versions that a run was made with."""
    return {
        "hotrows": hotrows.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "hardware": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def choose_device(name: str) -> torch.device:
    """The device with this name. "auto" is CUDA if PyTorch sees a CUDA device, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = re.fullmatch(r"cpu|cuda(?::(\d{1,3}))?", name)
    if found is None:
        raise ValueError(f"device is {name!r}: known are auto, cpu, cuda and cuda:0, cuda:1, …")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device is {name!r}, but PyTorch sees no CUDA device: use cpu")
    if found[1] is not None and int(found[1]) >= torch.cuda.device_count():
        raise ValueError(f"device is {name!r}, but PyTorch sees {torch.cuda.device_count()} CUDA device(s)")
    return torch.device(name)


def _open_again(name: str) -> DataSet:
    """The data set of a run. Its configuration has the name as it was given, which may be a relative path."""
    is_relative = not name.startswith(PREFIX) and not Path(name).is_absolute()
    if is_relative and not (Path(name) / DESCRIPTION).is_file():
        raise ValueError(
            f"there is no data set {name!r} in {Path.cwd()}: the run was trained on it in the directory where it was "
            f"started, so evaluate from there, or give its path with --data"
        )
    return open_dataset(name)


def _schema_of_model(dataset: DataSet, saved: dict[str, Any]) -> Schema:
    """The model's columns in its own order, with its table sizes. Ids beyond these sizes become the rare id.

    Raises:
        ValueError: the data set has other columns.
    """
    known = {column.name: column for column in dataset.schema.categorical}
    names = (*saved["dense"], *saved["columns"])
    missing = [name for name in names if name not in known and name not in dataset.schema.dense]
    if missing or len(names) != len(known) + len(dataset.schema.dense):
        unknown = [name for name in (*dataset.schema.dense, *known) if name not in names]
        raise ValueError(
            f"the model was trained on {len(saved['dense'])} dense and {len(saved['columns'])} categorical columns, "
            f"{dataset.name} has {len(dataset.schema.dense)} and {len(known)}: the "
            f"data lacks {_listed(missing)}; the model lacks {_listed(unknown)}"
        )
    mixed = [name for name in names if (name in known) != (name in saved["columns"])]
    if mixed:
        raise ValueError(
            f"{_listed(mixed)} of {dataset.name}: dense in one of data and model, categorical in the other"
        )
    columns = tuple(known[name] for name in saved["columns"])
    foreign = sorted({column.table for column in columns} - set(saved["tables"]))
    if foreign:
        raise ValueError(f"the model has no table for {_listed(foreign)}: its tables are {', '.join(saved['tables'])}")
    sized = tuple(replace(column, num_ids=saved["tables"][column.table]) for column in columns)
    return Schema(tuple(saved["dense"]), sized)


def _listed(names: list[str]) -> str:
    """Names in a message: the first five of them."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "nothing"


def _check_dense_memory(config: RunConfig, schema: Schema, device: torch.device) -> None:
    """Raise if the dense part does not fit. A model on the meta device has shapes, and no memory."""
    try:
        with torch.device("meta"):
            model = _make_model(config, schema)
    except RuntimeError:
        if config.model.name in MODELS:
            raise
        return  # The constructor of a user's model may read values, which the meta device does not have.
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    advice = "choose a smaller model.dim"
    require_memory("the weights of the dense part", num_bytes, available_memory(device), f"memory on {device}", advice)


def _make_model(config: RunConfig, schema: Schema) -> Model:
    model = config.model
    return make_model(model.name, len(schema.dense), len(schema.categorical), model.dim, **model.options)


def _device_memory(parts: Parts) -> int:
    """The most bytes allocated on the device. On the CPU, the bytes of cache, index and model."""
    if parts.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(parts.device))
    return sum(cache.device_bytes for cache in parts.bags.caches) + sum(p.nbytes for p in parts.model.parameters())


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path.parent} is not a run directory: it has no {path.name}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): train again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not the configuration of a run: it has no settings by name")
    return found
