"""The files of a run directory. A run that was killed has written only some of them."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES = ("config.json", "environment.json", "metrics.jsonl", "summary.json", "cache.json", "failure.json")


@dataclass(frozen=True)
class Run:
    """The files of a run directory. A part that is missing is empty.

    Args:
        unreadable: a sentence for each file that exists but could not be read.
    """

    name: str
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    cache: dict[str, Any]
    failure: dict[str, Any]
    unreadable: tuple[str, ...] = ()

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """The metric lines of one kind, by step.

        A run may be resumed and then has several lines about one step. The last of them counts.
        """
        by_step = {}
        for line in self.metrics:
            step = number(line, "step")
            if line.get("kind") == kind and step is not None and number(line, "samples") is not None:
                by_step[step] = line
        return [by_step[step] for step in sorted(by_step)]

    def evaluation(self, split: str) -> dict[str, Any]:
        """AUC, log loss and accuracy of a split: the final ones, or the last ones measured if the run was killed."""
        final = self.summary.get(split)
        if isinstance(final, dict):
            return final
        lines = self.lines(split)
        return lines[-1] if lines else {}


def number(tree: object, *keys: str) -> float | None:
    """The finite number at a path in nested JSON; None if there is none."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    if isinstance(tree, bool) or not isinstance(tree, int | float):
        return None
    value = float(tree)
    return value if math.isfinite(value) else None


def read_run(path: Path) -> Run:
    if not any((path / name).is_file() for name in FILES):
        raise ValueError(f"{path} is no run directory: it has none of {', '.join(FILES)}; give the --out of a training")
    unreadable: list[str] = []
    return Run(
        name=path.resolve().name,
        config=_read_object(path / "config.json", unreadable),
        environment=_read_object(path / "environment.json", unreadable),
        metrics=_read_lines(path / "metrics.jsonl", unreadable),
        summary=_read_object(path / "summary.json", unreadable),
        cache=_read_object(path / "cache.json", unreadable),
        failure=_read_object(path / "failure.json", unreadable),
        unreadable=tuple(unreadable),
    )


def _read_object(path: Path, unreadable: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        unreadable.append(f"{path.name} is not a JSON object")
        return {}
    return value


def _read_lines(path: Path, unreadable: list[str]) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    lines, num_bad = [], 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            if not text.strip():
                continue
            try:
                value = json.loads(text)
            except ValueError:
                value = None
            if isinstance(value, dict):
                lines.append(value)
            else:
                num_bad += 1
    if num_bad:
        unreadable.append(f"{path.name} has {num_bad} broken {'line' if num_bad == 1 else 'lines'}, left out here")
    return lines
