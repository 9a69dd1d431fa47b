"""What the validation split says while a model trains: which step was the best, and whether training should go on."""

import math
from collections.abc import Mapping


class Validation:
    """The evaluations of one training on the validation split.

    Args:
        patience: how many evaluations without a better one end the training. None for no end.

    Attributes:
        best_step: the step of the best evaluation; 0 before the first.
        best: its results.
    """

    def __init__(self, patience: int | None) -> None:
        self._patience = patience
        self._score = -math.inf
        self._num_worse = 0
        self.best_step = 0
        self.best: Mapping[str, float] | None = None

    def add(self, step: int, result: Mapping[str, float]) -> bool:
        """Add an evaluation. Returns whether it is the best so far."""
        score = _score(result)
        is_best = self.best is None or score > self._score
        if is_best:
            self._score, self.best_step, self.best, self._num_worse = score, step, result, 0
        else:
            self._num_worse += 1
        return is_best

    @property
    def should_stop(self) -> bool:
        return self._patience is not None and self._num_worse >= self._patience


def _score(result: Mapping[str, float]) -> float:
    """The AUC. Where all labels are equal there is none, and a smaller log loss is better."""
    auc = result["auc"]
    return auc if math.isfinite(auc) else -result["logloss"]
