"""What the registry of strategies knows about the strategy of a run."""

from typing import Any

from hotrows.options import describe_options
from hotrows.report.run import Run
from hotrows.strategies import STRATEGIES, Strategy


def describe_strategy(run: Run) -> dict[str, Any]:
    """The name of the run's strategy, what it does, its settings, and what it reported about itself."""
    name = strategy_name(run)
    if name is None:
        return {}
    lines: dict[str, Any] = {"name": name}
    kind = STRATEGIES.get(name, Strategy)  # another program may have registered strategies of its own
    if kind.help:
        lines["what it does"] = kind.help
    settings = run.config.get(name)
    if isinstance(settings, dict):
        known = [each.name for each in describe_options(kind.options_type)]
        lines |= {key: settings[key] for key in known if key in settings}
    outcome = run.summary.get("strategy_outcome")
    if isinstance(outcome, dict):
        lines |= dict(_describe_outcome(kind, outcome))
    return lines


def overruled_settings(run: Run) -> tuple[str, ...]:
    """The settings of section [cache] that the run's strategy did not use."""
    name = strategy_name(run)
    return STRATEGIES[name].overrules if name in STRATEGIES else ()


def strategy_name(run: Run) -> str | None:
    name = run.summary.get("strategy") or run.config.get("strategy")
    return str(name) if name else None


def _describe_outcome(kind: type[Strategy], outcome: dict[str, Any]) -> list[tuple[str, str]]:
    try:
        return kind.describe_outcome(outcome)
    except (KeyError, TypeError, ValueError):  # another version of the strategy wrote it
        return Strategy.describe_outcome(outcome)
