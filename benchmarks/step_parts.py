"""What the systems of benchmarks/step.py have in common: batches, the dense part, and the timing of steps."""

import gc
import itertools
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from zipf import draw_ranks

import hotrows
from hotrows.dense.bce_loss import bce_loss
from hotrows.models import make_model

EXPONENT = 1.18  # with it 26, 21, 17 and 13% of the ids are unique at batches of 1024 to 8192, as HECA measured
NUM_DENSE = 13
LEARNING_RATE = {"sgd": 0.1, "adam": 0.001}
POOL_SAMPLES = 1 << 22  # drawn for each batch size, so that a repetition rarely trains a batch twice
MIN_BATCHES = 48
REPETITIONS = 3
CALIBRATION = 10  # steps
STARTED = time.perf_counter()


@dataclass(frozen=True)
class Options:
    """The options that all shapes are run with."""

    device: torch.device
    systems: tuple[str, ...]
    precision: str
    depth: int
    window: int
    steps: int | None
    seconds: float
    scale: float


@dataclass(frozen=True)
class Case:
    """One set of tables behind one cache.

    Args:
        slots: how many rows the cache holds.
        drawn: ids are drawn for tables of these sizes and then spread over the tables. None takes the tables' own.
    """

    shape: str
    label: str
    sizes: tuple[int, ...]
    slots: int
    batch_sizes: tuple[int, ...]
    optimizer: str = "sgd"
    model: str = "dlrm:freqcache"
    dim: int = 128
    drawn: tuple[int, ...] | None = None

    @property
    def num_rows(self) -> int:
        return sum(self.sizes)

    def spread(self, ranks: Tensor) -> Tensor:
        """The ids of ranks [..., F]. In a larger table, the same ranks have ids that lie further apart."""
        if self.drawn is None:
            return ranks
        factors = [size // drawn for size, drawn in zip(self.sizes, self.drawn, strict=True)]
        return ranks * torch.tensor(factors, device=ranks.device)


class Traffic:
    """The batches of one size that every system trains."""

    def __init__(self, case: Case, batch_size: int, options: Options) -> None:
        self._case, self._device = case, options.device
        self.batch_size = batch_size
        num = max(MIN_BATCHES, int(POOL_SAMPLES * min(1.0, options.scale)) // batch_size)
        generator = torch.Generator(options.device).manual_seed(batch_size)
        self._ranked = case.drawn or case.sizes
        ids = case.spread(draw_ranks(self._ranked, (num, batch_size), EXPONENT, generator))
        dense = torch.randn(num, batch_size, NUM_DENSE, device=options.device, generator=generator)
        label = (torch.rand(num, batch_size, device=options.device, generator=generator) < 0.25).float()
        self.pool = _batches(dense, ids, label)
        self._on_host = self.pool
        if options.device.type == "cuda":
            self._on_host = _batches(*(part.cpu().pin_memory() for part in (dense, ids, label)))
        # A batch that fills the cache has this many ids of each table, because several such batches are in flight.
        self._stride = max(1, min(batch_size, case.slots // (4 * len(case.sizes))))
        self.num_filling = self._count_filling()

    def stream(self, fill: bool, on_host: bool = False) -> "Stream":
        """Batches without an end.

        Args:
            fill: begin with batches that fill the cache.
            on_host: the batches are in pinned host memory, like those of a loader.
        """
        pool = self._on_host if on_host else self.pool
        return Stream(itertools.chain(self._filling() if fill else (), itertools.cycle(pool)))

    def _count_filling(self) -> int:
        num, wanted = 0, min(self._case.slots, sum(self._ranked))
        while sum(min(size, num * self._stride) for size in self._ranked) < wanted:
            num += 1
        return num

    def _filling(self) -> Iterator[hotrows.Batch]:
        """Batches with all ids that fit into the cache, the most frequent ids last."""
        sizes = torch.tensor(self._ranked, device=self._device)
        first = torch.arange(self.batch_size, device=self._device).remainder_(self._stride)
        for i in reversed(range(self.num_filling)):
            ranks = (first + i * self._stride).unsqueeze(1) % sizes
            yield self.pool[0]._replace(ids=self._case.spread(ranks))


def _batches(dense: Tensor, ids: Tensor, label: Tensor) -> list[hotrows.Batch]:
    return [hotrows.Batch(*parts) for parts in zip(dense.unbind(), ids.unbind(), label.unbind(), strict=True)]


class Stream(Iterator[hotrows.Batch]):
    """Batches until `end` is called."""

    def __init__(self, batches: Iterator[hotrows.Batch]) -> None:
        self._batches = batches
        self._ended = False

    def __next__(self) -> hotrows.Batch:
        if self._ended:
            raise StopIteration
        return next(self._batches)

    def end(self) -> None:
        self._ended = True


class DensePart:
    """The model, its optimizer and the loss. Every system begins with the same values."""

    def __init__(self, case: Case, options: Options) -> None:
        torch.manual_seed(0)
        self.model = make_model(case.model, NUM_DENSE, len(case.sizes), case.dim).to(options.device)
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[case.optimizer]
        self.optimizer = kind(self.model.parameters(), lr=LEARNING_RATE[case.optimizer], fused=True)
        self._autocast = {"device_type": options.device.type, "dtype": torch.bfloat16}
        self._autocast["enabled"] = options.precision == "bf16"

    def train(self, dense: Tensor, embedded: Tensor, label: Tensor) -> Tensor:
        with torch.autocast(**self._autocast):
            logits = self.model(dense, embedded)
        loss = bce_loss(logits, label)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


@dataclass
class Schedule:
    """How many steps each phase has. `steps` is the number of a repetition; None until it is calibrated."""

    warm_up: int
    steps: int | None
    seconds: float
    calibration: int = CALIBRATION


@dataclass
class Timed:
    schedule: Schedule
    seconds: list[float] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)

    def figures(self, batch_size: int) -> dict[str, Any]:
        assert self.schedule.steps is not None
        each = [1000 * seconds / self.schedule.steps for seconds in self.seconds]
        ms = sorted(each)[len(each) // 2]
        return {
            "ms_per_step": ms,
            "samples_per_s": 1000 * batch_size / ms,
            "repetitions_ms": each,
            "steps": self.schedule.steps,
            "warm_up": self.schedule.warm_up,
            "last_loss": float(self.losses[-1]),
        }


def time_steps(
    batches: Iterator[hotrows.Batch],
    step: Callable[[hotrows.Batch], Tensor],
    schedule: Schedule,
    device: torch.device,
    read: Callable[[], dict[str, float]] = dict,
) -> Timed:
    """Warm up, find how many steps a repetition has, and time the repetitions. `read` is called before and after."""
    timed = Timed(schedule)

    def go(num: int) -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(num):
            timed.losses.append(step(next(batches)))
        synchronize(device)
        return time.perf_counter() - start

    go(1)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()  # the first batch has freed the memory of batches of another size
    go(schedule.warm_up - 1)
    taken = go(schedule.calibration)
    if schedule.steps is None:
        schedule.steps = max(REPETITIONS, int(schedule.seconds * schedule.calibration / taken))
    say(f"    warm after {len(timed.losses)} steps, timing {REPETITIONS} x {schedule.steps}")
    gc.collect()
    timed.before = read()
    timed.seconds = [go(schedule.steps) for _ in range(REPETITIONS)]
    timed.after = read()
    return timed


class Memory:
    """The device memory of one system, without that of the systems that are alive beside it."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._others = self._allocated()
        self._owned = 0

    def begin(self) -> None:
        self._others = self._allocated() - self._owned

    def end(self) -> None:
        gc.collect()
        self._owned = self._allocated() - self._others

    def peak(self) -> int | None:
        return torch.cuda.max_memory_allocated() - self._others if self._on_gpu else None

    @property
    def owned(self) -> int:
        return self._owned

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() if self._on_gpu else 0


def say(text: str) -> None:
    print(f"[{time.perf_counter() - STARTED:7.1f} s] {text}", flush=True)


def describe_error(error: BaseException) -> str:
    """One line about an error. The traceback goes to stderr, and the memory that its frames hold is freed."""
    traceback.print_exception(error)
    traceback.clear_frames(error.__traceback__)
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
