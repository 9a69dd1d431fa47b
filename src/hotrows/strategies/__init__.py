"""Strategies: named compositions of the cache's parts."""

from hotrows.strategies.base import Strategy as Strategy
from hotrows.strategies.baselines import DeviceStrategy
from hotrows.strategies.lookahead import LookaheadStrategy

STRATEGIES: dict[str, type[Strategy]] = {
    "lookahead": LookaheadStrategy,
    "device": DeviceStrategy,
}


def check_strategy(name: str) -> None:
    if name not in STRATEGIES:
        raise ValueError(f"strategy is {name!r}: known are {', '.join(sorted(STRATEGIES))}")
