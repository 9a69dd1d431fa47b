"""How long do the MLPs of DLRM and Wide & Deep take, compared with plain layers and torch.compile?

Times one forward and backward pass as a replay of a CUDA graph, with the L2 cache flushed before each, and compares
output and gradients with double precision. Then it times the kernels around the matrix products alone, with several
sizes of their programs. Run it on a GPU:

    python benchmarks/micro/linear.py
"""

import copy
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
import triton
from measuring import bytes_per_microsecond, replayed, set_to
from torch import Tensor, nn

from hotrows.dense.linear import kernel
from hotrows.dense.linear import kernel_sums as sums
from hotrows.dense.linear.kernel_resize import resized
from hotrows.models.mlp import mlp

BATCHES = (1024, 16_384)
COMPILE_SECONDS = 40  # nothing more is compiled when compiling has taken this long
VARIANTS: list[dict[str, int]] = [  # constants of `sums`; those that a variant does not name keep their values
    {},
    {"ROWS": 32},
    {"ROWS": 128, "WARPS": 8},
    {"ROWS": 32, "COLUMNS": 128},
    {"COLUMNS": 128, "WARPS": 8},
    {"COLUMNS": 32},
    {"WARPS": 8},
    {"PROGRAMS": 2048},
    {"STAGES": 2},
]


class Layers(NamedTuple):
    """The sizes of an MLP, whether it ends with a ReLU, and whether its inputs need a gradient."""

    sizes: tuple[int, ...]
    last_relu: bool
    needs_grad: bool

    def __str__(self) -> str:
        return "-".join(map(str, self.sizes))


MLPS = [
    Layers((13, 512, 256, 128), True, False),
    Layers((479, 1024, 1024, 512, 256, 1), False, True),
    Layers((2509, 1024, 512, 256, 1), False, True),
]
COMPILED = MLPS[1:]
PRECISIONS = ("tf32", "bf16")


class Subject:
    """The inputs of one batch size."""

    def __init__(self, layers: Layers, precision: str, num_rows: int) -> None:
        random = torch.Generator("cuda").manual_seed(0)
        self.x = torch.randn(num_rows, layers.sizes[0], generator=random, device="cuda")
        self.x.requires_grad_(layers.needs_grad)
        self.grad = torch.randn(num_rows, layers.sizes[-1], generator=random, device="cuda")
        self.autocast = precision == "bf16"

    def step(self, module: nn.Module) -> list[Tensor]:
        """The output and the gradients of a forward and a backward pass."""
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.autocast):
            out = module(self.x)
        inputs = [*([self.x] if self.x.requires_grad else []), *module.parameters()]
        return [out, *torch.autograd.grad(out, inputs, self.grad.to(out.dtype))]

    def truth(self, module: nn.Module) -> list[Tensor]:
        exact = copy.deepcopy(module).double()
        x = self.x.detach().double().requires_grad_(self.x.requires_grad)
        inputs = [*([x] if x.requires_grad else []), *exact.parameters()]
        out = exact(x)
        return [out, *torch.autograd.grad(out, inputs, self.grad.double())]

    def error(self, module: nn.Module, truth: list[Tensor]) -> float:
        """The largest error of the output and the gradients, relative to the largest value."""
        worst = [
            ((ours.double() - exact).abs().max() / exact.abs().max()).item()
            for ours, exact in zip(self.step(module), truth, strict=True)
        ]
        return max(worst)


class Row(NamedTuple):
    """One line of the table: microseconds for each of BATCHES, and the largest error."""

    what: str
    times: list[float]
    error: float


def measure(what: str, module: nn.Module, subjects: list[Subject], truth: list[Tensor]) -> Row:
    times = [replayed(partial(subject.step, module)) for subject in subjects]
    return Row(what, times, subjects[0].error(module, truth))


def rows(layers: Layers, precision: str, compile_too: bool) -> Iterator[Row]:
    torch.manual_seed(0)
    fused = mlp(layers.sizes, last_relu=layers.last_relu).cuda()
    plain = nn.Sequential(*fused)
    subjects = [Subject(layers, precision, num_rows) for num_rows in BATCHES]
    truth = subjects[0].truth(plain)
    yield measure("torch", plain, subjects, truth)
    yield measure("hotrows", fused, subjects, truth)
    if compile_too:
        torch.compiler.reset()
        try:
            yield measure("torch.compile", torch.compile(plain, dynamic=False), subjects, truth)
        except Exception as error:
            print(f"{'':<34}torch.compile failed: {str(error).splitlines()[0][:80]}")


