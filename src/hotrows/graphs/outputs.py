"""The outputs of a captured step. They are in new memory after every replay, because the user may keep them.

A graph writes to fixed memory. So a step's graph ends with kernels that copy each output to an address, which they read
from pinned memory. Before each replay the host allocates new outputs and writes their addresses there.
"""

from typing import Any

import torch
from torch import Tensor

from hotrows.graphs.batch_pytree import flatten_batch, unflatten_batch
from hotrows.graphs.capturable_optimizers import CannotCaptureError

MAX_TENSORS = 64
SMALL_BYTES = 512  # Outputs up to this size are allocated many at a time.
NUM_AT_A_TIME = 64


class GraphOutputs:
    """The outputs of one captured step. Create it before the capture: it pins memory, which a capture forbids."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        addresses = torch.zeros(MAX_TENSORS, 2, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._addresses = addresses  # 16 bytes per entry, so that kernels are compiled for aligned pointers to them
        self._write = addresses[:, 0].numpy()
        self._stream: torch.cuda.Stream | None = None

    def capture(self, output: Any) -> None:
        """Capture kernels that copy what the step has returned, a tensor or several, to the addresses of new memory."""
        from hotrows.ops.write_to_address.kernel import write_to_address

        leaves, self._structure = flatten_batch(output)
        self._leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._on_device = [
            (position, leaf.contiguous())
            for position, leaf in enumerate(self._leaves)
            if isinstance(leaf, Tensor) and leaf.device.type == self._device.type and leaf.numel() > 0
        ]
        self._on_host = [
            position
            for position, leaf in enumerate(self._leaves)
            if isinstance(leaf, Tensor) and leaf.device.type != self._device.type
        ]
        if len(self._on_device) > MAX_TENSORS:
            raise CannotCaptureError(
                f"the step returns {len(self._on_device)} tensors, at most {MAX_TENSORS} are supported"
            )
        for number, (_, source) in enumerate(self._on_device):
            write_to_address(source, self._addresses[number, :1])
        self._allocated: list[list[Tensor]] = [[] for _ in self._on_device]

    def next(self, stream: torch.cuda.Stream) -> Any:
        """Allocate the output of the next replay. The replay then writes those output tensors that are on the device.

        The last replay must be complete, because it reads the addresses that this call overwrites.

        Args:
            stream: the current stream, in which the graph is replayed next.
        """
        if stream is not self._stream:  # memory belongs to the stream in which it was allocated
            self._stream, self._allocated = stream, [[] for _ in self._on_device]
        leaves = [*self._leaves]
        for position in self._on_host:
            leaves[position] = leaves[position].clone()
        for number, (position, source) in enumerate(self._on_device):
            allocated = self._allocated[number]
            if not allocated:
                count = NUM_AT_A_TIME if source.numel() * source.element_size() <= SMALL_BYTES else 1
                # Views of one tensor share a version counter. With .data each is a tensor of its own for autograd.
                allocated.extend(each.data for each in source.new_empty(count, *source.shape).unbind())
            leaves[position] = allocated.pop()
            self._write[number] = leaves[position].data_ptr()
        return unflatten_batch(leaves, self._structure)
