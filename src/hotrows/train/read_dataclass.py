"""Makes a dataclass from a dict that was read from a TOML or JSON file."""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
FLOAT32_MAX = 3.4028234663852886e38


def read_dataclass(kind: type[T], content: Mapping[str, Any], where: str) -> T:
    """Make a dataclass. Keys that it does not have and values of another type are errors.

    A field that is a dataclass is a section of the file.

    Args:
        where: the file, or the section of a file, for error messages.
    """
    hints = typing.get_type_hints(kind)
    refuse_unknown_keys(content, hints, where)
    values: dict[str, Any] = {}
    for key, value in content.items():
        if dataclasses.is_dataclass(hints[key]):
            values[key] = read_section(typing.cast(type[Any], hints[key]), value, key, where)
        else:
            values[key] = _converted(value, hints[key], f"{where}: {key}")
    return kind(**values)


def read_section(kind: type[T], value: Any, name: str, where: str) -> T:
    """Read one section of a file."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {name} is {value!r}, it must be a section, [{name}]")
    return read_dataclass(kind, value, f"{where}: [{name}]")


def refuse_unknown_keys(content: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise if there is a key that is not known, and list the known ones."""
    known = sorted(known)
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise ValueError(f"{where}: unknown {', '.join(map(repr, unknown))}; known are {', '.join(known)}")


def _converted(value: Any, expected: Any, where: str) -> Any:
    allowed = (
        typing.get_args(expected) if typing.get_origin(expected) in (typing.Union, types.UnionType) else (expected,)
    )
    for kind in allowed:
        plain = typing.get_origin(kind) or kind
        if plain is float and isinstance(value, int | float) and not isinstance(value, bool):
            return _finite(value, where)
        if plain is list and isinstance(value, list):
            (inner,) = typing.get_args(kind)
            return [_converted(item, inner, f"{where}[{number}]") for number, item in enumerate(value)]
        if isinstance(value, plain) and not (plain is int and isinstance(value, bool)):
            return value
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in allowed if kind is not types.NoneType)
    raise ValueError(f"{where} is {value!r}, it must be {names}")


def _finite(value: int | float, where: str) -> float:
    """TOML and JSON have nan, inf and numbers beyond float32, with which nothing can be trained."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{where} is {value!r}, it must be a finite number")
    if abs(number) > FLOAT32_MAX:
        raise ValueError(f"{where} is {value!r}, it must be from -3.4e38 to 3.4e38")
    return number
