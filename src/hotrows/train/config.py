"""The configuration of a run, from one TOML file. Every section is a dataclass, and an unknown key is an error."""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotrows.cache.capacity import check_cache
from hotrows.cache.indexes import check_index
from hotrows.cache.policies import make_policy
from hotrows.cache.policies.next_use import WINDOW_LIMIT
from hotrows.models import MODELS
from hotrows.optim import OPTIMIZERS
from hotrows.strategies import option_sections, strategy_type
from hotrows.strategies.base import CacheSettings
from hotrows.table import whole_number
from hotrows.train.read_dataclass import read_dataclass, read_section, refuse_unknown_keys

LARGEST_DIM = 2**31 - 1
PRECISIONS = ("fp32", "tf32", "bf16")
DECAYS = ("none", "linear", "cosine")
DENSE_OPTIMIZERS = ("sgd", "adagrad", "adam", "adamw")


@dataclass
class ModelConfig:
    name: str = "dlrm"
    dim: int | None = None  # the width of the embedding rows; None takes the model's default


@dataclass
class OptimizerConfig:
    """The optimizer of the rows, or of the dense part. A setting that is None keeps the optimizer's own default."""

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
    """The learning rates rise linearly during the warm-up, and then decay to `end` times their value."""

    warmup_steps: int = 0
    decay: str = "none"
    end: float = 0.0


@dataclass
class TrainConfig:
    batch_size: int = 2048
    epochs: int = 1
    max_steps: int | None = None
    eval_every: int | None = None  # in steps; None evaluates at the end of every epoch
    eval_batch_size: int = 8192
    log_every: int = 20
    precision: str = "fp32"
    graphs: bool = True  # on CUDA, replay the training step from CUDA graphs
    shuffle: bool = False


@dataclass
class RunConfig:
    """Everything that decides the result of a run, and where it is written.

    Attributes:
        options: the settings of strategies, by the strategy's name. In a run file each of them is a section of that
            name, such as [heca]. A strategy that is missing here has its defaults.
    """

    data: str = ""
    out: str | None = None
    seed: int = 0
    device: str = "auto"
    strategy: str = "lookahead"
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheSettings = field(default_factory=CacheSettings)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    dense_optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    save: bool = True  # write the trained model into the run directory, for `hotrows evaluate`
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], where: str) -> "RunConfig":
        """Read a run from the content of a run file or of a run's config.json.

        Args:
            where: the file, for error messages.
        """
        own = {each.name for each in dataclasses.fields(cls)} - {"options"}
        sections = option_sections()
        assert not own & set(sections), f"strategies with options cannot have the names {own & set(sections)}"
        refuse_unknown_keys(content, own | set(sections), where)
        run = read_dataclass(cls, {key: value for key, value in content.items() if key in own}, where)
        run.options = {
            name: read_section(kind, content[name], name, where) for name, kind in sections.items() if name in content
        }
        return run

    def to_json(self) -> dict[str, Any]:
        """The content that `from_dict` reads. It has the options of the chosen strategy, and all that were given."""
        content = {
            each.name: _plain(getattr(self, each.name)) for each in dataclasses.fields(self) if each.name != "options"
        }
        sections = option_sections()
        chosen = {self.strategy: sections[self.strategy]()} if self.strategy in sections else {}
        return content | {name: _plain(options) for name, options in (chosen | self.options).items()}

    def check(self) -> None:
        """Raise if a setting is out of range or unknown, before anything is read or allocated."""
        if not self.data:
            raise ValueError("data: name a prepared directory or synthetic:criteo-kaggle, synthetic:avazu, …")
        strategy_type(self.strategy)
        check_cache(self.cache.size)
        make_policy(self.cache.policy)
        check_index(self.cache.index)
        whole_number(self.seed, "seed", least=-(2**63), most=2**63 - 1)
        whole_number(self.cache.window, "cache.window", most=WINDOW_LIMIT)
        for name, value, lowest in (
            ("model.dim", self.model.dim, 1),
            ("train.batch_size", self.train.batch_size, 1),
            ("train.epochs", self.train.epochs, 1),
            ("train.max_steps", self.train.max_steps, 1),
            ("train.eval_every", self.train.eval_every, 1),
            ("train.eval_batch_size", self.train.eval_batch_size, 1),
            ("train.log_every", self.train.log_every, 1),
            ("cache.depth", self.cache.depth, 0),
            ("schedule.warmup_steps", self.schedule.warmup_steps, 0),
            ("schedule.end", self.schedule.end, 0),
        ):
            if value is not None and value < lowest:
                raise ValueError(f"{name} is {value}, it must be {lowest} or more")
        if self.model.dim is not None and self.model.dim > LARGEST_DIM:
            raise ValueError(f"model.dim is {self.model.dim}, it must be {LARGEST_DIM} or less")
        for name, betas in (("optimizer", self.optimizer.betas), ("dense_optimizer", self.dense_optimizer.betas)):
            if betas is not None and len(betas) != 2:
                raise ValueError(f"{name}.betas are {betas}, give two numbers")
        for name, chosen, known in (
            ("model.name", self.model.name, MODELS),
            ("optimizer.name", self.optimizer.name, OPTIMIZERS),
            ("train.precision", self.train.precision, PRECISIONS),
            ("schedule.decay", self.schedule.decay, DECAYS),
            ("dense_optimizer.name", self.dense_optimizer.name, DENSE_OPTIMIZERS),
        ):
            if chosen not in known:
                raise ValueError(f"{name} is {chosen!r}: known are {', '.join(known)}")


def read_run(path: Path) -> RunConfig:
    """Read a run file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors may write a byte order mark
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ValueError(f"{path}: this run file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: this run file is not UTF-8, at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: this is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path}: this is no run file: its values are nested too deeply") from None
    return RunConfig.from_dict(content, str(path))


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
