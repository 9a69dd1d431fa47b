"""Indexes: find a row's slot, and say which slots a row may take."""

import logging

from hotrows.cache.indexes.base import Index as Index
from hotrows.cache.indexes.direct import DirectIndex
from hotrows.cache.indexes.hashed import HashIndex
from hotrows.cache.indexes.set_associative import SetAssociativeIndex
from hotrows.cache.slots import Slots

logger = logging.getLogger("hotrows")

INDEXES: dict[str, type[Index]] = {
    "direct": DirectIndex,
    "hash": HashIndex,
    "set-associative": SetAssociativeIndex,
}


def check_index(name: str) -> None:
    if name != "auto" and name not in INDEXES:
        raise ValueError(f"index is {name!r}: known are auto, {', '.join(sorted(INDEXES))}")


def choose_index(name: str, num_rows: int, num_slots: int) -> str:
    """Resolve "auto": the direct index if it takes no more memory than the hash index, or at most 1 MiB."""
    if name != "auto":
        return name
    direct, hashed = DirectIndex.num_bytes(num_rows, num_slots), HashIndex.num_bytes(num_rows, num_slots)
    chosen = "direct" if direct <= max(hashed, 1 << 20) else "hash"
    logger.info("index auto: %s (direct would take %d bytes, hash %d)", chosen, direct, hashed)
    return chosen


def make_index(name: str, num_rows: int, slots: Slots) -> Index:
    return INDEXES[name](num_rows, slots)
