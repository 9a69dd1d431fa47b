"""How long do the distinct rows of a small batch take, columns sorted one by one, against one sort of all lookups?

Times `distinct_ids` as a replay of a CUDA graph, the L2 cache flushed before each, for batches with one lookup in each
table of Criteo Kaggle. Both must give the same. Run it on a GPU:

    python benchmarks/micro/unique.py
"""

import sys

import torch
import triton
from measuring import replayed, set_to
from torch import Tensor

from hotrows.cache.planning.kernel_planner import RequestBuffers
from hotrows.data.shapes import CRITEO_KAGGLE
from hotrows.ops.unique import kernel, kernel_columns

SIZES = [column.num_ids for column in CRITEO_KAGGLE.columns]
BATCHES = (64, 256, 1024, 2048, 4096)
VARIANTS: list[dict[str, int]] = [  # of `kernel_columns`; what is not named is as it is there
    {},
    {"PER_THREAD": 2},
    {"PER_THREAD": 2, "MOST_WARPS": 32},
    {"PER_THREAD": 4, "MOST_WARPS": 32},
    {"PER_THREAD": 8},
    {"PER_THREAD": 16},
]


class Subject:
    """A batch, and where the answer goes."""

    def __init__(self, num_samples: int) -> None:
        random = torch.Generator("cuda").manual_seed(0)
        self.num_rows = torch.tensor(SIZES, device="cuda")
        self.first_row = self.num_rows.cumsum(0) - self.num_rows
        skewed = torch.rand(num_samples, len(SIZES), generator=random, device="cuda", dtype=torch.float64) ** 4
        self.ids = (skewed * self.num_rows).long()
        self.place = torch.zeros(1, dtype=torch.int32, device="cuda")
        told = torch.zeros(1, 2, dtype=torch.int32, pin_memory=True)
        self.places = RequestBuffers(1, self.ids.numel(), self.ids.device, told)
        self.column_order = kernel.column_order(self.first_row, self.num_rows, num_samples)

    def unique_rows(self, column_order: Tensor | None) -> None:
        kernel.unique_ids(
            self.ids, None, self.first_row, self.num_rows, column_order, torch.int32, self.places.noted,
            self.places.told, self.place, self.places.arrays,
        )  # fmt: skip

    def answer(self, column_order: Tensor | None) -> list[Tensor]:
        for each in self.places.arrays:
            each.fill_(-9)
        self.places.noted.zero_()
        self.unique(column_order)
        return [each.clone() for each in self.places.unique(0)]

    def microseconds(self, column_order: Tensor | None) -> float:
        return replayed(lambda: self.unique(column_order))


def main() -> int:
    if not torch.cuda.is_available():
        print("PyTorch sees no CUDA device here: this benchmark needs one", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}")
    print(f"F={len(SIZES)}; µs of a replay\n")
    with set_to(kernel, {"MOST_SAMPLES": max(BATCHES)}):  # also those for which it does not pay
        subjects = [Subject(num_samples) for num_samples in BATCHES]
    expected = [subject.answer(None) for subject in subjects]
    print(f"{'':<42}" + "".join(f"{f'B={num:,}':>10}" for num in BATCHES))
    print(f"{'one sort':<42}" + "".join(f"{subject.microseconds(None):10.1f}" for subject in subjects), flush=True)
    same = True
    for variant in VARIANTS:
        cells = []
        with set_to(kernel_columns, variant):
            for subject, theirs in zip(subjects, expected, strict=True):
                assert subject.column_order is not None
                equal = all(map(torch.equal, subject.answer(subject.column_order), theirs))
                same &= equal
                cells.append(f"{subject.microseconds(subject.column_order):10.1f}" if equal else f"{'WRONG':>10}")
        name = ", ".join(f"{key} {value}" for key, value in variant.items()) or "as it is"
        print(f"{'columns one by one, ' + name:<42}" + "".join(cells), flush=True)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
