"""Learning rates over time."""

import math

import torch

from hotrows.train.config import ScheduleConfig


def factor_at(config: ScheduleConfig, step: int, num_steps: int) -> float:
    """The factor of the learning rates at a step. Steps are counted from 0."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.decay == "none":
        return 1.0
    done = min(1.0, (step - config.warmup_steps) / max(1, num_steps - config.warmup_steps))
    shape = 1 - done if config.decay == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return config.end + (1 - config.end) * shape


def num_changing(config: ScheduleConfig, num_steps: int) -> int:
    """The number of steps after which learning rates stay constant. On a GPU, setting a rate launches kernels."""
    return config.warmup_steps if config.decay == "none" else num_steps


def make_schedules(
    config: ScheduleConfig, optimizers: list[torch.optim.Optimizer], num_steps: int
) -> list[torch.optim.lr_scheduler.LambdaLR]:
    return [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor_at(config, step, num_steps))
        for optimizer in optimizers
    ]
