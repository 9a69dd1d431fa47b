"""The settings of a strategy: a dataclass whose fields carry their defaults and their help texts."""

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


def option(default: T, help: str) -> T:
    """Declare a setting in an options dataclass.

    Args:
        help: one or two sentences. `hotrows train --help` shows them.

    Example::

        @dataclass(frozen=True)
        class MyOptions:
            warmup_ratio: float = option(0.7, "Share of the slots that are filled before training.")
    """
    declared: T = field(default=default, metadata={"help": help})
    return declared


@dataclass(frozen=True)
class NoOptions:
    """The options of a strategy that has no settings of its own. Such a strategy has no section in a run file."""


class OptionHelp(NamedTuple):
    """What a user must know about one setting."""

    name: str
    default: Any
    help: str


def describe_options(options_type: type[Any]) -> list[OptionHelp]:
    """List the settings of an options dataclass, in the order of their declaration."""
    return [OptionHelp(each.name, each.default, each.metadata.get("help", "")) for each in fields(options_type)]