def compare_mlps() -> bool:
    """Compare all MLPs. Returns True if ours are about as exact as plain layers."""
    print(f"{'layers':<28}{'':<6}{'':<16}" + "".join(f"{f'B={num:,}':>24}" for num in BATCHES) + f"{'error':>10}")
    good, compiling = True, 0.0
    for precision in PRECISIONS:
        torch.set_float32_matmul_precision("high")
        for layers in MLPS:
            plain: Row | None = None
            start = time.perf_counter()
            for row in rows(layers, precision, layers in COMPILED and compiling < COMPILE_SECONDS / 2):
                plain = plain or row
                cells = [f"{us:10.1f} µs  {base / us:5.2f}x" for us, base in zip(row.times, plain.times, strict=True)]
                wrong = not row.error < 2 * plain.error + 1e-3
                good &= not wrong
                if row.what == "torch.compile":
                    compiling += time.perf_counter() - start
                start = time.perf_counter()
                line = f"{layers!s:<28}{precision:<6}{row.what:<16}" + "".join(f"{cell:>24}" for cell in cells)
                print(line + f"{row.error:10.1e}" + (" WRONG" if wrong else ""), flush=True)
    return good


def one_output_step(x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> None:
    out = kernel.layers(x, [weight, bias], [False], grad.dtype)
    torch.autograd.grad(out, (x, weight, bias), grad)


def mask_and_add(grad: Tensor, out: Tensor, weight: Tensor | None) -> None:
    num_rows, width = grad.shape
    parts = sums.make_parts(grad, num_rows, [width])
    sums.mask_and_sum(grad, out, width, width, parts, 0, weight is not None, weight)
    sums.add(parts)


def compare_kernels() -> None:
    num_rows = BATCHES[-1]
    bandwidth = bytes_per_microsecond()
    print(f"\nkernels at B={num_rows:,}; a copy moves {bandwidth / 1e6:.2f} TB/s; µs, and of that speed")
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(num_rows, 479, device="cuda", dtype=dtype)
        padded = resized(x, num_rows, 480, dtype)
        one = [torch.randn(*shape, device="cuda", dtype=dtype) for shape in [(num_rows, 256), (1, 256), (1,)]]
        x_one, weight, bias = (tensor.requires_grad_() for tensor in one)
        grad = torch.randn(num_rows, 1, device="cuda", dtype=dtype)

        cases: dict[str, tuple[int, Callable[[], object]]] = {
            "pad 479 to 480": (
                x.nbytes + padded.nbytes,
                partial(resized, x, num_rows, 480, dtype),
            ),
            "cut 480 to 479": (
                x.nbytes + padded.nbytes,
                partial(resized, padded, num_rows, 479, dtype),
            ),
            "256-1, both directions": (3 * x_one.nbytes, partial(one_output_step, x_one, weight, bias, grad)),
        }
        for what, (num_bytes, function) in cases.items():
            us = replayed(function)
            print(f"{str(dtype)[6:]:<10}{what:<60}{us:8.1f} {num_bytes / bandwidth / us:6.0%}", flush=True)
    for variant in VARIANTS:
        cells = []
        for dtype, width, turn in [
            (torch.float32, 1024, True),
            (torch.float32, 256, False),
            (torch.bfloat16, 1024, False),
        ]:
            grad = torch.randn(num_rows, width, device="cuda").to(dtype)
            out = torch.randn(num_rows, width, device="cuda").relu().to(dtype)
            weight = torch.randn(width, 1024, device="cuda") if turn else None
            with set_to(sums, variant):
                us = replayed(partial(mask_and_add, grad, out, weight))
            num_bytes = (4 if turn else 3) * grad.nbytes + (0 if weight is None else 2 * weight.nbytes)
            what = f"{str(dtype)[6:]} {width}{' turned' if turn else ''}"
            cells.append(f"{what}: {us:6.1f} {num_bytes / bandwidth / us:5.0%}")
        name = ", ".join(f"{key} {value}" for key, value in variant.items()) or "unchanged"
        print(f"mask and sum, {name:<30}" + "   ".join(cells), flush=True)


def main() -> int:
    if not torch.cuda.is_available():
        print("PyTorch sees no CUDA device here: this benchmark needs one", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}")
    print("one forward and backward pass in a CUDA graph; times as fast as plain layers\n")
    good = compare_mlps()
    compare_kernels()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
