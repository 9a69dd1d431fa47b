"""How close is the dot interaction to the time of moving its bytes, and which sizes of its programs are best?

Times one forward and one backward pass as replays of a CUDA graph, for DLRM on Criteo (26 features and a summary, dim
128). The L2 cache is flushed before each. The floor is the time in which a copy moves as many bytes. Run it on a GPU:

    python benchmarks/micro/interact.py
"""

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import triton
from measuring import bytes_per_microsecond, set_to
from torch import Tensor
from triton.testing import do_bench

from hotrows.dense.interact import interact, kernel, reference

FEATURES, DIM = 26, 128
WIDTH = DIM + (FEATURES + 1) * FEATURES // 2
BATCHES = (1024, 16_384)
Interact = Callable[[Tensor, Tensor], Tensor]


class Types(NamedTuple):
    """The types of the inputs, and the precision of float32 products."""

    summary: torch.dtype
    embedded: torch.dtype
    precision: str = "high"

    def num_bytes(self, num_samples: int) -> tuple[int, int]:
        """The bytes that the forward and the backward pass read and write."""
        vectors = DIM * self.summary.itemsize + FEATURES * DIM * self.embedded.itemsize
        output = WIDTH * self.summary.itemsize
        return num_samples * (vectors + output), num_samples * (2 * vectors + output)


class Variant(NamedTuple):
    """Constants of the kernel, the same for both directions."""

    samples: int = 1
    words_per_warp: int = 1024
    stages: int = 2

    def constants(self) -> dict[str, int]:
        """The values of the constants in `kernel`."""
        return {
            "FORWARD_SAMPLES": self.samples,
            "BACKWARD_SAMPLES": self.samples,
            "FORWARD_WORDS_PER_WARP": self.words_per_warp,
            "BACKWARD_WORDS_PER_WARP": self.words_per_warp,
            "STAGES": self.stages,
        }

    def __str__(self) -> str:
        return f"{self.samples} sample(s), {self.words_per_warp} words a warp, {self.stages} stages"


TYPES = {
    "tf32": Types(torch.float32, torch.float32),
    "bf16, float32 rows": Types(torch.bfloat16, torch.float32),
    "bf16": Types(torch.bfloat16, torch.bfloat16),
    "float32": Types(torch.float32, torch.float32, "highest"),
}
DEFAULT = Variant(kernel.FORWARD_SAMPLES, kernel.FORWARD_WORDS_PER_WARP, kernel.STAGES)
VARIANTS = [Variant(1, 1024), Variant(1, 2048), Variant(1, 512), Variant(2, 1024), Variant(4, 1024)]
VARIED = ("tf32", "bf16, float32 rows")  # other types run with the default variant only


class Row(NamedTuple):
    """One line of the table: microseconds forward and backward for each of BATCHES, and the largest error."""

    types: str
    what: str
    times: list[tuple[float, float]]
    error: float | None


def made(types: Types, num_samples: int) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator("cuda").manual_seed(0)
    summary = torch.randn(num_samples, DIM, generator=random, device="cuda").to(types.summary)
    embedded = torch.randn(num_samples, FEATURES, DIM, generator=random, device="cuda").to(types.embedded)
    grad = torch.randn(num_samples, WIDTH, generator=random, device="cuda").to(types.summary)
    return summary.requires_grad_(), embedded.requires_grad_(), grad


def microseconds(function: Interact, types: Types, num_samples: int) -> tuple[float, float]:
    summary, embedded, grad = made(types, num_samples)
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()  # a backward pass runs on the stream of its forward pass
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        output = function(summary, embedded)
        torch.autograd.grad(output, (summary, embedded), grad, retain_graph=True)
    torch.cuda.synchronize()
    with torch.cuda.graph(forward, stream=stream), torch.no_grad():
        function(summary, embedded)
    with torch.cuda.graph(backward, stream=stream):
        torch.autograd.grad(output, (summary, embedded), grad, retain_graph=True)
    forward_ms, backward_ms = (
        do_bench(graph.replay, warmup=5, rep=25, return_mode="median") for graph in (forward, backward)
    )
    return 1000 * forward_ms, 1000 * backward_ms


def error(function: Interact, types: Types) -> float:
    """The largest error of output and gradients against the reference in float64, relative to the largest value."""
    given = made(types, BATCHES[0])
    exact = [tensor.detach().double().requires_grad_() for tensor in given[:2]]
    found = [function(*given[:2])]
    found += torch.autograd.grad(found[0], given[:2], given[2])
    truth = [reference.interact(*exact)]
    truth += torch.autograd.grad(truth[0], exact, given[2].double())
    worst = [
        ((ours.double() - theirs).abs().max() / theirs.abs().max()).item()
        for ours, theirs in zip(found, truth, strict=True)
    ]
    return max(worst)


def measure(name: str, what: str, function: Interact) -> Row:
    types = TYPES[name]
    return Row(name, what, [microseconds(function, types, num) for num in BATCHES], error(function, types))


def rows(bandwidth: float) -> Iterator[Row]:
    for name, types in TYPES.items():
        torch.set_float32_matmul_precision(types.precision)
        floors = [types.num_bytes(num_samples) for num_samples in BATCHES]
        yield Row(name, "floor", [(there / bandwidth, back / bandwidth) for there, back in floors], None)
        yield measure(name, "torch", reference.interact)
        for variant in VARIANTS if name in VARIED else [DEFAULT]:
            with set_to(kernel, variant.constants()):
                yield measure(name, str(variant), interact)


def main() -> int:
    if not torch.cuda.is_available():
        print("PyTorch sees no CUDA device here: this benchmark needs one", file=sys.stderr)
        return 1
    bandwidth = bytes_per_microsecond()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}")
    print(f"F={FEATURES}, D={DIM}; a copy moves {bandwidth / 1e6:.2f} TB/s; µs forward / backward, of the floor\n")
    print(f"{'products':<20}{'':<42}" + "".join(f"{f'B={num:,}':>34}" for num in BATCHES) + f"{'error':>10}")
    failed = False
    floor: list[tuple[float, float]] = []
    for row in rows(bandwidth):
        if row.what == "floor":
            floor = row.times
        cells = [
            f"{there:8.1f} /{back:8.1f}  {least / there:5.0%} /{least_back / back:5.0%}"
            for (there, back), (least, least_back) in zip(row.times, floor, strict=True)
        ]
        wrong = row.error is not None and not row.error < (1e-5 if row.types == "float32" else 2e-2)
        failed |= wrong
        last = "" if row.error is None else f"{row.error:10.1e}" + (" WRONG" if wrong else "")
        print(f"{row.types:<20}{row.what:<42}" + "".join(f"{cell:>34}" for cell in cells) + last, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
