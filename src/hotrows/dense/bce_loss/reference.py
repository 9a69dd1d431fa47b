"""The mean binary cross entropy in plain PyTorch."""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


def bce_loss(logits: Tensor, label: Tensor) -> Tensor:
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return binary_cross_entropy_with_logits(logits, label)
