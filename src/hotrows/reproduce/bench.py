"""The bench that experiments run on: data, device, scale, and the training runs that several figures share."""

import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hotrows.data.dataset import open_dataset
from hotrows.data.schema import DataSet
from hotrows.data.shapes import SHAPES
from hotrows.json_text import json_text
from hotrows.reproduce.in_memory import InMemoryDataSet
from hotrows.reproduce.scale import Scale
from hotrows.train.config import RunConfig
from hotrows.train.run import build, choose_device, strategy_of, summarize
from hotrows.train.timeline import Timeline
from hotrows.train.trainer import Trainer

WARM_UP = 0.3  # the share of the steps whose times are not counted
NUM_RECORDS = 20  # of a training run


@dataclass(frozen=True)
class Memory:
    """Bytes on the device, as PyTorch counts them."""

    allocated: int = 0  # to tensors, after the last training step
    reserved: int = 0  # by PyTorch's allocator, after the last training step
    peak: int = 0  # the most that was allocated at any time

    def minus(self, before: "Memory") -> "Memory":
        """What was allocated and reserved since `before`."""
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
        """The speed after the warm-up: the median of the records on a GPU, the fastest record on a CPU.

        A CPU does other work too, and the fastest record is the one that was least disturbed. The records of a GPU
        overlap: the host reads the clock before the GPU is done, so the time of a record's last steps may count for
        the next record, and the fastest record would be too fast.
        """
        speeds = [float(record["samples_per_second"]) for record in self.warm]
        return statistics.median(speeds) if self.on_gpu else max(speeds)

    def total(self, name: str) -> int:
        """The sum of a count over the warm records."""
        return sum(int(record[name]) for record in self.warm)


