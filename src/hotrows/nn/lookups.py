"""From a user's ids to rows: what a batch looks up in the tables of one dim, and whether anything is wrong with it.

Ids are checked on the device, and the host does not wait for the result: a batch with a bad id gets no rows at all, so
it changes nothing, and the host raises once the result is read back. Tables of several dims have a cache for each dim:
each of them checks the whole batch, so that none uses a batch that another refuses, and one of them reports it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.cache.planning.id_columns import IdColumns
from hotrows.errors import BadIdError
from hotrows.loop.ticket import BAD_ELSEWHERE, NOTHING_BAD, CheckedRows
from hotrows.ops.rows import NO_ROW

BAD_ID = 1
BAD_OFFSETS = 2


@dataclass(slots=True)
class Lookups:
    """What a batch looks up in the tables of one dim."""

    make: Callable[[], CheckedRows]  # runs in the planning stream, and keeps the tensors alive that it reads
    describe: Callable[[list[int]], str]  # the error message for CheckedRows.bad
    key: tuple[Tensor, ...]  # the user's tensors from which `make` computes the rows, compared to find a batch's plan
    offsets: Tensor | None = None  # int32 [bags + 1], None where every bag is one lookup
    weights: Tensor | None = None  # float32 [N]
    columns: IdColumns | None = None  # if the one tensor of `key` is ids [B, F] with one id per bag

    def make_checked(self) -> Tensor:
        """The rows, int64 [N]. Raises BadIdError at once, so on a GPU it waits for the device."""
        made = self.make()
        found = [NOTHING_BAD] if made.bad is None else made.bad.tolist()
        if found[0] not in (NOTHING_BAD, BAD_ELSEWHERE):
            raise BadIdError(self.describe(found))
        return made.rows


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for it."""
    if tensor.device == device:
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def rows_of(
    ids: Tensor,
    first_row: Tensor,
    num_rows: Tensor,
    mask: Tensor | None = None,
    elsewhere: Tensor | None = None,
) -> CheckedRows:
    """Rows of int64 [N] ids, whose tables begin at `first_row` and have `num_rows` rows (both [N] or [1]).

    Args:
        mask: bool [N], lookups that have no row and are not checked.
        elsewhere: bool [N], lookups in another cache of the module, which have no row here but are checked.
    """
    if ids.numel() == 0:
        return CheckedRows(ids)
    bad = (ids < 0) | (ids >= num_rows)
    if mask is not None:
        bad &= ~mask
    position = torch.arange(ids.numel(), device=ids.device)
    first_bad = torch.where(bad, position, ids.numel()).min()
    any_bad = first_bad < ids.numel()
    at = first_bad.clamp(max=ids.numel() - 1).reshape(1)
    what, without_row = torch.where(any_bad, BAD_ID, NOTHING_BAD), any_bad
    if elsewhere is not None:
        what = torch.where(any_bad & elsewhere.index_select(0, at)[0], BAD_ELSEWHERE, what)
        without_row = without_row | elsewhere
    if mask is not None:
        without_row = without_row | mask
    found = torch.cat([torch.stack([what, first_bad]), ids.index_select(0, at)])  # indexing would synchronize
    return CheckedRows(torch.where(without_row, NO_ROW, ids + first_row), found)


def with_offsets_checked(checked: CheckedRows, offsets: Tensor, reports: bool = True) -> CheckedRows:
    """Also check that offsets, [bags + 1] with the end, begin at 0, ascend, and end at the number of lookups.

    Args:
        reports: false if another cache of the module reports bad offsets.
    """
    steps = offsets[1:] - offsets[:-1]
    good = (offsets[0] == 0) & (offsets[-1] == checked.rows.numel()) & (steps >= 0).all()
    what = torch.where(good, NOTHING_BAD, BAD_OFFSETS if reports else BAD_ELSEWHERE)
    found = torch.stack([what, torch.zeros_like(offsets[0]), offsets[-1]]).long()
    if checked.bad is not None:
        found = torch.where(good, checked.bad, found)
    return CheckedRows(torch.where(good, checked.rows, NO_ROW), found)


def check_offsets(offsets: Tensor, num_lookups: int, name: str) -> None:
    """The same check for offsets on the host, where it can raise at once."""
    if offsets.numel() and int(offsets[0]) != 0:
        raise ValueError(f"{name}[0] is {int(offsets[0])}, the first bag must begin at 0")
    steps = offsets[1:] - offsets[:-1]
    if bool((steps < 0).any()):
        at = int((steps < 0).nonzero()[0]) + 1
        raise ValueError(f"{name} must ascend, but {name}[{at}] is {int(offsets[at])} after {int(offsets[at - 1])}")
    if offsets.numel() and int(offsets[-1]) > num_lookups:
        raise ValueError(f"{name}[{offsets.numel() - 1}] is {int(offsets[-1])}, beyond the {num_lookups} ids given")
