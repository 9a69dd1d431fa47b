"""Strategies: named compositions of the cache's parts."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hotrows.strategies.base import CacheSettings
from hotrows.strategies.base import Strategy as Strategy
from hotrows.strategies.baselines import DeviceStrategy, HostStrategy
from hotrows.strategies.freqcache import FreqCacheStrategy
from hotrows.strategies.heca import HecaStrategy
from hotrows.strategies.lookahead import LookaheadStrategy

STRATEGIES: dict[str, type[Strategy]] = {
    "lookahead": LookaheadStrategy,
    "freqcache": FreqCacheStrategy,
    "device": DeviceStrategy,
    "heca": HecaStrategy,
    "host": HostStrategy,
}


def make_strategy(
    name: str, cache: CacheSettings, options: Any = None, counts: Callable[[], dict[str, Tensor]] | None = None
) -> Strategy:
    """A strategy by its name; see `Strategy` for the arguments."""
    if name not in STRATEGIES:
        raise ValueError(f"strategy is {name!r}: known are {', '.join(sorted(STRATEGIES))}")
    return STRATEGIES[name](cache, options, counts)
