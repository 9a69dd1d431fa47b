"""How close does the update of a batch's rows come to reading its gradients once?

Times `backward_update`, and `segment_sum` followed by `row_optimizer`, as replays of a CUDA graph, for batches with one
lookup in each table of Criteo Kaggle. Both must have the same bits. Bytes are the fewest possible: every gradient is
read once, and every record of the batch is read and written once.
"""

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from hotrows.ops.backward_update import kernel
from hotrows.ops.row_optimizer import coefficients
from hotrows.ops.row_optimizer.kernel import row_optimizer
from hotrows.ops.segment_sum.kernel import segment_sum
from hotrows.ops.unique import unique_rows

SIZES = [
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
]  # fmt: skip
EXPONENT = 1.18
NUM_SLOTS = 506_000
RULES = {"sgd": (1, (0.1, 0.0)), "adam": (3, (0.001, 0.9, 0.999, 1e-8))}  # words per weight, hyperparameters
# Constants of `kernel` to try. Those that a variant does not name keep their values.
VARIANTS: list[dict[str, int]] = [
    {},
    {"_RECORDS_IN_FLIGHT": 4},
    {"_RECORDS_IN_FLIGHT": 16},
    {"_CHUNK": 8},
    {"_SUPERBLOCK": 8},
    {"_SUPERBLOCK": 32},
    {"_BLOCK": 32},
    {"_BLOCK": 32, "_CHUNK": 32},
    {"_BLOCK": 64},
]


class Subject:
    """A batch, and a cache that contains its rows."""

    def __init__(self, batch_size: int, dim: int, rule: str, dtype: torch.dtype, generator: torch.Generator) -> None:
        self.rule, self.dim = rule, dim
        first, rows = 0, []
        for size in SIZES:
            rows.append(first + _zipf(batch_size, size, generator))
            first += size
        unique = unique_rows(torch.stack(rows, 1).flatten())
        self.order, self.starts, self.num = unique.order, unique.starts, unique.num
        self.num_rows = int(self.num)
        words_per_weight, hyper = RULES[rule]
        self.hyper = torch.tensor(coefficients(rule, hyper), device="cuda")
        self.cache = torch.rand(NUM_SLOTS, words_per_weight * dim, device="cuda", generator=generator)
        slots = torch.randperm(NUM_SLOTS, device="cuda", generator=generator)[: self.num_rows].int()
        self.row_slots = torch.full((self.order.numel(),), -1, dtype=torch.int32, device="cuda")
        self.row_slots[: self.num_rows] = slots
        self.grad = torch.randn(self.order.numel(), dim, device="cuda", generator=generator).to(dtype)

    @property
    def num_bytes(self) -> int:
        gradients = self.grad.numel() * self.grad.element_size()
        return gradients + 2 * self.num_rows * self.cache.shape[1] * 4

    def fused(self, first_row: Tensor) -> None:
        kernel.backward_update(
            self.rule, self.cache, self.row_slots, self.num, self.grad, self.order, self.starts, None, None, None,
            self.dim, self.hyper, first_row,
        )  # fmt: skip

    def in_two(self, first_row: Tensor) -> None:
        grads = segment_sum(self.grad, self.order, self.starts, self.num, None, None, None, first_row)
        row_optimizer(self.rule, self.cache, self.row_slots, grads, self.num, self.dim, self.hyper)

    def after(self, work: Callable[[Tensor], None], first_row: Tensor) -> Tensor:
        """The cache after the work. The subject's cache does not change."""
        before = self.cache.clone()
        work(first_row)
        found = self.cache
        self.cache = before
        return found


def _zipf(count: int, num_rows: int, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(count, generator=generator, device="cuda", dtype=torch.float64)
    rank = (1 - drawn * (1 - num_rows ** (1 - EXPONENT))) ** (1 / (1 - EXPONENT))
    return rank.long().clamp(1, num_rows) - 1


def microseconds(work: Callable[[], None], seconds: float) -> float:
    """The median time of a replay. The L2 cache is flushed before each."""
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    graph.replay()
    times: list[float] = []
    while len(times) < 10 or sum(times) < seconds * 1e6:
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(20)]
        for begin, end in events:
            flush.zero_()
            begin.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        times += [1000 * begin.elapsed_time(end) for begin, end in events]
    return sorted(times)[len(times) // 2]


def apply(variant: dict[str, int], rule: str) -> Callable[[], None]:
    """Set constants of the kernels. Returns a function that restores them."""
    old = {name: getattr(kernel, name) for name in variant}
    for name, value in variant.items():
        by_rule = name == "_RECORDS_IN_FLIGHT"
        setattr(kernel, name, {**kernel._RECORDS_IN_FLIGHT, rule: value} if by_rule else value)

    def undo() -> None:
        for name, value in old.items():
            setattr(kernel, name, value)

    return undo


def show(*cells: object) -> None:
    widths = (8, 6, 10, 9, 34, 10, 8, 6)
    print("".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)), flush=True)


def measure(subject: Subject, batch_size: int, variants: list[dict[str, int]], seconds: float) -> bool:
    """Print a line for each variant. Returns True if all bits are the same."""
    same = True
    about = (f"{batch_size:,}", subject.rule, f"{subject.order.numel():,}", f"{subject.num_rows:,}")
    for variant in variants:
        undo = apply(variant, subject.rule)
        first_row = kernel.first_rows(subject.starts, subject.num)
        equal = torch.equal(subject.after(subject.fused, first_row), subject.after(subject.in_two, first_row))
        same &= equal
        ways = {"backward_update": subject.fused}
        if not variant:
            ways["segment_sum, row_optimizer"] = subject.in_two
        for name, way in ways.items():
            taken = microseconds(lambda way=way, first_row=first_row: way(first_row), seconds)
            label = name + "".join(f" {key.strip('_').lower()}={value}" for key, value in variant.items())
            speed = subject.num_bytes / taken / 1000
            show(*about, label, f"{taken:.1f}", f"{speed:,.0f}", "yes" if equal else "NO")
        undo()
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=128, help="words of a gradient (default 128)")
    parser.add_argument("--bfloat16", action="store_true", help="gradients in bfloat16")
    parser.add_argument("--variants", action="store_true", help="also try other constants of the kernels")
    parser.add_argument(
        "--seconds", type=float, default=0.02, help="seconds of timed work for each line (default 0.02)"
    )
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device here, and the kernels need one")
    print(f"{__doc__.splitlines()[0]}\n{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    show("batch", "rule", "lookups", "rows", "", "µs", "GB/s", "same")
    same = True
    for batch_size in (1024, 16_384, 65_536):
        for rule in RULES:
            generator = torch.Generator(device="cuda").manual_seed(0)
            dtype = torch.bfloat16 if arguments.bfloat16 else torch.float32
            subject = Subject(batch_size, arguments.dim, rule, dtype, generator)
            variants = VARIANTS if arguments.variants and batch_size < 65_536 else VARIANTS[:1]
            same &= measure(subject, batch_size, variants, arguments.seconds)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
