"""Curves over the samples seen, from metric lines."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hotrows.report.run import number

Curve = list[tuple[float, float | None]]  # (samples seen, value); None where it was not measured
MOST_POINTS = 400  # a chart is not wide enough to show more, and the page stays small

STAGES = ("load", "plan", "wait", "train")


@dataclass(frozen=True)
class Stretch:
    """The steps between two metric lines, or between several that were joined.

    Args:
        samples: how many samples were seen at its end.
        values: means per step of `loss`, `lr`, `dense_lr`, `hit_rate`, `stalls`, `bytes_in`, `bytes_out`, `batch`
            (samples), `step_ms`, and `stages.NAME` in milliseconds. Only those that were measured are in it.
    """

    samples: float
    num_steps: float
    values: dict[str, float]


def stretches(lines: Sequence[dict[str, Any]], limit: int = MOST_POINTS) -> list[Stretch]:
    """The steps between the training lines of a run. Neighbors are joined if there are more than `limit`."""
    found = []
    for index, line in enumerate(lines):
        step, samples = line["step"], line["samples"]
        before = lines[index - 1] if index else {"step": 0, "samples": 0}
        num_steps = max(1.0, step - before["step"])
        batch = (samples - before["samples"]) / num_steps
        if index == 0 and len(lines) > 1:  # the lines of a resumed run do not begin at step 0
            num_steps = min(num_steps, max(1.0, lines[1]["step"] - step))
        found.append(Stretch(samples, num_steps, _per_step(line, num_steps, batch)))
    return _join(found, limit)


def curve(parts: Iterable[Stretch], value: str | Callable[[dict[str, float]], float | None]) -> Curve:
    pick = value if callable(value) else lambda values: values.get(value)
    return [(part.samples, pick(part.values)) for part in parts]


def samples_per_second(values: dict[str, float]) -> float | None:
    return 1e3 * values["batch"] / values["step_ms"] if values.get("step_ms") else None


def stage_names(parts: Iterable[Stretch]) -> list[str]:
    """The stages that were timed, in the order in which a batch goes through them."""
    seen = {name.removeprefix("stages.") for part in parts for name in part.values if name.startswith("stages.")}
    return [name for name in STAGES if name in seen] + sorted(seen.difference(STAGES))


def mean(parts: Iterable[Stretch], name: str) -> float | None:
    """The mean of a value over all steps that have it."""
    measured = [(part.values[name], part.num_steps) for part in parts if name in part.values]
    return sum(value * n for value, n in measured) / sum(n for _, n in measured) if measured else None


def smooth(points: Curve) -> Curve:
    """The mean over a twentieth of the run around each point. A short run is not changed, and gaps stay gaps."""
    reach = len(points) // 40
    found: Curve = []
    for index, (x, y) in enumerate(points):
        near = min(reach, index)  # the same on both sides: otherwise the steep beginning would be distorted
        around = [v for _, v in points[index - near : index + near + 1] if v is not None]
        found.append((x, None if y is None else sum(around) / len(around)))
    return found


def _per_step(line: dict[str, Any], num_steps: float, batch: float) -> dict[str, float]:
    rate = number(line, "samples_per_second")
    stages = line.get("stages")
    values: dict[str, float | None] = {name: number(line, name) for name in ("loss", "lr", "dense_lr", "hit_rate")}
    for name in ("stalls", "bytes_in", "bytes_out"):
        total = number(line, name)
        values[name] = None if total is None else total / num_steps
    values["batch"] = batch
    values["step_ms"] = 1e3 * batch / rate if rate else None
    if isinstance(stages, dict):
        values |= {f"stages.{name}": number(stages, name) for name in stages}
    return {name: value for name, value in values.items() if value is not None}


def _join(parts: list[Stretch], limit: int) -> list[Stretch]:
    if len(parts) <= limit:
        return parts
    joined = []
    for index in range(limit):
        some = parts[index * len(parts) // limit : (index + 1) * len(parts) // limit]
        names = {name for part in some for name in part.values}
        means = {name: value for name in names if (value := mean(some, name)) is not None}
        joined.append(Stretch(some[-1].samples, sum(part.num_steps for part in some), means))
    return joined
