"""The precision of the dense part's computation."""

from contextlib import AbstractContextManager, nullcontext

import torch


def set_matmul_precision(precision: str) -> None:
    """Allow float32 matrix products in TF32, unless the precision is "fp32". This applies to the whole process."""
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")


def computing_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """A context in which forward passes have this precision: autocast for "bf16", nothing for "fp32" and "tf32"."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
