"""How long does it take to find the unique rows of a small batch, by sorting each column, or all lookups at once?

Times `unique_ids` as a replay of a CUDA graph, with the L2 cache flushed before each, for batches with one lookup in
each table of Criteo Kaggle. Both ways must have the same result. Run it on a GPU:

    python benchmarks/micro/unique.py
"""

import sys

import torch
import triton
from measuring import replayed, set_to
from torch import Tensor

from hotrows.cache.planning.buffers import RequestBuffers
from hotrows.data.shapes import CRITEO_KAGGLE
from hotrows.ops.unique import kernel, kernel_columns

SIZES = [column.num_ids for column in CRITEO_KAGGLE.columns]
BATCHES = (64, 256, 1024, 2048, 4096)
VARIANTS: list[
    dict[str, int]
] = [  # constants of `kernel_columns`; those that a variant does not name keep their values
    {},
    {"PER_THREAD": 2},
    {"PER_THREAD": 2, "MAX_WARPS": 32},
    {"PER_THREAD": 4, "MAX_WARPS": 32},
    {"PER_THREAD": 8},
    {"PER_THREAD": 16},
]


class Subject:
    """A batch, and a request buffer for its unique rows."""

    def __init__(self, num_samples: int) -> None:
        random = torch.Generator("cuda").manual_seed(0)
        self.num_rows = torch.tensor(SIZES, device="cuda")
        self.first_row = self.num_rows.cumsum(0) - self.num_rows
        skewed = torch.rand(num_samples, len(SIZES), generator=random, device="cuda", dtype=torch.float64) ** 4
        self.ids = (skewed * self.num_rows).long()
        self.which = torch.zeros(1, dtype=torch.int32, device="cuda")
        counts = torch.zeros(1, 2, dtype=torch.int32, pin_memory=True)
        self.buffers = RequestBuffers(1, self.ids.numel(), self.ids.device, counts)
        self.column_order = kernel.column_order(self.first_row, self.num_rows, num_samples)

    def find_unique(self, column_order: Tensor | None) -> None:
        kernel.unique_ids(
            self.ids, None, self.first_row, self.num_rows, column_order, torch.int32, self.buffers.counts_on_device,
            self.buffers.counts_on_host, self.which, self.buffers.arrays,
        )  # fmt: skip

    def result(self, column_order: Tensor | None) -> list[Tensor]:
        for each in self.buffers.arrays:
            each.fill_(-9)
        self.buffers.counts_on_device.zero_()
        self.find_unique(column_order)
        return [each.clone() for each in self.buffers.unique(0)]

    def microseconds(self, column_order: Tensor | None) -> float:
        return replayed(lambda: self.find_unique(column_order))


def main() -> int:
    if not torch.cuda.is_available():
        print("PyTorch sees no CUDA device here: this benchmark needs one", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}")
    print(f"F={len(SIZES)}; µs of a replay\n")
    with set_to(kernel, {"MAX_SAMPLES": max(BATCHES)}):  # also for batches that are too large for it to be faster
        subjects = [Subject(num_samples) for num_samples in BATCHES]
    expected = [subject.result(None) for subject in subjects]
    print(f"{'':<42}" + "".join(f"{f'B={num:,}':>10}" for num in BATCHES))
    print(f"{'one sort':<42}" + "".join(f"{subject.microseconds(None):10.1f}" for subject in subjects), flush=True)
    same = True
    for variant in VARIANTS:
        cells = []
        with set_to(kernel_columns, variant):
            for subject, theirs in zip(subjects, expected, strict=True):
                assert subject.column_order is not None
                equal = all(map(torch.equal, subject.result(subject.column_order), theirs))
                same &= equal
                cells.append(f"{subject.microseconds(subject.column_order):10.1f}" if equal else f"{'WRONG':>10}")
        name = ", ".join(f"{key} {value}" for key, value in variant.items()) or "unchanged"
        print(f"{'columns one by one, ' + name:<42}" + "".join(cells), flush=True)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
