"""The configuration of a run, from one TOML file. Every section is a dataclass, and an unknown key is an error."""

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotrows.cache.capacity import check_cache
from hotrows.data.shapes import SHAPES
from hotrows.data.synthetic import PREFIX
from hotrows.models import MODELS, find_model
from hotrows.models.own import FORM
from hotrows.optim import OPTIMIZERS
from hotrows.options import check_options, option
from hotrows.strategies import STRATEGIES, CacheSettings, option_sections
from hotrows.train.read_dataclass import read_dataclass, read_section, refuse_unknown_keys

LARGEST_DIM = 2**31 - 1
PRECISIONS = ("fp32", "tf32", "bf16")
DECAYS = ("none", "linear", "cosine")
_SYNTHETIC = ", ".join(PREFIX + name for name in SHAPES)
DENSE_OPTIMIZERS = ("sgd", "adagrad", "adam", "adamw")


@dataclass
class ModelConfig:
    """Section [model]: the model that trains on top of the embedding bags."""

    name: str = option("dlrm", "The model.", choices=MODELS, also=f"a class of your own as {FORM}")
    dim: int | None = option(
        None, "The width of the embedding rows. Left out, the model's own.", least=1, most=LARGEST_DIM
    )


@dataclass
class OptimizerConfig:
    """Section [optimizer]: the optimizer of the embedding rows. What is left out has the optimizer's own default."""

    name: str = option("sgd", "The optimizer.", choices=OPTIMIZERS)
    lr: float = option(0.1, "The learning rate.")
    weight_decay: float | None = option(None, "The factor of the L2 penalty.")
    eps: float | None = option(None, "What is added to a denominator so that it is not 0.")
    initial_accumulator_value: float | None = option(None, "Where Adagrad's sums of squared gradients begin.")
    betas: list[float] | None = option(None, "Adam's two decay rates, such as [0.9, 0.999].")

    def arguments(self) -> dict[str, Any]:
        given = {key: value for key, value in dataclasses.asdict(self).items() if key != "name" and value is not None}
        if "betas" in given:
            given["betas"] = tuple(given["betas"])
        return given


@dataclass
class DenseOptimizerConfig(OptimizerConfig):
    """Section [dense_optimizer]: the optimizer of all other parameters, one of torch.optim."""

    name: str = option("sgd", "The optimizer.", choices=DENSE_OPTIMIZERS)


@dataclass
class ScheduleConfig:
    """Section [schedule]: both learning rates rise linearly during the warm-up, and then decay."""

    warmup_steps: int = option(0, "In how many steps they rise from 0.", least=0)
    decay: str = option("none", "How they decay from then to the last step.", choices=DECAYS)
    end: float = option(0.0, "The share of a learning rate that is left at the last step.", least=0)


@dataclass
class TrainConfig:
    """Section [train]: how long to train, on what batches, and when to evaluate."""

    batch_size: int = option(2048, "Samples per step.", least=1)
    epochs: int = option(1, "Passes over the training split.", least=1)
    max_steps: int | None = option(None, "Stop after this many steps. Left out, after the last epoch.", least=1)
    eval_every: int | None = option(
        None, "Evaluate on the validation split each time after this many steps. Left out, after each epoch.", least=1
    )
    eval_batch_size: int = option(8192, "Samples per batch of an evaluation.", least=1)
    log_every: int = option(20, "Record the loss each time after this many steps.", least=1)
    precision: str = option("fp32", "The precision of the dense part; tf32 and bf16 on CUDA only.", choices=PRECISIONS)
    graphs: bool = option(True, "On CUDA, replay the training step from CUDA graphs.")
    shuffle: bool = option(False, "Draw the order of the training samples anew in each epoch.")


@dataclass
class RunConfig:
    """The top of a run file: the data, and what concerns the run as a whole.

    Attributes:
        options: the settings of strategies, by the strategy's name. In a run file each of them is a section of that
            name, such as [heca]. A strategy that is missing here has its defaults.
    """

    data: str = option("", "The data to train on.", also=f"a prepared directory, {_SYNTHETIC}")
    out: str | None = option(None, "The run directory. Left out, a new one in runs/.")
    seed: int = option(0, "The seed of everything that is random.", least=-(2**63), most=2**63 - 1)
    device: str = option(
        "auto",
        "Where to train; auto is CUDA where there is a device.",
        choices=("auto", "cpu", "cuda"),
        also="a device by its number, such as cuda:0",
    )
    strategy: str = option("lookahead", "How rows get to the device.", choices=STRATEGIES)
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheSettings = field(default_factory=CacheSettings)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    dense_optimizer: DenseOptimizerConfig = field(default_factory=DenseOptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    save: bool = option(True, "Write the trained model into the run directory, for `hotrows evaluate`.")
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
        check_options(self)
        for name in sections():
            settings = getattr(self, name, None) or self.options.get(name)
            if settings is not None:
                check_options(settings, name)
        find_model(self.model.name, "model.name")
        check_cache(self.cache.size)
        for name, betas in (("optimizer", self.optimizer.betas), ("dense_optimizer", self.dense_optimizer.betas)):
            if betas is not None and len(betas) != 2:
                raise ValueError(f"{name}.betas are {betas}, give two numbers")


def sections() -> dict[str, type[Any]]:
    """The sections of a run file, by name: those that every run has, and those of the strategies."""
    hints: dict[str, type[Any]] = typing.get_type_hints(RunConfig)
    return {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)} | option_sections()


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
