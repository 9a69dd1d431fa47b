"""The store in host memory: one private mapping, huge pages advised, registered where there is a CUDA device."""

import mmap
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from hotrows.ops.swap import swap
from hotrows.stores.first_values import first_values, table_key
from hotrows.stores.memory import available_host_memory, require_memory
from hotrows.stores.record import RecordLayout
from hotrows.table import Table

FILL_BYTES = 1 << 26  # records are filled this many bytes at a time


class RamStore:
    """All rows of a group in host memory.

    Args:
        tables: the tables of the group, whose rows lie one after the other.
        device: where the cache will be; with CUDA the mapping is registered, so that a kernel reaches it.
    """

    def __init__(self, tables: Sequence[Table], layout: RecordLayout, device: torch.device, seed: int) -> None:
        self.layout = layout
        self.num_rows = sum(table.num_rows for table in tables)
        num_bytes = self.num_rows * layout.num_bytes
        require_memory(
            f"{self.num_rows:,} rows of {layout.num_bytes} bytes",
            num_bytes,
            available_host_memory(),
            "host memory",
            "use fewer rows, a smaller dim or an optimizer with less state",
        )
        self.records = _map(num_bytes).view(layout.dtype).view(self.num_rows, layout.words)
        if device.type == "cuda":
            _register(self, self.records)
        fill(self.records, tables, layout, device, seed)

    def swap(self, cache: Tensor, slots: Tensor, rows_out: Tensor, rows_in: Tensor, num: Tensor) -> None:
        swap(cache, self.records, slots, rows_out, rows_in, num)

    def view(self, start: int, stop: int) -> Tensor:
        return self.records[start:stop]


def fill(records: Tensor, tables: Sequence[Table], layout: RecordLayout, device: torch.device, seed: int) -> None:
    """Write the first values of all rows, made on `device`."""
    step = max(1, FILL_BYTES // layout.num_bytes)
    first_row = 0
    for table in tables:
        key = table_key(seed, table.name)
        for start in range(0, table.num_rows, step):
            stop = min(start + step, table.num_rows)
            ids = torch.arange(start, stop, device=device)
            chunk = torch.zeros(stop - start, layout.words, dtype=layout.dtype, device=device)
            chunk[:, : layout.dim] = first_values(table.init, ids, layout.dim, table.num_rows, key)
            for part in layout.state:
                chunk[:, layout.columns(part.name)] = part.first_value
            records[first_row + start : first_row + stop].copy_(chunk)
        first_row += table.num_rows


def _map(num_bytes: int) -> Tensor:
    """Zeroed bytes. Private, because a shared anonymous mapping gets no huge pages."""
    mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapping, dtype=torch.uint8)


def _register(owner: RamStore, records: Tensor) -> None:
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address, num_bytes = records.data_ptr(), records.numel() * records.element_size()
    portable_and_mapped = 3
    error = int(cudart.cudaHostRegister(address, num_bytes, portable_and_mapped))
    if error:
        raise RuntimeError(
            f"cudaHostRegister of {num_bytes:,} bytes failed with CUDA error {error}: is the locked-memory limit "
            f"(ulimit -l) too low, or the host memory short?"
        )
    finalizer = weakref.finalize(owner, cudart.cudaHostUnregister, address)
    finalizer.atexit = False  # the driver may be gone by then, and frees it anyway
