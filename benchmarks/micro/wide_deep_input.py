"""How close are a Wide & Deep model's input and the loss to the time of moving their bytes, and which sizes are best?

Times one forward and one backward pass as replays of a CUDA graph, for Wide & Deep on Criteo (13 dense features, 26
others, dim 96) and for the loss. The L2 cache is flushed before each. The floor is the time in which a copy moves as
many bytes. Run it on a GPU:

    python benchmarks/micro/wide_deep_input.py
"""

import sys
from collections.abc import Callable, Sequence

import torch
import triton
from measuring import bytes_per_microsecond, set_to
from torch import Tensor
from triton.testing import do_bench

from hotrows.dense.bce_loss import bce_loss
from hotrows.dense.bce_loss import reference as loss_reference
from hotrows.dense.wide_deep_input import kernel, reference, wide_deep_input

NUM_DENSE, FEATURES, DIM = 13, 26, 96
BATCHES = (1024, 8192)
VARIANTS: list[dict[str, int]] = [  # constants of `kernel`; those that a variant does not name keep their values
    {},
    {"FORWARD_COLUMNS": 512},
    {"FORWARD_COLUMNS": 1024},
    {"FORWARD_COLUMNS": 2048},
    {"FORWARD_VECTOR": 1},
    {"FORWARD_VECTOR": 4},
    {"NUMBERS_PER_WARP": 256},
    {"NUMBERS_PER_WARP": 1024},
    {"BACKWARD_TILE": 1024},
    {"BACKWARD_TILE": 4096},
    {"SUM_TILE": 2048},
    {"SUM_TILE": 8192},
]
Function = Callable[..., Tensor | Sequence[Tensor]]


def microseconds(function: Function, inputs: list[Tensor]) -> tuple[float, float]:
    """The microseconds of the forward and of the backward pass, to the inputs that need a gradient."""
    needed = [tensor for tensor in inputs if tensor.requires_grad]
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()  # a backward pass runs on the stream of its forward pass
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        outputs = function(*inputs)
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        grads = [torch.randn_like(output) for output in outputs]
        torch.autograd.grad(outputs, needed, grads, retain_graph=True)
    torch.cuda.synchronize()
    with torch.cuda.graph(forward, stream=stream), torch.no_grad():
        function(*inputs)
    with torch.cuda.graph(backward, stream=stream):
        torch.autograd.grad(outputs, needed, grads, retain_graph=True)
    times = [do_bench(graph.replay, warmup=5, rep=25, return_mode="median") for graph in (forward, backward)]
    return 1000 * times[0], 1000 * times[1]


def made(num_rows: int) -> list[Tensor]:
    """The inputs: dense, which needs no gradient, embedded, and the weights of the layer over dense."""
    shapes = [(num_rows, FEATURES, DIM + 1), (1, NUM_DENSE), (1,)]
    dense = torch.randn(num_rows, NUM_DENSE, device="cuda")
    return [dense, *(torch.randn(shape, device="cuda").requires_grad_() for shape in shapes)]


def compare_inputs(autocast: bool, floor: float) -> None:
    def line(what: str, function: Function) -> None:
        cells = []
        for num_rows in BATCHES:
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
                times = microseconds(function, made(num_rows))
            cells.append("".join(f"{time:9.1f}" for time in times))
        print(f"{'bf16' if autocast else 'float32':<9}{what:<40}" + "   ".join(cells), flush=True)

    moved = FEATURES * (DIM + 1) * 4 + (NUM_DENSE + FEATURES * DIM) * (2 if autocast else 4)
    print(f"{'':<9}{'floor, either way':<40}" + "   ".join(f"{num * moved / floor:9.1f}{'':9}" for num in BATCHES))
    line("torch", reference.wide_deep_input)
    for variant in VARIANTS:
        with set_to(kernel, variant):
            line(", ".join(f"{name} {value}" for name, value in variant.items()) or "unchanged", wide_deep_input)


def compare_losses() -> None:
    for what, function in (("torch", loss_reference.bce_loss), ("hotrows", bce_loss)):
        cells = []
        for num_rows in (*BATCHES, 65_536):
            label = (torch.rand(num_rows, device="cuda") < 0.3).float()
            times = microseconds(function, [torch.randn(num_rows, device="cuda").requires_grad_(), label])
            cells.append("".join(f"{time:9.1f}" for time in times))
        print(f"{'loss':<9}{what:<40}" + "   ".join(cells), flush=True)


def main() -> int:
    if not torch.cuda.is_available():
        print("PyTorch sees no CUDA device here: this benchmark needs one", file=sys.stderr)
        return 1
    floor = bytes_per_microsecond()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}")
    print(f"a copy moves {floor / 1e6:.2f} TB/s; µs forward and backward at B = {', '.join(map(str, BATCHES))}\n")
    for autocast in (False, True):
        compare_inputs(autocast, floor)
    print(f"\nlosses, at B = {', '.join(map(str, (*BATCHES, 65_536)))}")
    compare_losses()
    return 0


if __name__ == "__main__":
    sys.exit(main())
