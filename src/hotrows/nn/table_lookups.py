"""What one table is called with, as `nn.EmbeddingBag` or `nn.Embedding` are, and the lookups that it makes of it."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotrows.batch import to_tensor
from hotrows.loop.ticket import CheckedRows
from hotrows.nn.lookups import BAD_OFFSETS, Lookups, check_offsets, on_device, rows_of, with_offsets_checked


@dataclass(frozen=True)
class TableUse:
    """How a module looks rows up in its table.

    Args:
        pools: in bags, as `nn.EmbeddingBag` does. Otherwise row by row, as `nn.Embedding` does.
        mode: of pooling: "sum", "mean" or "max".
        padding_idx: with bags, an id that is left out. Without, an id whose row takes no gradient.
    """

    pools: bool
    mode: str = "sum"
    padding_idx: int | None = None
    include_last_offset: bool = False


@dataclass(frozen=True)
class TableLookups:
    """Makes the lookups of the calls of one table.

    Args:
        table: its name.
        first_row: the number of its first row among those of its cache.
    """

    use: TableUse
    table: str
    first_row: int
    num_rows: int
    device: torch.device

    def announced(self, call: Any) -> Lookups:
        """The lookups of one call, from what the argument `ids` of `hotrows.lookahead` returned for it."""
        if not self.use.pools:
            return self.of_ids(call)
        if isinstance(call, tuple):
            return self.of_bags(*call)
        return self.of_bags(call, ids_alone=True)

    def of_ids(self, input: Tensor) -> Lookups:
        """The lookups of ids of any shape, one row each."""
        _check_ids(input)
        padding = self.use.padding_idx
        lookups = self._lookups(input, None, None, True)
        lookups.fixed_row = None if padding is None else self.first_row + padding
        return lookups

    def of_bags(self, input: Tensor, offsets: Tensor | None = None, *_: Any, ids_alone: bool = False) -> Lookups:
        """The lookups of bags of ids: [N] with offsets, or [B, L] for bags of one length.

        Args:
            ids_alone: [N] without offsets will do, because only the rows matter.
        """
        _check_ids(input)
        if input.dim() == 2:
            if offsets is not None:
                raise ValueError("offsets go with a one-dimensional input; the bags of a [B, L] input are its rows")
            num_bags, length = input.shape
            if length != 1:
                offsets = torch.arange(num_bags + 1, dtype=torch.int32, device="cpu") * length
            ends = offsets
        elif input.dim() == 1:
            if offsets is None and not ids_alone:
                raise ValueError("a one-dimensional input needs offsets: where each bag begins")
            ends = self._ends(input, offsets)
        else:
            raise ValueError(f"input has {input.dim()} dimensions, give [N] with offsets or [B, L]")
        on_host = offsets is None or offsets.device.type == "cpu"
        return self._lookups(input, ends, self.use.padding_idx, on_host)

    # Lookups outlive the loop for a while. `make` must not refer to a module, because it would keep the cache and the
    # store alive.

    def _lookups(self, input: Tensor, ends: Tensor | None, left_out: int | None, ends_checked: bool) -> Lookups:
        device, first_row, num_rows = self.device, self.first_row, self.num_rows
        ends = None if ends is None else on_device(ends, device)

        def make() -> CheckedRows:
            ids = on_device(input, device).long().flatten()
            zero = torch.zeros(1, dtype=torch.int64, device=device)
            mask = None if left_out is None else ids == left_out
            checked = rows_of(ids, zero + first_row, zero + num_rows, mask)
            return checked if ends_checked or ends is None else with_offsets_checked(checked, ends)

        describe = partial(_describe, num_rows, self.use.pools)
        return Lookups(make, describe, key=(input,), offsets=ends, mode=self.use.mode, table=self.table)

    def _ends(self, input: Tensor, offsets: Tensor | None) -> Tensor | None:
        """Offsets with the end of the last bag."""
        if offsets is None:
            return None
        if not isinstance(offsets, Tensor):
            raise ValueError(f"offsets are a {type(offsets).__name__}, give a tensor{to_tensor(offsets, 'offsets')}")
        if offsets.dim() != 1 or offsets.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"offsets are {offsets.dtype} {list(offsets.shape)}, give int64 (or int32) [bags]")
        last_given = self.use.include_last_offset
        if last_given and offsets.numel() == 0:
            raise ValueError("include_last_offset: offsets must have at least one element, the end of the last bag")
        if offsets.device.type == "cpu":
            check_offsets(offsets, input.numel(), "offsets")
            if last_given and int(offsets[-1]) != input.numel():
                raise ValueError(
                    f"include_last_offset: the last offset is {int(offsets[-1])}, but there are {input.numel()} ids"
                )
        if last_given:
            return offsets.int()
        return torch.cat([offsets, offsets.new_full((1,), input.numel())]).int()


def _check_ids(input: object) -> None:
    if not isinstance(input, Tensor) or input.dtype not in (torch.int64, torch.int32):
        given = input.dtype if isinstance(input, Tensor) else f"a {type(input).__name__}"
        raise ValueError(f"input is {given}, give ids as an int64 (or int32) tensor{to_tensor(input, 'ids')}")


def _describe(num_rows: int, pools: bool, found: list[int]) -> str:
    what, position, value = found
    if what == BAD_OFFSETS:
        return f"offsets must begin at 0, ascend, and end within the ids given; the last bag ends at {value}"
    kind, last = "bag" if pools else "table", num_rows - 1
    return f"input[{position}] is {value}, ids of this {kind} go from 0 to {last}; nothing of this batch was used"
