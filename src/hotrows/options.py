"""Settings: dataclasses whose fields carry their defaults, what they mean and what is allowed, in one place.

`hotrows train --help`, docs/configuration.md and the checks of a run file are all made from these fields.
"""

import typing
from collections.abc import Collection
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from hotrows.table import whole_number

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """What a user must know about one setting.

    Attributes:
        kind: the type that the field is declared with.
        default: `dataclasses.MISSING` if the setting must be given.
        choices: the values that are allowed, if they can be listed. They may be a registry that grows later.
        also: in words, what is allowed beside the choices or in place of them. Such a setting is checked elsewhere.
    """

    name: str
    kind: Any
    default: Any
    help: str
    choices: Collection[str] = ()
    also: str = ""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    @property
    def allowed(self) -> str:
        """What is allowed, in words. Empty if every value of the type is."""
        if self.choices or self.also:
            return " or ".join(part for part in (", ".join(self.choices), self.also) if part)
        if self.above is None and self.below is None:
            if self.least is not None and self.most is not None:
                return f"from {self.least} to {self.most}"
            return f"{self.least} or more" if self.least is not None else ""
        low = f"from {self.least}" if self.least is not None else f"more than {self.above}"
        high = f"less than {self.below}" if self.below is not None else f"at most {self.most}"
        return f"{low} to {high}" if self.least is not None else f"{low} and {high}"

    @property
    def full_help(self) -> str:
        """The help, and what is allowed."""
        return f"{self.help} Allowed: {self.allowed}." if self.allowed else self.help

    def check(self, value: Any, name: str) -> None:
        """Raise ValueError if a value is not allowed. None stands for a setting that was left out."""
        if value is None or self.also:
            return
        if self.choices and value not in list(self.choices):
            raise ValueError(f"{name} is {value!r}: known are {', '.join(self.choices)}")
        if self._is_whole:
            whole_number(value, name, least=None)
        inside = (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )
        if not inside:
            raise ValueError(f"{name} is {value!r}, it must be {self.allowed}")

    @property
    def _is_whole(self) -> bool:
        return self.kind is int or self.kind == int | None


def option(default: T, help: str, **allowed: Any) -> T:
    """Declare a setting in a dataclass of settings.

    Args:
        help: one or two sentences. `hotrows train --help` and docs/configuration.md show them.
        allowed: any of `choices`, `also`, `least`, `most`, `above` and `below`, see `Option`.

    Example::

        @dataclass(frozen=True)
        class MyOptions:
            warmup_ratio: float = option(0.7, "Share of the slots that are filled before training.", least=0, most=1)
    """
    declared: T = field(default=default, metadata=_metadata(help, allowed))
    return declared


def required(help: str, **allowed: Any) -> Any:
    """Declare a setting that has no default, so that it must be given."""
    return field(metadata=_metadata(help, allowed))


def _metadata(help: str, allowed: dict[str, Any]) -> dict[str, Any]:
    known = Option.__dataclass_fields__.keys() - {"name", "kind", "default", "help"}
    assert allowed.keys() <= known, f"an option has no {allowed.keys() - known}"
    return {"help": help, **allowed}


def describe_options(options_type: type[Any]) -> list[Option]:
    """List the settings of a dataclass, in the order of their declaration. Its sections are not among them."""
    hints = typing.get_type_hints(options_type)
    return [
        Option(each.name, hints[each.name], _default(each), **{"help": "", **each.metadata})
        for each in fields(options_type)
        if not is_dataclass(hints[each.name]) and typing.get_origin(hints[each.name]) is not dict
    ]


def _default(declared: "Field[Any]") -> Any:
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


def find_option(options_type: type[Any], name: str) -> Option:
    """The setting of that name in a dataclass of settings."""
    (found,) = (each for each in describe_options(options_type) if each.name == name)
    return found


def check_options(options: Any, section: str = "") -> None:
    """Raise ValueError if a value in a dataclass of settings is not allowed.

    Args:
        section: the section of the run file that the settings are in, for the message. Empty for the top of the file.
    """
    for each in describe_options(type(options)):
        each.check(getattr(options, each.name), f"{section}.{each.name}" if section else each.name)
