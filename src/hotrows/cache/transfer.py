"""Movers: how records go from the store to the cache and back."""

from typing import Protocol

import torch
from torch import Tensor

from hotrows.ops.rows import filled
from hotrows.ops.swap import Moves
from hotrows.stores import Store


class Transfer(Protocol):
    waits: bool  # whether the host waits for the device, so that moves cannot be recorded in a CUDA graph

    @property
    def device_bytes(self) -> int:
        """That it holds on the device."""

    def move(self, store: Store, cache: Tensor, moves: Moves) -> None:
        """Carry out moves, in the lane of the caller; the contract of `ops.swap`."""


class ZeroCopy:
    """A kernel reads and writes the store in host memory itself, row by row, without the CPU.

    Args:
        haste: of the moves; more than 1 where they have less time than a step takes, at the cost of what trains then.
    """

    waits = False
    device_bytes = 0

    def __init__(self, haste: float = 1.0) -> None:
        self.haste = haste

    def move(self, store: Store, cache: Tensor, moves: Moves) -> None:
        store.swap(cache, moves if self.haste == 1 else moves._replace(haste=self.haste))


class BlockTransmitter:
    """Rows are gathered into a block, the block is copied, its rows are scattered (FreqCache's transmitter).

    The block is there once on the host and once on the device, and of bounded size: what is more goes in several
    passes. The host waits for the device, for only then can it tell which rows to gather.

    Args:
        buffer_rows: the most rows of a block.
    """

    waits = True

    def __init__(self, buffer_rows: int = 50_000) -> None:
        if not isinstance(buffer_rows, int) or buffer_rows < 1:
            raise ValueError(f"buffer_rows is {buffer_rows!r}, it must be a whole number from 1 up")
        self.buffer_rows = buffer_rows
        self.passes = 0  # blocks copied, in and out
        self.bytes_in = 0  # store → cache
        self.bytes_out = 0
        self._on_host = self._on_device = torch.empty(0)

    @property
    def device_bytes(self) -> int:
        return self._on_device.nbytes

    def move(self, store: Store, cache: Tensor, moves: Moves) -> None:
        slots = moves.slots
        count = filled(slots, moves.num)
        within = torch.arange(count, device=slots.device) < moves.num
        # no row both leaves and comes, so all may leave first
        for leaving, rows in ((True, moves.rows_out[:count]), (False, moves.rows_in[:count])):
            (moving,) = torch.nonzero((rows >= 0) & within, as_tuple=True)
            chosen_slots, chosen_rows = slots[moving].long(), rows[moving].cpu()
            for start in range(0, moving.numel(), self.buffer_rows):
                part = slice(start, start + self.buffer_rows)
                self._pass(store, cache, chosen_slots[part], chosen_rows[part], leaving)

    def _pass(self, store: Store, cache: Tensor, slots: Tensor, rows: Tensor, leaving: bool) -> None:
        on_host, on_device = self._block(rows.numel(), store, cache)
        records = store.view(0, store.num_rows)
        if leaving:
            torch.index_select(cache, 0, slots, out=on_device)
            on_host.copy_(on_device)  # waits for it
            records[rows] = on_host
            self.bytes_out += on_host.numel() * on_host.element_size()
        else:
            torch.index_select(records, 0, rows, out=on_host)
            on_device.copy_(on_host)  # waits for it: the block on the host is free again
            cache.index_copy_(0, slots, on_device)
            self.bytes_in += on_host.numel() * on_host.element_size()
        self.passes += 1

    def _block(self, num: int, store: Store, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Room for so many records on the host and on the device."""
        if self._on_host.numel() == 0:
            shape = (min(self.buffer_rows, store.num_rows), cache.shape[1])
            self._on_host = torch.empty(shape, dtype=cache.dtype, device="cpu", pin_memory=cache.is_cuda)
            self._on_device = torch.empty(shape, dtype=cache.dtype, device=cache.device)
        return self._on_host[:num], self._on_device[:num]
