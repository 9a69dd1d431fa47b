"""A run: from its configuration to a directory with everything that came of it."""

import json
import logging
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

import hotrows
from hotrows.data.dataset import PreparedDataSet, open_dataset
from hotrows.data.schema import DataSet, Schema
from hotrows.models import make_model
from hotrows.optim import make_optimizer
from hotrows.profile.sampled_counts import sampled_counts
from hotrows.stores.memory_checks import available_host_memory, readable, require_memory
from hotrows.strategies import Strategy, make_strategy
from hotrows.table import Table
from hotrows.train.config import OptimizerConfig, RunConfig, from_dict
from hotrows.train.observers import MetricsFile, ProgressBar, TensorBoard
from hotrows.train.timeline import Timeline
from hotrows.train.trainer import DENSE, Observer, Outcome, Parts, Trainer, evaluate

MODEL_FILE = "model.pt"

logger = logging.getLogger("hotrows")


@dataclass
class Run:
    """A finished run."""

    directory: Path
    summary: dict[str, Any]


def run(config: RunConfig, *, trace: bool = False, progress: bool = True) -> Run:
    """Train as configured, and write the run directory: configuration, versions, metrics, report, model."""
    config.check()
    strategy = strategy_of(config)
    device = choose_device(config.device)
    if config.train.precision != "fp32" and device.type == "cpu":
        raise ValueError(f"train.precision is {config.train.precision!r}, which is for CUDA: use fp32 on a CPU")
    data = open_dataset(config.data)
    inform(strategy, data)
    directory = _make_directory(config)
    parts = build(config, data.schema, device, strategy)
    _write(directory / "config.json", config.to_json())
    _write(directory / "environment.json", environment(device))
    timeline = Timeline(keep=trace)
    for group in parts.bags.groups:
        timeline.watch(group)
    observers: list[Observer] = [MetricsFile(directory / "metrics.jsonl"), TensorBoard(directory / "tensorboard")]
    if progress:
        observers.append(ProgressBar())
    outcome = Trainer(config, data, parts, strategy, observers, timeline).train()
    summary = {**summarize(config, parts, outcome), "strategy_outcome": strategy.outcome(parts.bags)}
    _write(directory / "summary.json", summary)
    _write(directory / "cache.json", cache_contents(parts))
    if trace:
        timeline.write(directory / "trace.json")
    if config.save:
        save_model(directory, parts)
    from hotrows.report import write_report

    write_report(directory)
    return Run(directory, summary)


def strategy_of(config: RunConfig) -> Strategy:
    """The configured strategy, with its own section of the run file where it has one."""
    strategy = make_strategy(config.strategy, config.cache, getattr(config, config.strategy, None))
    overruled = strategy.overruled()
    if overruled:
        said = ", ".join(f"cache.{name} = {value!r}" for name, value in overruled.items())
        logger.warning("%s chooses by itself what %s would say: it is not used", config.strategy, said)
    return strategy


def inform(strategy: Strategy, data: DataSet) -> None:
    """Let a strategy know what it may ask of the data that will be trained on."""
    strategy.counts = data.counts
    strategy.sampled_counts = partial(sampled_counts, data)


def build(config: RunConfig, schema: Schema, device: torch.device, strategy: Strategy) -> Parts:
    """Model, embedding bags and optimizers, all from the configured seed."""
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision("highest" if config.train.precision == "fp32" else "high")
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
    """Metrics of a run's model on a split of its own data set or of another one of the same schema."""
    config = from_dict(RunConfig, _read(directory / "config.json"), str(directory / "config.json"))
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
    config.device = str(choose_device("auto" if not torch.cuda.is_available() else config.device))
    strategy = strategy_of(config)
    strategy.counts = dataset.counts
    parts = build(config, schema, torch.device(config.device), strategy)
    parts.model.load_state_dict(saved["model"])
    parts.bags.load_state_dict(saved["bags"])
    if dataset.num_samples(split) == 0:
        raise ValueError(f"{dataset.name} has no samples in its {split} split")
    from contextlib import nullcontext

    result = evaluate(parts, dataset.loader(split, config.train.eval_batch_size), nullcontext())
    return {"model": config.model.name, "data": dataset.name, split: result}


def save_model(directory: Path, parts: Parts) -> None:
    """Everything that `evaluate_run` needs."""
    num_bytes = sum(group.store.num_rows * group.dim * 4 for group in parts.bags.groups)
    require_memory("a copy of the model", num_bytes, available_host_memory(), "host memory", "train with save = false")
    free = shutil.disk_usage(directory).free
    if num_bytes > free:
        raise ValueError(
            f"the model takes {readable(num_bytes)} and {directory} has {readable(free)} free: set save = false"
        )
    torch.save(
        {
            "model": parts.model.state_dict(),
            "bags": {name: weight.contiguous() for name, weight in parts.bags.state_dict().items()},
            "tables": {table.name: table.num_rows for table in parts.bags.tables},
            "columns": list(parts.bags.features),
            "num_dense": parts.model.num_dense,
        },
        directory / MODEL_FILE,
    )


def summarize(config: RunConfig, parts: Parts, outcome: Outcome) -> dict[str, Any]:
    """The JSON object of a run."""
    stats = parts.bags.stats()
    slots = sum(group.num_slots for group in parts.bags.groups)
    num_rows = sum(group.store.num_rows for group in parts.bags.groups)
    store_bytes = sum(group.store.num_rows * group.store.layout.num_bytes for group in parts.bags.groups)
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
        "dim": parts.bags.groups[0].dim,
    }


def cache_contents(parts: Parts) -> dict[str, Any]:
    """How many rows of each table are in the cache."""
    found = parts.bags.cached_rows()
    tables = [{"name": table.name, "rows": table.num_rows, "cached": found[table.name]} for table in parts.bags.tables]
    slots = sum(group.num_slots for group in parts.bags.groups)
    return {"slots": slots, "used": sum(found.values()), "tables": tables}


def environment(device: torch.device) -> dict[str, Any]:
    """Where and with what a run was made."""
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
    """ "auto" is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device is {name!r}, but PyTorch sees no CUDA device: use cpu")
    return torch.device(name)


def _columns_of(schema: Schema, tables: dict[str, int]) -> tuple[Any, ...]:
    """The data set's columns with the tables' sizes of the model: ids beyond them are rare."""
    from dataclasses import replace

    unknown = sorted({column.table for column in schema.categorical} - set(tables))
    if unknown:
        raise ValueError(f"the model has no table for {', '.join(unknown)}: its tables are {', '.join(tables)}")
    return tuple(replace(column, num_ids=tables[column.table]) for column in schema.categorical)


def _dense_optimizer(config: OptimizerConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    return DENSE[config.name](model.parameters(), **config.arguments())


def _device_memory(parts: Parts) -> int:
    """Most bytes taken on the device; on the CPU what is kept there in place of a device: cache, index and model."""
    if parts.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(parts.device))
    return sum(group.device_bytes for group in parts.bags.groups) + sum(p.nbytes for p in parts.model.parameters())


def _make_directory(config: RunConfig) -> Path:
    directory = Path(config.out) if config.out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"{directory} exists and is not empty: choose another --out, or remove it")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ValueError(f"{path.parent} is not a run directory: it has no {path.name}")
    found: dict[str, Any] = json.loads(path.read_text())
    return found
