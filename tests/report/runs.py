"""Run directories like those that training writes, made without training."""

import json
import math
import random
from pathlib import Path
from typing import Any

# The tables of Criteo Kaggle.
TABLES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
BATCH_SIZE = 2048
DIM = 16
EVERY = 50  # steps between two metric lines


def write_run(path: Path, num_lines: int = 300, table_rows: tuple[int, ...] = TABLES) -> Path:
    """Write a whole run: metrics, validation, test, summary, cache contents."""
    path.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    metrics = _metrics(rng, num_lines)
    train = [line for line in metrics if line["kind"] == "train"]
    slots = math.ceil(0.015 * sum(table_rows))
    tables = _contents(table_rows, slots)
    files: dict[str, Any] = {
        "config": config(),
        "environment": {
            "hotrows": "0.1.0",
            "python": "3.12.3",
            "torch": "2.11.0+cu128",
            "hardware": "NVIDIA H200, 16 cores",
            "commit": "e5c11a9",
            "started": "2026-03-01T12:34:56+00:00",
            "command": "hotrows train examples/criteo-sample.toml --cache 1.5% --out runs/criteo",
        },
        "summary": {
            "strategy": "lookahead",
            "model": "dlrm:freqcache",
            "steps": train[-1]["step"],
            "samples_per_second": train[-1]["samples"] / train[-1]["seconds"],
            "seconds": train[-1]["seconds"],
            "interrupted": False,
            "train": {"loss": train[-1]["loss"]},
            "valid": {name: metrics[-2][name] for name in ("auc", "logloss", "accuracy")},
            "test": {name: metrics[-1][name] for name in ("auc", "logloss", "accuracy")},
            "cache": {
                "rows": slots,
                "slots_share": slots / sum(table_rows),
                "hit_rate": 0.9134,
                "bytes_in": sum(line["bytes_in"] for line in train),
                "bytes_out": sum(line["bytes_out"] for line in train),
                "misses": sum(line["bytes_in"] for line in train) // (8 * DIM),
                "evictions": sum(line["bytes_out"] for line in train) // (8 * DIM),
                "overflow": 0,
                "stalls": sum(line["stalls"] for line in train),
            },
            "device_memory": 412_000_000,
            "host_memory": sum(table_rows) * 8 * DIM,
            "num_rows": sum(table_rows),
            "dim": DIM,
        },
        "cache": {"slots": slots, "used": sum(table["cached"] for table in tables), "tables": tables},
    }
    for name, value in files.items():
        write_json(path, name, value)
    write_metrics(path, metrics)
    return path


def config() -> dict[str, Any]:
    return {
        "data": "prepared/criteo-kaggle",
        "seed": 0,
        "model": {"name": "dlrm:freqcache", "dim": DIM, "bottom": [512, 256, 64, 16], "top": [512, 256, 1]},
        "strategy": "lookahead",
        "cache": {"size": "1.5%", "policy": "lookahead", "index": "auto", "depth": 4, "window": 32},
        "train": {"batch_size": BATCH_SIZE, "epochs": 1, "learning_rate": 0.1, "warm_up": 0.05, "amp": None},
    }


def write_json(path: Path, name: str, value: Any) -> None:
    (path / f"{name}.json").write_text(json.dumps(value, indent=2))


def read_json(path: Path, name: str) -> Any:
    return json.loads((path / f"{name}.json").read_text())


def write_metrics(path: Path, metrics: list[dict[str, Any]]) -> None:
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def _metrics(rng: random.Random, num_lines: int) -> list[dict[str, Any]]:
    metrics: list[dict[str, Any]] = []
    seconds = 0.0
    for index in range(num_lines):
        step, done = (index + 1) * EVERY, (index + 1) / num_lines
        missing = 0.087 + 0.9 * math.exp(-index / 6) + 0.02 * abs(rng.gauss(0, 0.4))
        stages = {
            "load": 0.8 * rng.uniform(0.8, 1.2),
            "plan": 0.5 + 2 * missing * rng.uniform(0.8, 1.2),
            "wait": 3 * missing**2 * rng.uniform(0.5, 1.5),
            "train": 3.9 * rng.uniform(0.95, 1.05),
        }
        step_ms = stages["train"] + stages["wait"] + 0.3
        seconds += EVERY * step_ms / 1e3
        bytes_in = int(EVERY * missing * 0.21 * BATCH_SIZE * 26 * 8 * DIM)
        metrics.append(
            {
                "kind": "train",
                "step": step,
                "samples": step * BATCH_SIZE,
                "seconds": seconds,
                "loss": 0.452 + 0.24 * math.exp(-12 * done) + 0.02 * (1 - done) + rng.gauss(0, 0.006),
                "lr": 0.1 * (done / 0.05 if done < 0.05 else (1.05 - done) ** 0.5),
                "samples_per_second": BATCH_SIZE / step_ms * 1e3,
                "hit_rate": 1 - min(1, missing),
                "stalls": int(EVERY * min(1, missing**2 * rng.uniform(0, 2))),
                "bytes_in": bytes_in,
                "bytes_out": int(bytes_in * min(1, index / 8) * 0.97),
                "stages": stages,
            }
        )
        if (index + 1) % max(1, num_lines // 10) == 0:
            metrics.append(_evaluation("valid", step, 0.801 - 0.06 * math.exp(-4 * done)))
    metrics.append(_evaluation("test", num_lines * EVERY, 0.7987))
    return metrics


def _evaluation(kind: str, step: int, auc: float) -> dict[str, Any]:
    return {
        "kind": kind,
        "step": step,
        "samples": step * BATCH_SIZE,
        "auc": auc,
        "logloss": 0.4589 + 0.8 * (0.8 - auc),
        "accuracy": 0.7891 - 0.3 * (0.8 - auc),
    }


def _contents(table_rows: tuple[int, ...], slots: int) -> list[dict[str, Any]]:
    """Small tables are cached as a whole, and large ones in proportion to the square root of their size."""
    weight = sum(rows**0.5 for rows in table_rows)
    return [
        {"name": f"C{index + 1}", "rows": rows, "cached": min(rows, int(slots * rows**0.5 / weight))}
        for index, rows in enumerate(table_rows)
    ]
