"""What every store can do, and what `store=` takes."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from hotrows.ops.rows import filled
from hotrows.ops.swap import Moves
from hotrows.stores.record import RecordLayout
from hotrows.stores.row_order import Numbering
from hotrows.table import Table


class Store(Protocol):
    """All rows of the tables of one dim, each as a record.

    Rows are numbered from 0 to num_rows - 1. Records are host tensors, float32 [n, words]: whatever the fields of a
    record are, it is moved as words of 4 bytes (see `RecordLayout`). A store needs no tensor of the whole table: it may
    be a file, a database, or a cache in front of another store (`hotrows.cache.tier`).

    Attributes:
        waits: True if `exchange` makes the host wait for the device, because no kernel can address the records. Then
            moves cannot be captured in a CUDA graph.
    """

    layout: RecordLayout
    num_rows: int
    waits: bool

    def exchange(self, records: Tensor, moves: Moves) -> None:
        """Move records between this store and a cache's records, float32 [≥ slots, words]; the contract of `ops.swap`.

        A store without a faster way calls `exchange_by_number`.
        """

    def read(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """A copy of the records of int64 [n] rows on the host, which may repeat; written to `out` if that is given."""

    def write(self, rows: Tensor, records: Tensor) -> None:
        """Set the records of int64 [n] rows, none of which repeats."""

    def read_range(self, start: int, stop: int) -> Tensor:
        """A copy of the records of rows start … stop - 1."""

    def write_range(self, start: int, records: Tensor) -> None:
        """Set the records of the rows from `start` on."""

    def flush(self) -> None:
        """Write everything that the store has only in a faster tier of its own to where rows finally live."""


class StoreSettings(Protocol):
    """What `store=` takes: it opens a store for the tables of one dim.

    Two attributes may be added. `needs_cache = False` says that the store keeps all rows in device memory, as the
    tensor `records`, so that no cache is put in front of it. `in_host_memory = True` says that all rows take host
    memory, which is then checked before anything is allocated.
    """

    def open(
        self,
        tables: Sequence[Table],
        layout: RecordLayout,
        device: torch.device,
        seed: int,
        numbering: Numbering | None,
    ) -> Store:
        """Open a store whose rows have their initial values (see `stores.init.initial_records`).

        Args:
            tables: their rows follow each other, table after table.
            device: where the cache in front of the store is.
            seed: of the initial values.
            numbering: if given, row r of that order is row `numbering.row_of[r]` of the store.
        """


def exchange_by_number(store: Store, records: Tensor, moves: Moves) -> None:
    """Carry out moves with `store.write` and `store.read`. The host waits for the device to know the rows."""
    count = filled(moves.slots, moves.num)
    listed = torch.arange(count, device=moves.slots.device) < moves.num
    slots, rows_out, rows_in = moves.slots[:count].long(), moves.rows_out[:count], moves.rows_in[:count]
    # No row is both written and read by the moves, so that all records can leave their slots first.
    leaves, comes = listed & (rows_out >= 0), listed & (rows_in >= 0)
    if bool(leaves.any()):
        store.write(rows_out[leaves].cpu(), records[slots[leaves]].cpu())
    if bool(comes.any()):
        records[slots[comes]] = store.read(rows_in[comes].cpu()).to(records.device)
