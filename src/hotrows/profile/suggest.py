"""How large a cache should be: for a wanted hit rate, or in a given memory."""

from dataclasses import dataclass
from typing import Any

from hotrows.cache.capacity import memory_bytes
from hotrows.profile.miss_ratio import MissRatioCurve

DEFAULT_HIT_RATE = 0.9


@dataclass(frozen=True)
class Suggestion:
    """A cache size, and how an LRU cache of that size would do."""

    rows: int
    share: float  # of all rows
    num_bytes: int
    hit_rate: float  # of the unique rows of a batch
    reason: str

    @property
    def cache(self) -> str:
        """The size in the form that `--cache` and `EmbeddingBagCollection(cache=…)` take."""
        return str(self.rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "cache_rows": self.rows,
            "share_of_rows": self.share,
            "bytes": self.num_bytes,
            "hit_rate": self.hit_rate,
            "reason": self.reason,
        }


def suggest(
    curve: MissRatioCurve,
    num_rows: int,
    record_bytes: int,
    *,
    hit_rate: float | None = None,
    memory: int | str | None = None,
) -> Suggestion:
    """The smallest cache with the wanted hit rate, or the largest that fits the memory; with both, the smaller one.

    Args:
        hit_rate: between 0 and 1; 0.9 if neither this nor `memory` is given. If no size reaches it, because each row
            misses at its first use, the suggestion is the smallest size with about the best hit rate there is.
        memory: bytes, or a text such as "2GB".
        record_bytes: the bytes of a row with its optimizer state.
    """
    check_wanted(hit_rate, memory)
    fits = None if memory is None else _rows_in(memory, record_bytes)
    if hit_rate is None and fits is not None:
        rows, reason = fits, f"all that {_in_words(memory)} hold"
    else:
        rows, reason = _for_hit_rate(curve, hit_rate or DEFAULT_HIT_RATE)
        if fits is not None and fits < rows:
            rows, reason = fits, f"all that {_in_words(memory)} hold; {reason} needs {rows:,} rows"
    rows = max(1, min(rows, num_rows))
    return Suggestion(rows, rows / num_rows, rows * record_bytes, 1 - curve.at(rows), reason)


def check_wanted(hit_rate: float | None, memory: int | str | None) -> None:
    """Raise if no cache can be suggested for what is wanted, before any data is read."""
    if hit_rate is not None and not 0 < hit_rate < 1:
        raise ValueError(f"hit_rate is {hit_rate!r}, it must be between 0 and 1: 0.9 for 90%")
    num_bytes = 1 if memory is None else _bytes_of(memory)
    if num_bytes is None or num_bytes < 1:
        raise ValueError(f'memory is {memory!r}, give bytes (2_000_000_000) or a text such as "2GB", more than nothing')


def _for_hit_rate(curve: MissRatioCurve, wanted: float) -> tuple[int, str]:
    best = 1 - curve.fewest
    # The last rows of the curve bring next to nothing, so stop a thousandth before its end.
    rows = curve.size_for(min(wanted, max(0.0, best - 0.001))) or curve.largest
    if wanted <= best:
        return rows, f"a hit rate of {wanted:.4g}"
    return rows, f"the best hit rate, {best:.3f} ({wanted:.4g} is out of reach: every row misses at its first use)"


def _rows_in(memory: int | str, record_bytes: int) -> int:
    num_bytes = _bytes_of(memory)
    assert num_bytes is not None
    if num_bytes < record_bytes:
        raise ValueError(f"memory is {_in_words(memory)}, which is too little for a single row of {record_bytes} bytes")
    return num_bytes // record_bytes


def _bytes_of(memory: int | str) -> int | None:
    return memory_bytes(memory) if isinstance(memory, str) else memory


def _in_words(memory: int | str | None) -> str:
    return memory if isinstance(memory, str) else f"{memory or 0:,} bytes"
