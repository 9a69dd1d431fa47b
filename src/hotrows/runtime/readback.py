"""Readbacks: a few numbers copied to the host asynchronously, and read when the copy is long done."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hotrows.runtime.streams import Event, WorkStream


class Readback:
    """A few numbers on their way to the host.

    Args:
        numbers: host memory that the work of a stream writes.
        event: recorded behind that work. If it is not recorded yet, pass it to `completes_at` later.
    """

    __slots__ = ("_event", "_known", "_numbers")

    def __init__(self, numbers: Tensor | NDArray[np.int32], event: Event | None = None) -> None:
        self._numbers = numbers
        self._event = event
        self._known: list[int] | None = None

    def completes_at(self, event: Event) -> None:
        self._event = event

    def poll(self) -> list[int] | None:
        """The numbers, or None if they have not arrived. Never waits."""
        if self._known is None and self._event is not None and self._event.query():
            self._known = self._numbers.tolist()
        return self._known

    def result(self) -> list[int]:
        """The numbers. Blocks the host until they have arrived."""
        if self._known is None:
            assert self._event is not None
            self._event.synchronize()
            self._known = self._numbers.tolist()
        return self._known

    def bad_id(self) -> list[int]:
        """What is bad in a batch, as in `CheckedRows.bad`. Only valid if this is the readback of `CheckedRows.bad`."""
        return self.result()


class UniqueCountReadback(Readback):
    """What the planning graph reports on a batch of ids: the number of unique rows, and where the first bad id is.

    The second number counts the lookups from the first bad id to the end of the batch. It is 0 if no id is bad.
    """

    __slots__ = ("_columns", "_ids", "_num_lookups")

    def __init__(self, numbers: NDArray[np.int32], ids: Tensor, columns: Tensor | None, num_lookups: int) -> None:
        self._numbers, self._event, self._known = numbers, None, None
        self._ids = ids
        self._columns = columns
        self._num_lookups = num_lookups

    def bad_id(self) -> list[int]:
        _, behind = self._known or self.result()
        if behind == 0:
            return [0, 0, 0]
        num_columns = self._ids.shape[1] if self._columns is None else self._columns.numel()
        sample, column = divmod(self._num_lookups - behind, num_columns)
        if self._columns is not None:
            column = int(self._columns[column])
        return [1, sample * self._ids.shape[1] + column, int(self._ids[sample, column])]


def copy_to_host(numbers: Tensor) -> Tensor:
    """A copy in pinned memory, complete once the current stream gets here. A tensor on the host is returned itself."""
    if not numbers.is_cuda:
        return numbers
    on_host = torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=True)
    return on_host.copy_(numbers, non_blocking=True)


def start_readback(numbers: Tensor) -> Readback:
    """Copy a small tensor to the host. Call it inside the work of a stream."""
    return Readback(copy_to_host(numbers))


def submit_with_readback(
    stream: WorkStream, work: Callable[[], Tensor], after: Iterable[Event] = ()
) -> tuple[Readback, Event]:
    """Submit work to a stream, and copy the tensor it returns to the host."""
    started: list[Readback] = []
    event = stream.submit(lambda: started.append(start_readback(work())), after)
    started[0].completes_at(event)
    return started[0], event
