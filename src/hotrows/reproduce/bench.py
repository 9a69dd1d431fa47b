"""Where experiments run: data, device and scale, and every training run once, however many figures show it."""

import gc
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hotrows.data.dataset import open_dataset
from hotrows.data.schema import DataSet
from hotrows.data.shapes import SHAPES
from hotrows.reproduce.kept import KeptDataSet
from hotrows.reproduce.scale import Scale
from hotrows.train.config import RunConfig
from hotrows.train.run import build, choose_device, strategy_of, summarize
from hotrows.train.timeline import Timeline
from hotrows.train.trainer import Trainer

WARM_UP = 0.3  # of the steps: what they took is not counted
NUM_RECORDS = 20


@dataclass(frozen=True)
class Memory:
    """Bytes on the device."""

    allocated: int = 0  # to tensors, when training was over
    reserved: int = 0  # by PyTorch for them, then
    most: int = 0  # allocated at any time

    def beyond(self, before: "Memory") -> "Memory":
        return Memory(self.allocated - before.allocated, self.reserved - before.reserved)


@dataclass(frozen=True)
class Trained:
    """A training run: its summary, a record every few steps, and the device memory it took."""

    summary: dict[str, Any]
    records: list[dict[str, Any]]
    memory: "Memory"
    on_gpu: bool

    @property
    def warm(self) -> list[dict[str, Any]]:
        """The records after the warm-up."""
        return self.records[int(len(self.records) * WARM_UP) :]

    @property
    def samples_per_second(self) -> float:
        """After the warm-up: on a GPU the median of the records, on a CPU that of the fastest one.

        A CPU does other things too, and the fastest record is the one least disturbed. A GPU's records overlap: the
        host looks at the clock before the GPU is done, so one that seems fast has left its last steps to the next.
        """
        speeds = [float(record["samples_per_second"]) for record in self.warm]
        return statistics.median(speeds) if self.on_gpu else max(speeds)

    def total(self, name: str) -> int:
        """The sum of a count over the warm records."""
        return sum(int(record[name]) for record in self.warm)


