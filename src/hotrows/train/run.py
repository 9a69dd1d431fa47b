"""A run: trains as a configuration says, and writes a directory with the results."""

import json
import logging
import platform
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

import hotrows
from hotrows.data.dataset import PreparedDataSet, open_dataset
from hotrows.data.schema import DataSet, Schema
from hotrows.models import make_model
from hotrows.optim import make_optimizer
from hotrows.strategies import DataKnowledge, Strategy, make_strategy
from hotrows.table import Table
from hotrows.train.config import OptimizerConfig, RunConfig
from hotrows.train.observers import MetricsFile, ProgressBar, TensorBoard
from hotrows.train.precision import computing_in, set_matmul_precision
from hotrows.train.save import MODEL_FILE, check_room, save_model, write_json
from hotrows.train.termination import sigterm_interrupts
from hotrows.train.timeline import Timeline
from hotrows.train.trainer import DENSE, Observer, Outcome, Parts, Trainer, evaluate

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
    device = choose_device(config.device)
    if config.train.precision != "fp32" and device.type == "cpu":
        raise ValueError(f"train.precision is {config.train.precision!r}, which is for CUDA: use fp32 on a CPU")
    data = open_dataset(config.data)
    strategy = strategy_of(config, DataKnowledge(data))
    directory = _choose_directory(config)
    parts = build(config, data.schema, device, strategy)
    directory.mkdir(parents=True, exist_ok=True)
    if config.save:
        check_room(directory, parts)
    write_json(directory / "config.json", config.to_json())
    write_json(directory / "environment.json", environment(device))
    timeline = Timeline(keep=trace)
    for scheduler in parts.bags.schedulers:
        timeline.watch(scheduler.streams)
    observers: list[Observer] = [MetricsFile(directory / "metrics.jsonl"), TensorBoard(directory / "tensorboard")]
    if progress:
        observers.append(ProgressBar())
    trainer = Trainer(config, data, parts, strategy, observers, timeline)
    if config.save:
        trainer.after_training = lambda: save_model(directory, parts)
    with sigterm_interrupts():
        outcome = trainer.train()
    summary = {**summarize(config, parts, outcome), "strategy_outcome": strategy.outcome(parts.bags)}
    write_json(directory / "summary.json", summary)
    write_json(directory / "cache.json", cache_contents(parts))
    if trace:
        timeline.write(directory / "trace.json")
    from hotrows.report import write_report

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
    torch.manual_seed(config.seed)
    set_matmul_precision(config.train.precision)
    model = make_model(config.model.name, len(schema.dense), len(schema.categorical), config.model.dim).to(device)
    features: dict[str, list[str]] = {}
    for column in schema.categorical:
        features.setdefault(column.table, []).append(column.name)
    tables = [Table(name, rows, features=tuple(features[name])) for name, rows in schema.tables.items()]
    order = [name for table in tables for name in table.feature_names]
    if order != [column.name for column in schema.categorical]:
        raise ValueError(
            f"columns that share a table must stand together in the data set, but they are in the order "
            f"{', '.join(column.name for column in schema.categorical)}; expected {', '.join(order)}"
        )
    rows = make_optimizer(config.optimizer.name, **config.optimizer.arguments())
    bags = strategy.make_bags(tables, model.embedding_dim, rows, device, config.seed)
    return Parts(model, bags, _dense_optimizer(config.dense_optimizer, model), device)


def evaluate_run(directory: Path, data: str | None = None, split: str = "test") -> dict[str, Any]:
    """Evaluate the model of a run in the run's precision.

    Args:
        data: a data set with the same columns; None takes the one that the run was trained on.
    """
    config = RunConfig.from_dict(_read(directory / "config.json"), str(directory / "config.json"))
    path = directory / MODEL_FILE
    if not path.exists():
        raise ValueError(f"{directory} has no {MODEL_FILE}: train with save = true to evaluate later")
    dataset: DataSet = open_dataset(data or config.data)
    saved = torch.load(path, weights_only=True)
    if len(dataset.schema.categorical) != len(saved["columns"]) or len(dataset.schema.dense) != saved["num_dense"]:
        raise ValueError(
            f"the model was trained on {saved['num_dense']} dense and {len(saved['columns'])} categorical columns, "
            f"{dataset.name} has {len(dataset.schema.dense)} and {len(dataset.schema.categorical)}"
        )
    schema = Schema(dataset.schema.dense, _columns_of(dataset.schema, saved["tables"]))
    if isinstance(dataset, PreparedDataSet):
        dataset = dataset.with_schema(schema)
    elif any(dataset.schema.tables[name] > num_rows for name, num_rows in schema.tables.items()):
        raise ValueError(
            f"{dataset.name} has more ids than the model's tables have rows: give the one it was trained on"
        )
    device = choose_device(config.device if torch.cuda.is_available() else "auto")
    parts = build(config, schema, device, strategy_of(config, DataKnowledge(dataset)))
    parts.model.load_state_dict(saved["model"])
    parts.bags.load_state_dict(saved["bags"])
    if dataset.num_samples(split) == 0:
        raise ValueError(f"{dataset.name} has no samples in its {split} split")
    loader = dataset.loader(split, config.train.eval_batch_size)
    result = evaluate(parts, loader, computing_in(config.train.precision, device))
    return {"model": config.model.name, "data": dataset.name, split: result}


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
            "stalls": stats.stalls,
        },
        "device_memory": _device_memory(parts),
        "host_memory": store_bytes,
        "num_rows": num_rows,
        "dim": parts.bags.caches[0].dim,
    }


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
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device is {name!r}, but PyTorch sees no CUDA device: use cpu")
    return torch.device(name)


def _columns_of(schema: Schema, tables: dict[str, int]) -> tuple[Any, ...]:
    """The data set's columns with the table sizes of the model. Ids beyond these sizes become the rare id."""
    from dataclasses import replace

    unknown = sorted({column.table for column in schema.categorical} - set(tables))
    if unknown:
        raise ValueError(f"the model has no table for {', '.join(unknown)}: its tables are {', '.join(tables)}")
    return tuple(replace(column, num_ids=tables[column.table]) for column in schema.categorical)


def _dense_optimizer(config: OptimizerConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    return DENSE[config.name](model.parameters(), **config.arguments())


def _device_memory(parts: Parts) -> int:
    """The most bytes allocated on the device. On the CPU, the bytes of cache, index and model."""
    if parts.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(parts.device))
    return sum(cache.device_bytes for cache in parts.bags.caches) + sum(p.nbytes for p in parts.model.parameters())


def _choose_directory(config: RunConfig) -> Path:
    directory = Path(config.out) if config.out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"{directory} exists and is not empty: choose another --out, or remove it")
    return directory


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ValueError(f"{path.parent} is not a run directory: it has no {path.name}")
    found: dict[str, Any] = json.loads(path.read_text())
    return found
