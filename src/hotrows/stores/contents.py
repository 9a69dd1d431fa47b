"""All records of a store on their way into another one, by copy or pickle."""

from collections.abc import Callable, Iterator
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from torch import Tensor

from hotrows.stores.base import Store

CHUNK_BYTES = 1 << 26  # of records that are copied at a time


class Contents:
    """The records of a store, read in bounded chunks, so that copying a store needs no third copy of it.

    `copy.deepcopy` answers the object itself: the new store reads from the old one. A pickle holds the records.
    """

    def __init__(self, store: Store) -> None:
        self._num_rows = store.num_rows
        self._chunks: Callable[[], Iterator[Tensor]] = lambda: _read_chunks(store)

    def write_to(self, store: Store) -> None:
        """Set all records of a store with as many rows."""
        assert store.num_rows == self._num_rows
        start = 0
        for records in self._chunks():
            store.write_range(start, records)
            start += records.shape[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Contents":
        return self

    def __reduce__(self) -> Any:
        chunks: list[Any] = list(self._chunks())
        if get_spawning_popen() is not None:
            # A new process would get tensors as shared memory, and these here are freed before it has opened that.
            chunks = [chunk.numpy() for chunk in chunks]
        return _unpickle, (self._num_rows, chunks)


def _read_chunks(store: Store) -> Iterator[Tensor]:
    step = max(1, CHUNK_BYTES // store.layout.num_bytes)
    for start in range(0, store.num_rows, step):
        yield store.read_range(start, min(start + step, store.num_rows))


def _unpickle(num_rows: int, chunks: list[Any]) -> Contents:
    contents = Contents.__new__(Contents)
    contents._num_rows = num_rows
    contents._chunks = lambda: (torch.as_tensor(chunk) for chunk in chunks)
    return contents
