"""Strategies: named compositions of the cache's parts. To add one, write its file and add a line to `STRATEGIES`."""

from dataclasses import fields
from typing import Any

from hotrows.options import option as option
from hotrows.strategies.base import CacheSettings as CacheSettings
from hotrows.strategies.base import Strategy as Strategy
from hotrows.strategies.baselines import DeviceStrategy, HostStrategy
from hotrows.strategies.data_knowledge import DataKnowledge as DataKnowledge
from hotrows.strategies.data_knowledge import KnownCounts as KnownCounts
from hotrows.strategies.freqcache import FreqCacheStrategy
from hotrows.strategies.heca import HecaStrategy
from hotrows.strategies.lookahead import LookaheadStrategy

STRATEGIES: dict[str, type[Strategy]] = {
    "lookahead": LookaheadStrategy,
    "freqcache": FreqCacheStrategy,
    "heca": HecaStrategy,
    "device": DeviceStrategy,
    "host": HostStrategy,
}


def make_strategy(name: str, cache: CacheSettings, options: Any = None, data: DataKnowledge | None = None) -> Strategy:
    """Make a strategy by its name; see `Strategy` for the arguments."""
    return strategy_type(name)(cache, options, data)


def strategy_type(name: str) -> type[Strategy]:
    """The class of a strategy."""
    if name not in STRATEGIES:
        raise ValueError(f"strategy is {name!r}: known are {', '.join(sorted(STRATEGIES))}")
    return STRATEGIES[name]


def option_sections() -> dict[str, type[Any]]:
    """The sections that strategies have in a run file: the options class of each strategy with settings of its own."""
    return {name: kind.options_type for name, kind in STRATEGIES.items() if fields(kind.options_type)}
