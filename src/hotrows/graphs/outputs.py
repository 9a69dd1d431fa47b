"""What a recorded step answers: in new memory at every replay, because the user may keep it."""

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hotrows.graphs.capturable_optimizers import CannotCaptureError

MOST = 64  # tensors
SMALL = 512  # bytes of an answer of which many are made at once
AT_ONCE = 64


class GraphOutputs:
    """Made before the step is recorded, because pinned memory cannot be made meanwhile."""

    def __init__(self) -> None:
        self._addresses = torch.zeros(MOST, 2, dtype=torch.int64, pin_memory=True)  # aligned to 16 bytes
        self._write = self._addresses[:, 0].numpy()
        self._stream: torch.cuda.Stream | None = None

    def record(self, answer: Any) -> None:
        """Deliver the step's answer, a tensor or several, at this point of the recording."""
        from hotrows.ops.write_to_address.kernel import write_to_address

        parts, self._form = pytree.tree_flatten(answer)
        self._parts = [part.detach() if isinstance(part, Tensor) else part for part in parts]
        self._delivered = [
            (place, part.contiguous())
            for place, part in enumerate(self._parts)
            if isinstance(part, Tensor) and part.is_cuda and part.numel() > 0
        ]
        self._on_host = [
            place for place, part in enumerate(self._parts) if isinstance(part, Tensor) and not part.is_cuda
        ]
        self._is_one = len(self._parts) == 1 and not self._form.num_children
        if len(self._delivered) > MOST:
            raise CannotCaptureError(f"it answers {len(self._delivered)} tensors, {MOST} at most are delivered")
        for number, (_, part) in enumerate(self._delivered):
            write_to_address(part, self._addresses[number, :1])
        self._spare: list[list[Tensor]] = [[] for _ in self._delivered]

    def next(self, stream: torch.cuda.Stream) -> Any:
        """Memory for the next replay's answer, of the current stream; the replay before must be done."""
        if stream is not self._stream:  # memory belongs to the stream that it was made in
            self._stream, self._spare = stream, [[] for _ in self._delivered]
        answer = [*self._parts]
        for place in self._on_host:
            answer[place] = answer[place].clone()
        for number, (place, part) in enumerate(self._delivered):
            spare = self._spare[number]
            if not spare:
                count = AT_ONCE if part.numel() * part.element_size() <= SMALL else 1
                # to autograd each is a tensor of its own, not a view with the others' version
                spare.extend(each.data for each in part.new_empty(count, *part.shape).unbind())
            answer[place] = spare.pop()
            self._write[number] = answer[place].data_ptr()
        return answer[0] if self._is_one else pytree.tree_unflatten(answer, self._form)
