"""Numbers that the host reads late: copied to it asynchronously, looked at when the copy is long done."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hotrows.cache.lanes import Lane, Mark


class LateNumbers:
    """A few numbers on their way to the host.

    Args:
        numbers: on the host, where the work of a lane writes them.
        mark: that lane's, behind this work; where it is not there yet, give it to `arrives`.
    """

    __slots__ = ("_known", "_mark", "_numbers")

    def __init__(self, numbers: Tensor | NDArray[np.int32], mark: Mark | None = None) -> None:
        self._numbers = numbers
        self._mark = mark
        self._known: list[int] | None = None

    def arrives(self, mark: Mark) -> None:
        self._mark = mark

    def get_if_ready(self) -> list[int] | None:
        """The numbers, None where they are not there yet."""
        if self._known is None and self._mark is not None and self._mark.passed():
            self._known = self._numbers.tolist()
        return self._known

    def get(self) -> list[int]:
        """The numbers, waiting for them where they are not there yet."""
        if self._known is None:
            assert self._mark is not None
            self._mark.wait()
            self._known = self._numbers.tolist()
        return self._known

    def bad(self) -> list[int]:
        """What is bad in a batch, as `Rows.bad`: the numbers themselves."""
        return self.get()


class LateTold(LateNumbers):
    """What the ring tells of a batch of ids: [distinct rows, lookups less the position of the first bad one]."""

    __slots__ = ("_columns", "_ids", "_num_lookups")

    def __init__(self, told: NDArray[np.int32], ids: Tensor, columns: Tensor | None, num_lookups: int) -> None:
        self._numbers, self._mark, self._known = told, None, None
        self._ids = ids
        self._columns = columns
        self._num_lookups = num_lookups

    def bad(self) -> list[int]:
        _, behind = self._known or self.get()
        if behind == 0:
            return [0, 0, 0]
        position = self._num_lookups - behind
        ids = self._ids if self._columns is None else self._ids[:, self._columns.to(self._ids.device)]
        return [1, position, int(ids.flatten()[position])]


def send(numbers: Tensor) -> LateNumbers:
    """A small tensor on its way to the host. To be called inside `work` of a lane."""
    if not numbers.is_cuda:
        return LateNumbers(numbers)
    on_host = torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=True)
    return LateNumbers(on_host.copy_(numbers, non_blocking=True))


def submit_counted(lane: Lane, work: Callable[[], Tensor], after: Iterable[Mark] = ()) -> tuple[LateNumbers, Mark]:
    """Queue work on a lane and send the tensor it answers to the host."""
    late: list[LateNumbers] = []
    mark = lane.submit(lambda: late.append(send(work())), after)
    late[0].arrives(mark)
    return late[0], mark