@dataclass
class Bench:
    """What experiments are run with.

    Args:
        given: data sets to take in place of the synthetic ones, by the shape they stand for.
        steps: of each training run; None for the scale's.
        precision: of each training run, as in a run's configuration.
        progress: is told what is being done, and the share of it that is done.
    """

    scale: Scale
    device: str = "auto"
    given: dict[str, str] = field(default_factory=dict)
    steps: int | None = None
    precision: str = "fp32"
    progress: Callable[[str, float], None] = lambda step, done: None
    passes_done: int | None = None  # where Ctrl-C has ended the passes before the last
    _kept: dict[str, KeptDataSet] = field(default_factory=dict)
    _trained: dict[str, Trained] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        return self.scale.steps if self.steps is None else self.steps

    def steps_of(self, strategy: str, times: int = 1) -> int:
        """Of a run with this strategy: rows on the host take long, and may get fewer.

        Args:
            times: how many such batches are as large as the largest.
        """
        steps = self.num_steps * min(times, self.scale.most_times)
        most = self.scale.host_steps if strategy == "host" else None
        return steps if most is None else min(most, self.num_steps)

    @property
    def on_gpu(self) -> bool:
        return choose_device(self.device).type == "cuda"

    @property
    def timing(self) -> str:
        """How speeds are taken, in words."""
        passes = self.scale.passes if self.passes_done is None else self.passes_done
        best = f", the best of {passes}" if passes > 1 else ""
        if self.passes_done is not None:
            best += f" ({self.scale.passes} passes were to be made)"
        kind = "Median" if self.on_gpu else "Fastest"
        return f"{kind} of the spans after a warm-up, of {self.iterations}{best}."

    @property
    def iterations(self) -> str:
        """How many a run has, in words."""
        most = self.num_steps * self.scale.most_times
        smaller = f" ({most:,} at most where batches are smaller)" if most > self.num_steps else ""
        return f"{self.num_steps:,} iterations{smaller}"

    def counted(self, shape: str) -> DataSet:
        """A data set to count ids in: of the paper's size even on a small machine, as no table is made."""
        return self._open(shape, f"scale={self.scale.counted_rows:.6g}")

    def kept(self, shape: str, largest_batch: int) -> KeptDataSet:
        """A data set to train on, with enough samples for all steps of the largest batch."""
        if shape not in self._kept:
            num_train = self.num_steps * largest_batch
            days = SHAPES[shape].num_days
            # the last day is not trained on, its halves are for evaluation
            samples = max(-(-num_train * days // (days - 1)) + days, 2 * days * self.scale.eval_samples)
            data = self._open(shape, f"scale={self.scale.rows:.6g}&samples={samples}")
            what = f"data: {shape}"
            self._kept[shape] = KeptDataSet(
                data, num_train, self.scale.eval_samples, lambda done: self.progress(what, done), pinned=self.on_gpu
            )
            if self._kept[shape].num_samples("train") < num_train:
                raise ValueError(
                    f"{data.name} has {data.num_samples('train'):,} samples to train on, {self.num_steps:,} steps of "
                    f"{largest_batch:,} need {num_train:,}: give fewer --steps"
                )
        return self._kept[shape]

    def train(self, what: str, config: RunConfig, data: KeptDataSet, again: int = 0, times: int = 1) -> Trained:
        """Train as configured, for the number of steps of its strategy; `times` as in `steps_of`.

        A run that was made is not made again, but for one with another number `again`.
        """
        config.data, config.device, config.save = data.name, self.device, False
        config.train.precision = self.precision
        config.train.max_steps = self.steps_of(config.strategy, times)
        config.train.log_every = max(1, config.train.max_steps // NUM_RECORDS)
        key = json.dumps([config.to_json(), again], sort_keys=True)
        if key not in self._trained:
            self._trained[key] = self._train(f"{what}, again" if again else what, config, data)
        return self._trained[key]

    def _open(self, shape: str, parameters: str) -> DataSet:
        """The data set given for a shape, or a synthetic one, made where that is fastest."""
        where = "&device=cuda" if self.on_gpu else ""
        return open_dataset(self.given.get(shape) or f"synthetic:{shape}?{parameters}{where}")

    def _train(self, what: str, config: RunConfig, data: KeptDataSet) -> Trained:
        self.progress(what, 0.0)  # making the rows takes a while, too
        config.check()
        device = choose_device(config.device)
        gc.collect()
        before = _begin_memory(device)
        strategy = strategy_of(config, data.knowledge)
        parts = build(config, data.schema, device, strategy)
        _begin_memory(device)  # what making the rows took for a moment is not what training takes
        records = _Records(lambda done: self.progress(what, done), strategy.warmed_up, device)
        outcome = Trainer(config, data, parts, strategy, [records], Timeline()).train()
        if outcome.interrupted:
            raise KeyboardInterrupt
        summary = {**summarize(config, parts, outcome), "strategy_outcome": strategy.outcome(parts.bags)}
        summary["device_memory"] -= before.allocated
        most = int(summary["device_memory"])
        held = Memory(most, most) if records.held is None else records.held.beyond(before)
        return Trained(summary, records.found, replace(held, most=most), device.type == "cuda")


def _begin_memory(device: torch.device) -> "Memory":
    """From now on the most memory counts; answers what is taken already."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return _held(device) or Memory()


def _held(device: torch.device) -> "Memory | None":
    """What is taken on a GPU now; None elsewhere."""
    if device.type != "cuda":
        return None
    return Memory(int(torch.cuda.memory_allocated(device)), int(torch.cuda.memory_reserved(device)))


class _Records:
    """Keeps what the trainer tells, and says when the warm-up is over."""

    def __init__(self, progress: Callable[[float], None], warmed_up: Callable[[], None], device: torch.device) -> None:
        self.found: list[dict[str, Any]] = []
        self.held: Memory | None = None  # when the last step was done, on a GPU
        self._device = device
        self._progress = progress
        self._warmed_up = warmed_up
        self._is_warm = False
        self._num_steps = 1

    def begin(self, num_steps: int) -> None:
        self._num_steps = num_steps

    def trained(self, record: dict[str, Any]) -> None:
        self.found.append(record)
        self.held = _held(self._device)
        if not self._is_warm and record["step"] >= WARM_UP * self._num_steps:
            self._is_warm = True
            self._warmed_up()
        self._progress(record["step"] / self._num_steps)

    def evaluated(self, record: dict[str, Any]) -> None:
        pass

    def end(self) -> None:
        self._progress(1.0)
