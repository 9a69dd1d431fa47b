"""Transfers: how records move from the store to the cache and back."""

from typing import Protocol

import torch
from torch import Tensor

from hotrows.ops.rows import filled
from hotrows.ops.swap import Moves
from hotrows.stores import Store


class Transfer(Protocol):
    """A way to move records.

    Attributes:
        waits: True if the host waits for the device, so that moves cannot be captured in a CUDA graph.
    """

    waits: bool

    @property
    def device_bytes(self) -> int:
        """The device memory that it holds."""

    def move(self, store: Store, records: Tensor, moves: Moves) -> None:
        """Carry out moves between the store and the records of a cache in the current stream, as `ops.swap` does."""


class ZeroCopy:
    """The store exchanges rows itself. If it is in host memory, a kernel reads and writes that memory without the CPU.

    Args:
        sm_scale: scales the number of multiprocessors that may move rows. With more than 1, moves take less time, and
            slow down the training beside them more. That suits moves that must be done in less than a training step.
    """

    waits = False
    device_bytes = 0

    def __init__(self, sm_scale: float = 1.0) -> None:
        self.sm_scale = sm_scale

    def move(self, store: Store, records: Tensor, moves: Moves) -> None:
        store.exchange(records, moves if self.sm_scale == 1 else moves._replace(sm_scale=self.sm_scale))


class BlockTransmitter:
    """Rows are gathered into a block, the block is copied, and its rows are scattered (FreqCache's transmitter).

    There is one block on the host and one on the device, both of bounded size: more rows take several passes. It works
    with every store. The host waits for the device, because it must know the row numbers to gather the rows.

    Args:
        buffer_rows: the most rows of a block.
    """

    waits = True

    def __init__(self, buffer_rows: int = 50_000) -> None:
        if not isinstance(buffer_rows, int) or buffer_rows < 1:
            raise ValueError(f"buffer_rows is {buffer_rows!r}, it must be a whole number from 1 up")
        self.buffer_rows = buffer_rows
        self.passes = 0  # blocks copied, in both directions
        self.bytes_in = 0  # from the store to the cache
        self.bytes_out = 0
        self._on_host = self._on_device = torch.empty(0)

    @property
    def device_bytes(self) -> int:
        return self._on_device.nbytes

    def move(self, store: Store, records: Tensor, moves: Moves) -> None:
        slots = moves.slots
        count = filled(slots, moves.num)
        listed = torch.arange(count, device=slots.device) < moves.num
        # No row both leaves and enters the cache in the same moves, so all records can leave their slots first.
        for leaving, rows in ((True, moves.rows_out[:count]), (False, moves.rows_in[:count])):
            (moving,) = torch.nonzero((rows >= 0) & listed, as_tuple=True)
            chosen_slots, chosen_rows = slots[moving].long(), rows[moving].cpu()
            for start in range(0, moving.numel(), self.buffer_rows):
                part = slice(start, start + self.buffer_rows)
                self._pass(store, records, chosen_slots[part], chosen_rows[part], leaving)

    def _pass(self, store: Store, records: Tensor, slots: Tensor, rows: Tensor, leaving: bool) -> None:
        on_host, on_device = self._block(rows.numel(), store, records)
        if leaving:
            torch.index_select(records, 0, slots, out=on_device)
            on_host.copy_(on_device)  # waits until the block has arrived
            store.write(rows, on_host)
            self.bytes_out += on_host.nbytes
        else:
            store.read(rows, out=on_host)
            on_device.copy_(on_host)  # waits until the block on the host is free again
            records.index_copy_(0, slots, on_device)
            self.bytes_in += on_host.nbytes
        self.passes += 1

    def _block(self, num: int, store: Store, records: Tensor) -> tuple[Tensor, Tensor]:
        """Room for `num` records on the host and on the device."""
        if self._on_host.numel() == 0:
            shape = (min(self.buffer_rows, store.num_rows), records.shape[1])
            self._on_host = torch.empty(shape, dtype=records.dtype, device="cpu", pin_memory=records.is_cuda)
            self._on_device = torch.empty(shape, dtype=records.dtype, device=records.device)
        return self._on_host[:num], self._on_device[:num]
