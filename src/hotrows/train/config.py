"""A run, described by one TOML file: every section is a dataclass, every key is known or refused."""

import dataclasses
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hotrows.strategies.base import CacheSettings
from hotrows.strategies.freqcache import FreqCacheOptions
from hotrows.strategies.heca import HecaOptions

T = TypeVar("T")

PRECISIONS = ("fp32", "tf32", "bf16")
DECAYS = ("none", "linear", "cosine")
DENSE_OPTIMIZERS = ("sgd", "adagrad", "adam", "adamw")


@dataclass
class ModelConfig:
    name: str = "dlrm"
    dim: int | None = None  # width of the embedding rows; None takes the model's own


@dataclass
class OptimizerConfig:
    """Of the rows, or of the dense part; what is None is left at the optimizer's own default."""

    name: str = "sgd"
    lr: float = 0.1
    weight_decay: float | None = None
    eps: float | None = None
    initial_accumulator_value: float | None = None
    betas: list[float] | None = None

    def arguments(self) -> dict[str, Any]:
        given = {key: value for key, value in dataclasses.asdict(self).items() if key != "name" and value is not None}
        if "betas" in given:
            given["betas"] = tuple(given["betas"])
        return given


@dataclass
class ScheduleConfig:
    """The learning rates rise linearly over the warm-up, then decay to `end` times themselves."""

    warmup_steps: int = 0
    decay: str = "none"
    end: float = 0.0


@dataclass
class TrainConfig:
    batch_size: int = 2048
    epochs: int = 1
    max_steps: int | None = None
    eval_every: int | None = None  # steps; None: at the end of every epoch
    eval_batch_size: int = 8192
    log_every: int = 20
    precision: str = "fp32"
    graphs: bool = True  # on CUDA: replay the training step from CUDA graphs
    shuffle: bool = False


@dataclass
class RunConfig:
    """Everything that decides the result of a run, and where it goes."""

    data: str = ""
    out: str | None = None
    seed: int = 0
    device: str = "auto"
    strategy: str = "lookahead"
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheSettings = field(default_factory=CacheSettings)
    freqcache: FreqCacheOptions = field(default_factory=FreqCacheOptions)
    heca: HecaOptions = field(default_factory=HecaOptions)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    dense_optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    save: bool = True  # keep the trained model in the run directory, for `hotrows evaluate`

    def check(self) -> None:
        """Raise for what cannot be, before anything is read or allocated."""
        if not self.data:
            raise ValueError("data: name a prepared directory or synthetic:criteo-kaggle, synthetic:avazu, …")
        for name, value, lowest in (
            ("train.batch_size", self.train.batch_size, 1),
            ("train.epochs", self.train.epochs, 1),
            ("train.eval_batch_size", self.train.eval_batch_size, 1),
            ("train.log_every", self.train.log_every, 1),
            ("cache.depth", self.cache.depth, 0),
            ("schedule.warmup_steps", self.schedule.warmup_steps, 0),
        ):
            if value < lowest:
                raise ValueError(f"{name} is {value}, it must be {lowest} or more")
        for name, chosen, known in (
            ("train.precision", self.train.precision, PRECISIONS),
            ("schedule.decay", self.schedule.decay, DECAYS),
            ("dense_optimizer.name", self.dense_optimizer.name, DENSE_OPTIMIZERS),
        ):
            if chosen not in known:
                raise ValueError(f"{name} is {chosen!r}: known are {', '.join(known)}")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def read_run(path: Path) -> RunConfig:
    """Read a run file."""
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: this is not TOML: {error}") from None
    return from_dict(RunConfig, content, str(path))


def from_dict(kind: type[T], content: dict[str, Any], where: str) -> T:
    """Make a dataclass of a dict, refusing keys it does not have and values of another type."""
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(content) - set(hints))
    if unknown:
        raise ValueError(f"{where}: unknown {', '.join(map(repr, unknown))}; known are {', '.join(sorted(hints))}")
    values: dict[str, Any] = {}
    for key, value in content.items():
        expected = hints[key]
        if dataclasses.is_dataclass(expected):
            if not isinstance(value, dict):
                raise ValueError(f"{where}: {key} is {value!r}, it must be a section, [{key}]")
            values[key] = from_dict(typing.cast(type[Any], expected), value, f"{where}: [{key}]")
        else:
            values[key] = _converted(value, expected, f"{where}: {key}")
    return kind(**values)


def _converted(value: Any, expected: Any, where: str) -> Any:
    allowed = (
        typing.get_args(expected) if typing.get_origin(expected) in (typing.Union, types.UnionType) else (expected,)
    )
    for kind in allowed:
        plain = typing.get_origin(kind) or kind
        if plain is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, plain) and not (plain is int and isinstance(value, bool)):
            return value
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in allowed if kind is not types.NoneType)
    raise ValueError(f"{where} is {value!r}, it must be {names}")
