"""What an experiment is: a figure or table of a paper that can be run again, and what it must show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hotrows.reproduce.bench import Bench

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = float | int | str | None
Row = dict[str, Value]

NOT_READABLE = "not readable"  # a published value that is only drawn, not printed


@dataclass(frozen=True)
class Column:
    """A column of a result.

    Args:
        form: how its numbers are written, such as ".1%".
        published: whether it is the paper's.
    """

    key: str
    title: str
    form: str = ""
    published: bool = False

    def text(self, value: Value) -> str:
        if value is None:
            return ""
        return value if isinstance(value, str) else format(value, self.form)


@dataclass(frozen=True)
class Claim:
    """What a figure must show, and whether it does; `holds` is None where this machine cannot tell."""

    text: str
    holds: bool | None
    found: str

    @property
    def verdict(self) -> str:
        return "not judged" if self.holds is None else "yes" if self.holds else "NO"


@dataclass(frozen=True)
class Curve:
    """Points of a line that is too long for the table."""

    label: str
    x_title: str
    y_title: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass
class Result:
    """What came of an experiment: a row has our values and the paper's side by side."""

    columns: tuple[Column, ...]
    rows: list[Row]
    claims: list[Claim] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def values(self, key: str) -> list[Any]:
        return [row[key] for row in self.rows]


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a paper.

    Args:
        name: such as "fig9"; `also` are other names for it.
        about: a sentence for the list of all experiments.
        data: shapes of the data sets it is about.
        trains: whether it trains, which small scales do with less; one that only counts has the paper's size always.
    """

    name: str
    title: str
    about: str
    run: Callable[[Bench], Result]
    draw: Callable[["Figure", Result], None]
    also: tuple[str, ...] = ()
    data: tuple[str, ...] = ("criteo-kaggle",)
    trains: bool = True

    def sizes(self, bench: Bench) -> str:
        """What is smaller than in the paper, in words. A data set that was given has the rows it has."""
        given = [bench.given[shape] for shape in self.data if shape in bench.given]
        scale = replace(bench.scale, rows=1.0) if given else bench.scale
        sizes = scale.said() if self.trains else "the paper's sizes"
        return f"{' and '.join(given)} as given, otherwise {sizes}" if given else sizes


def number(value: object) -> float:
    """A value of a row that must be a number."""
    assert isinstance(value, int | float), value
    return value


def choose(experiments: Sequence[Experiment], names: Sequence[str], paper: str) -> list[Experiment]:
    """The experiments of these names, in their order; all if there are none. `Fig 9` and `9` are `fig9`."""
    if not names:
        return list(experiments)
    by_name = {name: each for each in experiments for name in (each.name, *each.also)}
    wanted = [_plain(name) for name in names]
    unknown = [given for given, name in zip(names, wanted, strict=True) if name not in by_name]
    if unknown:
        raise ValueError(f"{paper} has no {', '.join(map(repr, unknown))} to reproduce: known are {', '.join(by_name)}")
    return list(dict.fromkeys(by_name[name] for name in wanted))


def _plain(name: str) -> str:
    plain = name.lower().replace(" ", "").replace("figure", "fig").replace(".", "")
    return f"fig{plain}" if plain.isdigit() else plain
