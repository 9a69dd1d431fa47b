"""Hot rows: the most frequent ones of all tables, down to a threshold."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.cache.capacity import cache_rows

_ALLOWED = 'give a count (10), a share of the accesses ("90%"), or memory ("256MB")'

_LARGEST_COUNT = 2**63 - 1


@dataclass(frozen=True)
class TableCost:
    """The bytes of a table's records, and the cache that the table shares with others."""

    cache: int
    record_bytes: int


@dataclass(frozen=True)
class HotSet:
    """The hot ids of each table, ascending."""

    ids: dict[str, Tensor]
    num_wanted: int  # rows above the threshold; more than there are ids if they do not all fit
    share_of_accesses: float  # the share of all accesses that go to these rows

    @property
    def num_rows(self) -> int:
        return sum(ids.numel() for ids in self.ids.values())


def check_threshold(hot: int | str) -> None:
    """Raise if a threshold cannot be read."""
    if isinstance(hot, bool) or not isinstance(hot, int | str):
        raise ValueError(f"heca.hot is {hot!r}: {_ALLOWED}")
    if isinstance(hot, int):
        if hot < 1:
            raise ValueError(f"heca.hot is {hot}: {_ALLOWED}, a count is 1 or more")
        if hot > _LARGEST_COUNT:
            raise ValueError(f"heca.hot is {hot}: {_ALLOWED}, a count is {_LARGEST_COUNT} or less")
    elif _share(hot) is None:
        if not re.fullmatch(r"\s*[\d_.]+\s*[kmgt]i?b\s*", hot, re.IGNORECASE):
            raise ValueError(f"heca.hot is {hot!r}: {_ALLOWED}")
        _bytes(hot)
    elif not 0 <= (_share(hot) or 0) <= 1:
        raise ValueError(f"heca.hot is {hot!r}: a share of the accesses is at most 100%")


def choose_hot(
    counts: Mapping[str, Tensor], hot: int | str, costs: Mapping[str, TableCost], limits: Mapping[int, int]
) -> HotSet:
    """The most frequent rows of all tables together, down to the threshold. Of equally frequent rows, the first.

    Args:
        counts: how often each id of each table occurs, int64 [rows].
        hot: the threshold. Rows are hot that occur at least this often (10), or that get this share of all accesses
            ("90%"), or whose records fit into this much memory ("256MB"). A row that does not occur is never hot.
        costs: for every table.
        limits: the most hot rows of every cache. Rarer rows beyond the limit are left out.
    """
    names = [name for name in costs if name in counts]
    if not names:
        return HotSet({}, 0, 0.0)
    seen = [counts[name].nonzero().squeeze(1) for name in names]
    often = torch.cat([counts[name][ids] for name, ids in zip(names, seen, strict=True)])
    ids = torch.cat(seen)
    table = torch.cat([torch.full_like(each, number) for number, each in enumerate(seen)])
    order = torch.argsort(often, descending=True, stable=True)
    often, ids, table = often[order], ids[order], table[order]

    record_bytes = torch.tensor([costs[name].record_bytes for name in names])[table]
    num = _num_above(often, record_bytes, hot)
    cache = torch.tensor([costs[name].cache for name in names])[table[:num]]
    fits = torch.ones(num, dtype=torch.bool)
    for number, limit in limits.items():
        mine = cache == number
        fits &= ~mine | (torch.cumsum(mine, 0) <= limit)
    chosen = {name: ids[:num][fits & (table[:num] == number)].sort().values for number, name in enumerate(names)}
    return HotSet(chosen, num, float(often[:num][fits].sum()) / max(1, int(often.sum())))


def _num_above(often: Tensor, record_bytes: Tensor, hot: int | str) -> int:
    """How many of the rows, the most frequent first, are above the threshold."""
    if isinstance(hot, int):
        return int((often >= hot).sum())
    share = _share(hot)
    if share is None:
        return int((torch.cumsum(record_bytes, 0) <= _bytes(hot)).sum())
    wanted = math.ceil(round(share * int(often.sum()), 6))
    return min(often.numel(), int(torch.searchsorted(torch.cumsum(often, 0), wanted)) + 1) if wanted else 0


def _share(hot: str) -> float | None:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*%\s*", hot)
    return None if found is None else float(found[1]) / 100


def _bytes(hot: str) -> int:
    return cache_rows(hot, 2**62, 1)
