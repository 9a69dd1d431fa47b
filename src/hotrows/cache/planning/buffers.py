"""The fixed memory that the planning kernels work on: request buffers and plan buffers."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from hotrows.ops.plan import kernel
from hotrows.ops.rows import LOOKUPS_PER_BLOCK
from hotrows.ops.unique import UniqueRows
from hotrows.ops.unique.kernel import allocate_batches, allocate_unions
from hotrows.ops.unique.kernel_parts import UnionArrays


class RequestBuffers:
    """The unique rows of batches, from their announcement until their plan is known to fit.

    A request buffer holds one batch, or several coalesced batches, which are its parts. The first dimension of each
    array has one entry for each part, and the parts of a request buffer follow each other.

    Args:
        num: how many request buffers.
        num_lookups: lookups of one batch.
        counts_on_host: int32 [num · parts, 2] in host memory, where the kernels report on each batch (`unique_ids`
            says what).
        parts: how many batches a request buffer holds.
        union_counts_on_host: int32 [num, 2] in host memory, where the kernels report on the union of the parts; needed
            if a request buffer holds several batches.

    Attributes:
        union: the union of the parts of each request buffer, None if a request buffer holds one batch.
    """

    def __init__(
        self,
        num: int,
        num_lookups: int,
        device: torch.device,
        counts_on_host: Tensor,
        parts: int = 1,
        union_counts_on_host: Tensor | None = None,
    ) -> None:
        self._num_lookups = num_lookups
        self.parts = parts
        self.arrays = allocate_batches(num * parts, num_lookups, device)
        self.counts_on_device = torch.zeros(num * parts, 2, dtype=torch.int32, device=device)
        self.counts_on_host = counts_on_host
        self.union: UnionArrays | None = None
        if parts > 1:
            assert union_counts_on_host is not None
            self.union = allocate_unions(num, parts, num_lookups, device, union_counts_on_host)

    def unique(self, request_buffer: int, part: int = 0) -> UniqueRows:
        """The unique rows of a batch."""
        return _unique_rows(self.arrays, self.counts_on_device, request_buffer * self.parts + part, self._num_lookups)

    def union_rows(self, request_buffer: int) -> tuple[Tensor, Tensor]:
        """The unique rows of all batches in a request buffer, and their number [1]."""
        rows, _, counts = self.planned_arrays
        return rows[request_buffer, : self.parts * self._num_lookups], counts[request_buffer, :1]

    @property
    def planned_arrays(self) -> tuple[Tensor, Tensor, Tensor]:
        """Arrays over all request buffers of what is planned (a batch, or a union).

        These are the rows, the starts, and the counts, whose first column is the number of rows.
        """
        if self.union is None:
            return self.arrays[0], self.arrays[3], self.counts_on_device
        return self.union.rows, self.union.starts, self.union.counts_on_device

    @property
    def tensors(self) -> list[Tensor]:
        """Everything in device memory."""
        tensors = [*self.arrays, self.counts_on_device]
        if self.union is not None:
            tensors += [self.union.rows, self.union.starts, self.union.counts_on_device, self.union.in_union]
        return tensors


class PlanBuffer(NamedTuple):
    """The plan of one batch."""

    unique: UniqueRows
    slots: Tensor
    row_slots: Tensor
    counts: Tensor


class PlanBuffers:
    """The plans of batches, from when they are made until the batches are released.

    Args:
        num: how many plan buffers. The first dimension of each array has one entry for each of them.
        num_lookups: lookups of one batch.
        counts: int32 [num, fields of `Counts`] in host memory, where a kernel writes the counts of each plan.
    """

    def __init__(self, num: int, num_lookups: int, device: torch.device, counts: Tensor) -> None:
        self._num_lookups = num_lookups
        self.arrays = allocate_batches(num, num_lookups, device)
        self.num = torch.zeros(num, kernel.ALIGNED.value, dtype=torch.int32, device=device)
        self.slots, self.row_slots = (torch.zeros_like(self.arrays[1]) for _ in range(2))
        self.counts = counts

    def __getitem__(self, plan_buffer: int) -> PlanBuffer:
        num = self._num_lookups
        return PlanBuffer(
            unique=_unique_rows(self.arrays, self.num, plan_buffer, num),
            slots=self.slots[plan_buffer, :num],
            row_slots=self.row_slots[plan_buffer, :num],
            counts=self.counts[plan_buffer],
        )

    @property
    def tensors(self) -> list[Tensor]:
        """Everything in device memory."""
        return [*self.arrays, self.num, self.slots, self.row_slots]


def _unique_rows(arrays: tuple[Tensor, ...], num: Tensor, which: int, num_lookups: int) -> UniqueRows:
    rows, inverse, order, starts, block_rows = (array[which] for array in arrays)
    blocks = triton.cdiv(num_lookups, LOOKUPS_PER_BLOCK)
    lookups = slice(num_lookups)
    return UniqueRows(
        rows[lookups], num[which, :1], inverse[lookups], order[lookups], starts[: num_lookups + 1], block_rows[:blocks]
    )
