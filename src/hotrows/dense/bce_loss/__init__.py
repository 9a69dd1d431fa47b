"""The loss of click prediction: the mean binary cross entropy between logits and labels."""

import torch
from torch import Tensor

from hotrows.dense.bce_loss import reference

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def bce_loss(logits: Tensor, label: Tensor) -> Tensor:
    """`binary_cross_entropy_with_logits` in float32 at least; on CUDA one kernel forward and one backward.

    Equal inputs give equal bits.

    Args:
        logits: [B], or of any shape.
        label: as many, from 0 to 1.

    Returns:
        A scalar; differentiable once on CUDA.
    """
    if logits.is_cuda and _has_kernel(logits, label):
        from hotrows.dense.bce_loss import kernel

        return kernel.bce_loss(logits, label)
    return reference.bce_loss(logits, label)


def _has_kernel(logits: Tensor, label: Tensor) -> bool:
    """True if the kernel takes these inputs. PyTorch takes all others, or raises and says what is wrong with them."""
    return (
        logits.dtype in _DTYPES
        and label.dtype in _DTYPES
        and logits.device == label.device
        and logits.shape == label.shape
        and logits.numel() > 0
        and not label.requires_grad
    )