@dataclass
class Bench:
    """Everything that experiments are run with.

    Args:
        given: data sets to use in place of the synthetic ones, by the shape they replace.
        steps: the steps of each training run. None takes the number of the scale.
        precision: the precision of each training run, as in a run's configuration.
        progress: called with the name of the current work and the share of it that is done, 0 to 1.
    """

    scale: Scale
    device: str = "auto"
    given: dict[str, str] = field(default_factory=dict)
    steps: int | None = None
    precision: str = "fp32"
    progress: Callable[[str, float], None] = lambda step, done: None
    passes_done: int | None = None  # how many passes are complete, if Ctrl-C ended them before the last
    _in_memory: dict[str, InMemoryDataSet] = field(default_factory=dict)
    _trained: dict[str, Trained] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        return self.scale.steps if self.steps is None else self.steps

    def steps_of(self, strategy: str, step_factor: int = 1) -> int:
        """The number of steps of a run with this strategy. `host` takes long and may have fewer steps.

        Args:
            step_factor: the largest batch size divided by the batch size of the run.
        """
        steps = self.num_steps * min(step_factor, self.scale.max_step_factor)
        most = self.scale.host_steps if strategy == "host" else None
        return steps if most is None else min(most, self.num_steps)

    @property
    def on_gpu(self) -> bool:
        return choose_device(self.device).type == "cuda"

    @property
    def timing(self) -> str:
        """How speeds are measured, in words."""
        passes = self.scale.passes if self.passes_done is None else self.passes_done
        best = f", the best of {passes}" if passes > 1 else ""
        if self.passes_done is not None:
            best += f" ({self.scale.passes} passes were to be made)"
        kind = "Median" if self.on_gpu else "Fastest"
        return f"{kind} of the spans after a warm-up, of {self.iterations}{best}."

    @property
    def iterations(self) -> str:
        """How many iterations a run has, in words."""
        most = self.num_steps * self.scale.max_step_factor
        smaller = f" ({most:,} at most where batches are smaller)" if most > self.num_steps else ""
        return f"{self.num_steps:,} iterations{smaller}"

    def counting_data(self, shape: str) -> DataSet:
        """A data set to count ids in. It has the paper's size even on a small machine, because no table is made."""
        return self._open(shape, f"scale={self.scale.counted_rows:.6g}")

    def training_data(self, shape: str, largest_batch: int) -> InMemoryDataSet:
        """A data set to train on, with enough samples for all steps of the largest batch."""
        if shape not in self._in_memory:
            num_train = self.num_steps * largest_batch
            days = SHAPES[shape].num_days
            # The last day is not trained on: its halves are the validation and test splits.
            samples = max(-(-num_train * days // (days - 1)) + days, 2 * days * self.scale.eval_samples)
            data = self._open(shape, f"scale={self.scale.rows:.6g}&samples={samples}")
            what = f"data: {shape}"
            self._in_memory[shape] = InMemoryDataSet(
                data, num_train, self.scale.eval_samples, lambda done: self.progress(what, done), pinned=self.on_gpu
            )
            if self._in_memory[shape].num_samples("train") < num_train:
                raise ValueError(
                    f"{data.name} has {data.num_samples('train'):,} samples to train on, {self.num_steps:,} steps of "
                    f"{largest_batch:,} need {num_train:,}: give fewer --steps"
                )
        return self._in_memory[shape]

    def train(
        self, what: str, config: RunConfig, data: InMemoryDataSet, attempt: int = 0, step_factor: int = 1
    ) -> Trained:
        """Train as configured, or return the result if this bench has trained the same configuration before.

        Args:
            what: names the run for `progress`.
            attempt: another number trains the same configuration again.
            step_factor: see `steps_of`.
        """
        config.data, config.device, config.save = data.name, self.device, False
        config.train.precision = self.precision
        config.train.max_steps = self.steps_of(config.strategy, step_factor)
        config.train.log_every = max(1, config.train.max_steps // NUM_RECORDS)
        key = json_text([config.to_json(), attempt], sort_keys=True)
        if key not in self._trained:
            self._trained[key] = self._train(f"{what}, again" if attempt else what, config, data)
        return self._trained[key]

    def _open(self, shape: str, parameters: str) -> DataSet:
        """The data set given for a shape, or a synthetic one. On a GPU machine the GPU makes it, which is fastest."""
        where = "&device=cuda" if self.on_gpu else ""
        return open_dataset(self.given.get(shape) or f"synthetic:{shape}?{parameters}{where}")

    def _train(self, what: str, config: RunConfig, data: InMemoryDataSet) -> Trained:
        self.progress(what, 0.0)  # shown now, because making the rows takes a while
        config.check()
        device = choose_device(config.device)
        gc.collect()
        before = _reset_peak_memory(device)
        strategy = strategy_of(config, data.knowledge)
        parts = build(config, data.schema, device, strategy)
        _reset_peak_memory(device)  # making the rows takes memory that training does not
        records = _Records(lambda done: self.progress(what, done), strategy.warmed_up, device)
        outcome = Trainer(config, data, parts, strategy, [records], Timeline()).train()
        if outcome.interrupted:
            raise KeyboardInterrupt
        summary = {**summarize(config, parts, outcome), "strategy_outcome": strategy.outcome(parts.bags)}
        summary["device_memory"] -= before.allocated
        peak = int(summary["device_memory"])
        memory = Memory(peak, peak) if records.memory is None else records.memory.minus(before)
        return Trained(summary, records.found, replace(memory, peak=peak), device.type == "cuda")


def _reset_peak_memory(device: torch.device) -> "Memory":
    """Count the peak of the device memory from now on. Returns the memory in use."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return _memory_in_use(device) or Memory()


def _memory_in_use(device: torch.device) -> "Memory | None":
    """The memory of a GPU that is in use now; None for a CPU."""
    if device.type != "cuda":
        return None
    return Memory(int(torch.cuda.memory_allocated(device)), int(torch.cuda.memory_reserved(device)))


class _Records:
    """Observes the trainer: keeps its records, and calls `warmed_up` when the warm-up is over."""

    def __init__(self, progress: Callable[[float], None], warmed_up: Callable[[], None], device: torch.device) -> None:
        self.found: list[dict[str, Any]] = []
        self.memory: Memory | None = None  # on a GPU, the memory in use after the last step
        self._device = device
        self._progress = progress
        self._warmed_up = warmed_up
        self._is_warm = False
        self._num_steps = 1

    def begin(self, num_steps: int) -> None:
        self._num_steps = num_steps

    def trained(self, record: dict[str, Any]) -> None:
        self.found.append(record)
        self.memory = _memory_in_use(self._device)
        if not self._is_warm and record["step"] >= WARM_UP * self._num_steps:
            self._is_warm = True
            self._warmed_up()
        self._progress(record["step"] / self._num_steps)

    def evaluated(self, record: dict[str, Any]) -> None:
        pass

    def end(self) -> None:
        self._progress(1.0)
