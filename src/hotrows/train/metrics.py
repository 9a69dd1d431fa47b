"""The quality of predictions: AUC, log loss and accuracy."""

import torch
from torch import Tensor


class ClickMetrics:
    """Collects the logits and labels of a split on the CPU. The AUC is exact: scores are not binned."""

    def __init__(self) -> None:
        self.num_samples = 0
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []

    def add(self, logits: Tensor, labels: Tensor) -> None:
        self.num_samples += labels.shape[0]
        self._logits.append(logits.detach().float().cpu())
        self._labels.append(labels.detach().float().cpu())

    def result(self) -> dict[str, float] | None:
        """The metrics "auc", "logloss" and "accuracy"; None without samples. The AUC of a single class is NaN."""
        if not self._logits:
            return None
        from torchmetrics.functional.classification import binary_accuracy, binary_auroc

        logits, labels = torch.cat(self._logits), torch.cat(self._labels)
        probability = torch.sigmoid(logits.double())
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), labels.double())
        both = 0 < int(labels.sum()) < labels.numel()
        auc = float(binary_auroc(probability, labels.long())) if both else float("nan")
        accuracy = float(binary_accuracy(probability, labels.long()))
        return {"auc": auc, "logloss": float(loss), "accuracy": accuracy}
