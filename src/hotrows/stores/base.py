"""What every store can do."""

from typing import Protocol

from torch import Tensor

from hotrows.ops.swap import Moves
from hotrows.stores.record import RecordLayout


class Store(Protocol):
    """All rows of a group, each as a record."""

    layout: RecordLayout
    num_rows: int

    def swap(self, cache: Tensor, moves: Moves) -> None:
        """Move records between this store and the cache; the contract of `ops.swap`."""

    def view(self, start: int, stop: int) -> Tensor:
        """Records start … stop-1 on the host, [stop - start, W]; writing to it writes the store."""
