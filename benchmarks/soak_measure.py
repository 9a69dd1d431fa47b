"""The memory, threads and descriptors of a soak test, and the bounds that they are judged by."""

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

MB = 1e6
END_SECONDS = 5.0  # threads that were told to end may take this long
FIRST_END_SECONDS = 0.3  # the same while it is not known how many there are when idle
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt
MAX_SLOPES = 300  # samples of which all pairs are compared for the trend


@dataclass(frozen=True)
class Sample:
    """What this process takes at one moment; it can be compared exactly between moments when no module is in use."""

    seconds: float
    rss: int  # bytes, as all sizes
    threads: int
    descriptors: int
    cuda_allocated: int
    cuda_reserved: int
    pinned: int  # host memory that PyTorch has pinned
    tensors: int = 0  # that Python knows; counted when idle, as counting takes long
    python_blocks: int = 0  # of memory that Python objects take; when idle
    malloc_bytes: int = 0  # that `malloc` has given out, PyTorch's CPU tensors among them; when idle


def take_sample(seconds: float, device: str) -> Sample:
    on_cuda = device != "cpu"
    return Sample(
        seconds=seconds,
        rss=int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        threads=len(os.listdir("/proc/self/task")),
        descriptors=len(os.listdir("/proc/self/fd")),
        cuda_allocated=torch.cuda.memory_allocated(device) if on_cuda else 0,
        cuda_reserved=torch.cuda.memory_reserved(device) if on_cuda else 0,
        pinned=_pinned_bytes() if on_cuda else 0,
    )


def take_idle_sample(seconds: float, device: str, num_threads: int | None) -> Sample:
    """A sample after everything that is not used was freed, and threads that were told to end have ended.

    Args:
        num_threads: as many threads as there were before; None if that is not known.
    """
    gc.collect()
    end = time.perf_counter() + (FIRST_END_SECONDS if num_threads is None else END_SECONDS)
    while len(os.listdir("/proc/self/task")) > (num_threads or 0) and time.perf_counter() < end:
        time.sleep(0.01)
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize(device)
        getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()  # 32 MB for each stream that multiplied
        torch.cuda.empty_cache()
        getattr(torch._C, "_host_emptyCache", lambda: None)()
    _return_free_memory()
    sample = take_sample(seconds, device)
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    counted = {"tensors": tensors, "python_blocks": sys.getallocatedblocks(), "malloc_bytes": _malloc_bytes()}
    return Sample(**{**vars(sample), **counted})


def fix_malloc_thresholds() -> None:
    """Let every thread's `free` return 128 kB that follow each other, glibc's first value for it.

    glibc raises the value while a program runs, to as much as 64 MB for each of several pools of memory, and
    `malloc_trim` returns it from one of the pools only. What glibc then keeps depends on which thread has freed what.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for threshold in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            mallopt(threshold, 128 * 1024)


def _return_free_memory() -> None:
    """Memory that is free but kept for later is no leak, and would hide one."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


def _malloc_bytes() -> int:
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)  # of glibc since 2.33
    if mallinfo is None:
        return 0
    mallinfo.restype = _MallocInfo
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)


