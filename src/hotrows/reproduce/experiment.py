"""What an experiment is: a figure or table of a paper that can be run again, and the claims it must support."""

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
        published: True for a value of the paper.
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
    """What a figure must show, and whether it does. `holds` is None if this machine cannot decide it."""

    text: str
    holds: bool | None
    found: str

    @property
    def verdict(self) -> str:
        return "not judged" if self.holds is None else "yes" if self.holds else "NO"


def speed_claim(bench: Bench, text: str, holds: bool, found: str, on_a_cpu: str = "") -> Claim:
    """A claim about speeds. Only speeds on a GPU are judged: a CPU does other work too, so its speeds vary by chance.

    Args:
        on_a_cpu: another reason why speeds on a CPU say little here.
    """
    if bench.on_gpu:
        return Claim(text, holds, found)
    return Claim(text, None, f"{found}; {on_a_cpu or 'speeds on a CPU are not judged'}")


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
    """The result of an experiment. A row has our values and the paper's side by side."""

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
        name: a short name such as "fig9".
        about: a sentence for the list of all experiments.
        also: other names of the experiment.
        data: the shapes of its data sets.
        trains: True if it trains. A small scale makes training smaller, but an experiment that only counts ids always
            has the paper's size.
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
        """What is smaller than in the paper, in words. A data set that the user gives is never scaled down."""
        given = [bench.given[shape] for shape in self.data if shape in bench.given]
        scale = replace(bench.scale, rows=1.0) if given else bench.scale
        sizes = scale.describe() if self.trains else "the paper's sizes"
        return f"{' and '.join(given)} as given, otherwise {sizes}" if given else sizes


def number(value: object) -> float:
    """A value of a row that must be a number."""
    assert isinstance(value, int | float), value
    return value


def choose(experiments: Sequence[Experiment], names: Sequence[str], paper: str) -> list[Experiment]:
    """The experiments with these names, in the order of the names; all experiments if no name is given.

    `Fig 9` and `9` are read as `fig9`.
    """
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
