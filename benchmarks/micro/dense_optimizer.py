"""How close is a step of the dense optimizer to the time of moving its bytes, and to PyTorch's fused optimizer?

Times one step of all parameters of FreqCache's DLRM on Criteo (26 features, dim 128) as replays of a CUDA graph. The L2
cache is flushed before each. The floor is the time in which a copy moves as many bytes. Run it on a GPU:

    python benchmarks/micro/dense_optimizer.py
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
from measuring import bytes_per_microsecond
from torch import Tensor
from triton.testing import do_bench

from hotrows.dense.dense_optimizer import kernel
from hotrows.dense.optimizer_override import OptimizerOverride
from hotrows.models import make_model

NUM_DENSE, FEATURES, DIM = 13, 26, 128
CASES = {
    "sgd": (torch.optim.SGD, {}, 3),  # the last number is how often the four bytes of an element are read or written
    "momentum": (torch.optim.SGD, {"momentum": 0.9}, 5),
    "adam": (torch.optim.Adam, {"capturable": True}, 7),
    "adamw": (torch.optim.AdamW, {"capturable": True, "weight_decay": 0.01}, 7),
}
VARIANTS = [(512, 4), (1024, 4), (1024, 8), (2048, 4), (2048, 8)]  # elements and warps of a program
STEPS = 5
Within = Callable[[torch.optim.Optimizer], AbstractContextManager[object]]


def made(case: str) -> tuple[torch.optim.Optimizer, list[Tensor]]:
    torch.manual_seed(0)
    params = list(make_model("dlrm:freqcache", NUM_DENSE, FEATURES, DIM).cuda().parameters())
    for param in params:
        param.grad = torch.randn_like(param)
    kind, numbers, _ = CASES[case]
    return kind(params, lr=torch.tensor(0.01, device="cuda"), fused=True, **numbers), params


def measure(case: str, within: Within) -> tuple[float, list[Tensor]]:
    """The microseconds of a step, and the parameters after a few steps."""
    optimizer, params = made(case)
    for _ in range(STEPS):
        with within(optimizer):
            optimizer.step()
    after = [param.detach().clone() for param in params]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), within(optimizer):
        optimizer.step()
    return 1000 * do_bench(graph.replay, warmup=5, rep=50, return_mode="median"), after


def main() -> int:
    if not torch.cuda.is_available():
        print("PyTorch sees no CUDA device here: this benchmark needs one", file=sys.stderr)
        return 1
    bandwidth = bytes_per_microsecond()
    params = made("sgd")[1]
    size = sum(param.numel() for param in params)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}")
    print(f"{size:,} parameters in {len(params)} tensors; a copy moves {bandwidth / 1e6:.2f} TB/s\n")
    failed = False
    for case, (_, _, touches) in CASES.items():
        print(f"{case:<10}{'floor':<24}{4 * touches * size / bandwidth:8.1f} µs")
        theirs, expected = measure(case, lambda _: nullcontext())
        print(f"{'':<10}{'torch':<24}{theirs:8.1f} µs", flush=True)
        for kernel.TILE, kernel.NUM_WARPS in VARIANTS:
            ours, found = measure(case, OptimizerOverride)
            worst = max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True))
            equal = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
            wrong = not worst < 1e-5
            failed |= wrong
            verdict = "the same bits" if equal else f"off by {worst:.1e}" + (" WRONG" if wrong else "")
            print(
                f"{'':<10}{f'{kernel.TILE} elements, {kernel.NUM_WARPS} warps':<24}{ours:8.1f} µs  {verdict}",
                flush=True,
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