def peak_rss() -> int:
    """The highest RSS that this process ever had, between samples too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return max((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), default=0)


def _pinned_bytes() -> int:
    stats: dict[str, Any] = getattr(torch.cuda, "host_memory_stats", dict)()
    return int(stats.get("allocated_bytes.current", 0))


@dataclass(frozen=True)
class Bound:
    """What may not grow further, and why the bound is what it is."""

    name: str
    most: float
    unit: str
    reason: str
    grown: Callable[["Record"], float]


@dataclass(frozen=True)
class Judged:
    """One bound, and what was found."""

    name: str
    found: float
    most: float
    unit: str
    reason: str

    @property
    def is_met(self) -> bool:
        return self.found <= self.most

    def __str__(self) -> str:
        verdict = "yes" if self.is_met else "NO "
        return f"{verdict}  {self.name}: {self.found:,.1f} {self.unit}, at most {self.most:,g} ({self.reason})"


class Record:
    """All samples of a run."""

    def __init__(self) -> None:
        self.running: list[Sample] = []
        self.idle: list[Sample] = []  # the first one is that at the end of the warm-up
        self.peak_rss = 0

    def idle_growth(self, field: str) -> float:
        """How much more there is at the end than after the warm-up, when nothing is used."""
        return float(getattr(self.idle[-1], field) - getattr(self.idle[0], field))

    def trend(self, field: str) -> float:
        """The growth over the last two thirds of the time, by the median slope of all pairs of samples."""
        if not self.running:
            return 0.0
        begin = self.running[-1].seconds / 3
        samples = [sample for sample in self.running if sample.seconds >= begin]
        samples = samples[:: max(1, len(samples) // MAX_SLOPES)]
        if len(samples) < 3:
            return 0.0
        times = torch.tensor([sample.seconds for sample in samples], dtype=torch.float64)
        values = torch.tensor([float(getattr(sample, field)) for sample in samples], dtype=torch.float64)
        first, second = torch.triu_indices(len(samples), len(samples), 1)
        slopes = (values[second] - values[first]) / (times[second] - times[first])
        return float(slopes.median() * (times[-1] - times[0]))

    def most(self, field: str) -> int:
        sampled = max((getattr(sample, field) for sample in (*self.running, *self.idle)), default=0)
        return max(sampled, self.peak_rss) if field == "rss" else sampled

    def to_json(self) -> dict[str, Any]:
        names = [field.name for field in fields(Sample)]
        return {
            "peak": {name: self.most(name) for name in names if name != "seconds"},
            "after_warm_up": vars(self.idle[0]) if self.idle else {},
            "final": vars(self.idle[-1]) if self.idle else {},
            "idle": [vars(sample) for sample in self.idle],
            "running": {
                name: [round(getattr(sample, name), 1) for sample in self.running[:: max(1, len(self.running) // 120)]]
                for name in ("seconds", "rss", "threads", "descriptors", "cuda_allocated", "cuda_reserved", "pinned")
            },
        }


# Chosen before the first run. A training step of the smallest module allocates some kB of tensors and some hundred
# Python objects; an hour has several hundred thousand steps and ten thousand modules.
CPU_BOUNDS = (
    Bound(
        "threads when idle", 0, "more than after the warm-up",
        "every thread of a module or a loader must end with it", lambda record: record.idle_growth("threads"),
    ),
    Bound(
        "descriptors when idle", 0, "more than after the warm-up",
        "every file must be closed", lambda record: record.idle_growth("descriptors"),
    ),
    Bound(
        "tensors when idle", 16, "more than after the warm-up",
        "constants of a rare setting may be kept, but one tensor for each module or loop would be thousands",
        lambda record: record.idle_growth("tensors"),
    ),
    Bound(
        "Python's memory when idle", 20_000, "blocks more than after the warm-up",
        "caches of rare settings and this script's samples take some thousands; one object for each step would be "
        "hundreds of thousands an hour", lambda record: record.idle_growth("python_blocks"),
    ),
    Bound(
        "RSS when idle", 32, "MB more than after the warm-up",
        "what the allocators do not give back varies by some MB; one record for each step would be hundreds an hour",
        lambda record: record.idle_growth("rss") / MB,
    ),
    Bound(
        "RSS, trend over the last two thirds", 32, "MB",
        "the same bound for the time in which modules are used, as leaks until a module is deleted grow there",
        lambda record: record.trend("rss") / MB,
    ),
)  # fmt: skip
CUDA_BOUNDS = (
    *CPU_BOUNDS[:-2],
    Bound(
        "RSS when idle", 256, "MB more than after the warm-up",
        "kernels for shapes that were not met before are compiled and loaded later too, each some 100 kB",
        lambda record: record.idle_growth("rss") / MB,
    ),
    Bound(
        "device memory allocated when idle", 1, "MB more than after the warm-up",
        "constants of a rare setting take some kB", lambda record: record.idle_growth("cuda_allocated") / MB,
    ),
    Bound(
        "device memory reserved when idle", 32, "MB more than after the warm-up",
        "PyTorch reserves in steps of 2 or 20 MB, and one constant keeps a whole step",
        lambda record: record.idle_growth("cuda_reserved") / MB,
    ),
    Bound(
        "pinned memory when idle", 1, "MB more than after the warm-up",
        "the smallest readbacks that are kept for reuse take some kB", lambda record: record.idle_growth("pinned") / MB,
    ),
    Bound(
        "device memory allocated, trend over the last two thirds", 64, "MB",
        "two modules in use differ by that much", lambda record: record.trend("cuda_allocated") / MB,
    ),
)  # fmt: skip


def judge(record: Record, bounds: Sequence[Bound]) -> list[Judged]:
    """Compare with the bounds; none can be judged before the warm-up has ended and something was measured behind it."""
    if len(record.idle) < 2:
        return []
    return [Judged(bound.name, bound.grown(record), bound.most, bound.unit, bound.reason) for bound in bounds]


def name_threads() -> str:
    """The threads of this process, by the names that Python or the system knows, for the report of a leak."""
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    names = []
    for path in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            names.append(known.get(int(path.name)) or f"native {(path / 'comm').read_text().strip()}")
    return ", ".join(sorted(names))
