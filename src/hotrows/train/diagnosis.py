"""What is known about a loss or a prediction that is not finite: where it was, what was large, and what to try."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hotrows.errors import NotFiniteError
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.stores.record import WEIGHT
from hotrows.train.config import RunConfig
from hotrows.train.loss_check import BadStep

CHUNK = 1 << 24  # numbers that are looked at together
LARGE_INPUT = 1e4  # dense inputs beyond it make the first layer's outputs too large for usual learning rates


@dataclass(frozen=True)
class Numbers:
    """What the values of a tensor are like."""

    num: int
    num_bad: int  # NaN or infinite
    largest: float  # the largest absolute value of the finite ones, 0 if there are none

    @classmethod
    def of(cls, parts: Iterator[Tensor]) -> "Numbers":
        """Of several tensors together. Each is looked at in chunks, because a copy of it may not fit."""
        num, num_bad, largest = 0, 0, 0.0
        for part in parts:
            for chunk in torch.split(part.detach().reshape(-1), CHUNK):
                finite = torch.isfinite(chunk)
                num += chunk.numel()
                num_bad += chunk.numel() - int(finite.sum())
                if chunk.numel():
                    largest = max(largest, float(chunk.where(finite, 0).abs().max()))
        return cls(num, num_bad, largest)

    def __str__(self) -> str:
        bad = f"{self.num_bad:,} of {self.num:,} are not finite, " if self.num_bad else ""
        return f"{bad}the largest is {self.largest:.3g}" if self.num_bad < self.num else "none is finite"


@dataclass
class Findings:
    """What was found, and what may help, as sentences in the order of their importance."""

    facts: dict[str, str] = field(default_factory=dict)
    advice: list[str] = field(default_factory=list)


def failed_training(
    bad: BadStep, model: nn.Module, bags: EmbeddingBagCollection, dense_optimizer: torch.optim.Optimizer,
    columns: Sequence[str], config: RunConfig,
) -> NotFiniteError:  # fmt: skip
    """The error that ends a training.

    Args:
        columns: the names of the dense columns.
    """
    found = Findings()
    trained = bad.trained
    _look_at_inputs(found, trained.dense, trained.label, columns, trained.position.first_sample)
    before = "" if bad.before is None else f"; in the step before, {Numbers.of(iter([bad.before.logits]))}"
    found.facts["logits"] = f"{Numbers.of(iter([trained.logits]))}{before}"
    if bad.losses_before:
        found.facts["losses before"] = ", ".join(f"{loss:.4g}" for loss in bad.losses_before)
    later = bad.num_steps - trained.step
    _look_at_weights(found, model, bags, f"after step {bad.num_steps:,}")
    if not found.advice:
        _advise_on_divergence(found, bad, bags.optimizer, dense_optimizer, config)
    position, size = trained.position, trained.label.shape[0]
    last = position.first_sample + size - 1
    order = ", in the shuffled order" if config.train.shuffle else ""
    where = (
        f"epoch {position.epoch}, batch {position.batch:,} of {position.num_batches:,}, samples "
        f"{position.first_sample:,} to {last:,} of the train split{order}"
    )
    meanwhile = f" {later:,} more {_plural(later, 'step')} ran before this was known." if later else ""
    what = f"the loss of step {trained.step:,} is {bad.loss}"
    if math.isfinite(bad.loss):
        what = f"the weights of the dense part are not finite after step {trained.step:,}"
    message = f"training stopped: {what} ({where}).{meanwhile}"
    details = {
        "step": trained.step, "loss": str(bad.loss), "epoch": position.epoch, "batch": position.batch,
        "first_sample": position.first_sample, "last_sample": last, "shuffled": config.train.shuffle,
        "steps_trained": bad.num_steps, "losses_before": list(bad.losses_before),
    }  # fmt: skip
    return _error(message, found, details)


def failed_evaluation(
    logits: Tensor, dense: Tensor, first_sample: int, split: str, model: nn.Module, bags: EmbeddingBagCollection,
    columns: Sequence[str],
) -> NotFiniteError:  # fmt: skip
    """The error for a batch of an evaluation whose logits are not all finite."""
    found = Findings()
    _look_at_inputs(found, dense, None, columns, first_sample)
    found.facts["logits"] = str(Numbers.of(iter([logits])))
    _look_at_weights(found, model, bags, "of the model")
    if not found.advice:
        found.advice.append(
            "the weights are too large or not finite: train again with smaller learning rates (--lr), and with "
            "validation during training, which shows when it began ([train] eval_every)"
        )
    first = first_sample + int((~torch.isfinite(logits)).nonzero()[0])
    message = f"the {split} split cannot be evaluated: the model's prediction for sample {first:,} of it is not finite."
    return _error(message, found, {"split": split, "first_sample": first})


def check_saved(name: str, values: Tensor) -> None:
    """Raise if a tensor that is about to be saved has a value that is not finite."""
    if values.numel() == 0 or not values.is_floating_point():
        return
    low, high = torch.aminmax(values.detach())  # both are NaN if a value is, and no copy of the tensor is made
    if not (math.isfinite(low) and math.isfinite(high)):
        raise NotFiniteError(
            f"the trained model is not saved: {name} has values that are NaN or infinite. Train again with smaller "
            "learning rates (--lr)",
            {"tensor": name},
        )


def _look_at_inputs(
    found: Findings, dense: Tensor, label: Tensor | None, columns: Sequence[str], first_sample: int
) -> None:
    dense = dense.detach().cpu()
    numbers = [Numbers.of(iter([column])) for column in dense.unbind(1)]
    bad = [(name, each.num_bad) for name, each in zip(columns, numbers, strict=True) if each.num_bad]
    if bad:
        row, column = (~torch.isfinite(dense)).nonzero()[0].tolist()
        listed = ", ".join(f"{name} ({num:,})" for name, num in bad[:5])
        found.facts["dense inputs"] = (
            f"not finite in {listed}; the first is {float(dense[row, column])} in sample {first_sample + row:,}"
        )
        found.advice.append(
            f"mend column {bad[0][0]} of the data: a missing or impossible number must be replaced before training "
            "(hotrows prepare writes 0 for a missing one)"
        )
    elif numbers:
        largest, name = max((each.largest, name) for name, each in zip(columns, numbers, strict=True))
        found.facts["dense inputs"] = f"all are finite, the largest is {largest:.3g} in {name}"
        if largest > LARGE_INPUT:
            found.advice.append(
                f"scale column {name}, whose values go up to {largest:.3g}: take its logarithm, or bring it to a "
                "standard deviation of 1"
            )
    if label is not None and not bool(((label >= 0) & (label <= 1)).all()):
        found.facts["labels"] = "not all are from 0 to 1"
        found.advice.insert(0, "mend the labels: each must be from 0 to 1")


def _look_at_weights(found: Findings, model: nn.Module, bags: EmbeddingBagCollection, when: str) -> None:
    found.facts[f"dense weights {when}"] = str(Numbers.of(iter(model.parameters())))
    found.facts[f"row weights in the cache {when}"] = str(Numbers.of(_cached_weights(bags)))


def _cached_weights(bags: EmbeddingBagCollection) -> Iterator[Tensor]:
    """The weights in all slots. The rows that were trained last are among them."""
    for scheduler in bags.schedulers:
        with bags.exclusive:
            scheduler.streams.wait_for_moves()
            cache = scheduler.cache
            for records in torch.split(cache.records, max(1, CHUNK // cache.records.shape[1])):
                yield cache.store.layout.values(records, WEIGHT)


def _advise_on_divergence(
    found: Findings, bad: BadStep, rows: torch.optim.Optimizer | None, dense: torch.optim.Optimizer, config: RunConfig
) -> None:
    optimizers = {"the rows": rows, "the dense part": dense}
    rates = {part: float(each.param_groups[0]["lr"]) for part, each in optimizers.items() if each is not None}
    listed = ", ".join(f"{part} {type(optimizers[part]).__name__} with lr = {rate:g}" for part, rate in rates.items())
    options = {"the rows": "--lr", "the dense part": "--dense-lr"}
    tenth = " ".join(f"{options[part]} {rate / 10:g}" for part, rate in rates.items())
    found.advice.append(f"smaller learning rates; now have {listed} (a tenth: {tenth})")
    if config.schedule.warmup_steps <= bad.trained.step:
        found.advice.append("a warm-up: warmup_steps = 1000 in [schedule] of the run file")
    if any("SGD" in type(each).__name__ for each in optimizers.values()):
        found.advice.append(
            'adagrad for the rows (--optimizer adagrad) and adam for the dense part (name = "adam" in '
            "[dense_optimizer]), whose steps do not grow with the gradients"
        )
    if config.train.precision == "bf16":
        found.advice.append('precision = "fp32" in [train], to see if bf16 is the reason')


def _error(message: str, found: Findings, details: dict[str, object]) -> NotFiniteError:
    lines = [message, *(f"  {name}: {text}" for name, text in found.facts.items())]
    lines += [f"  try: {text}" for text in found.advice]
    return NotFiniteError("\n".join(lines), {**details, "found": found.facts, "try": found.advice, "message": message})


def _plural(num: int, noun: str) -> str:
    return noun if num == 1 else f"{noun}s"
