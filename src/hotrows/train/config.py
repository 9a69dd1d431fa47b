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
from hotrows.models import MODELS, find_model, options_of
from hotrows.models.own import FORM
from hotrows.optim import OPTIMIZERS
from hotrows.options import check_options, option
from hotrows.stores.init import check_init
from hotrows.strategies import STRATEGIES, CacheSettings, option_sections
from hotrows.table import whole_number
from hotrows.train.read_dataclass import read_dataclass, read_section, refuse_unknown_keys

LARGEST_DIM = 2**31 - 1
PRECISIONS = ("fp32", "tf32", "bf16")
DECAYS = ("none", "linear", "cosine")
KEPT = ("last", "best")
_SYNTHETIC = ", ".join(PREFIX + name for name in SHAPES)
# The learning rates with which every model trains on the logs of docs/quality.md, where the run names none.
ROW_RATES = {"sgd": 0.1, "adagrad": 0.02, "row-wise-adagrad": 0.02, "adam": 0.001}
DENSE_RATES = {"sgd": 0.1, "adagrad": 0.01, "adam": 0.001, "adamw": 0.001}
BATCH_SIZE = 2048
STEPS_PER_EPOCH = 500
SMALLEST_BATCH = 32
EVALUATIONS_PER_EPOCH = 4


def _listed(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{rate:g} for {name}" for name, rate in rates.items())


@dataclass
class ModelConfig:
    """Section [model]: the model that trains on top of the embedding bags.

    Attributes:
        options: the model's own, such as the widths of its layers. In a run file they are settings of this section.
    """

    name: str = option("dlrm", "The model.", choices=MODELS, also=f"a class of your own as {FORM}")
    dim: int | None = option(
        None, "The width of the embedding rows. Left out, the model's own.", least=1, most=LARGEST_DIM
    )
    init: str = option(
        "uniform(0.01)",
        "The initial values of the rows: uniform is ±1/√rows, normal has the standard deviation 1.",
        also="uniform, normal, uniform(0.01), normal(0.01), or another number",
    )
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class OptimizerConfig:
    """Section [optimizer]: the optimizer of the embedding rows. What is left out has the optimizer's own default."""

    name: str = option("adagrad", "The optimizer.", choices=OPTIMIZERS)
    lr: float | None = option(None, f"The learning rate. Left out, {_listed(ROW_RATES)}.")
    weight_decay: float | None = option(None, "The factor of the L2 penalty.")
    eps: float | None = option(None, "What is added to a denominator so that it is not 0.")
    initial_accumulator_value: float | None = option(None, "Where Adagrad's sums of squared gradients begin.")
    betas: list[float] | None = option(None, "Adam's two decay rates, such as [0.9, 0.999].")

    def arguments(self) -> dict[str, Any]:
        given = {key: value for key, value in dataclasses.asdict(self).items() if key != "name" and value is not None}
        given.setdefault("lr", self._rates()[self.name])
        if "betas" in given:
            given["betas"] = tuple(given["betas"])
        return given

    @staticmethod
    def _rates() -> Mapping[str, float]:
        return ROW_RATES


@dataclass
class DenseOptimizerConfig(OptimizerConfig):
    """Section [dense_optimizer]: the optimizer of all other parameters, one of torch.optim."""

    name: str = option("adam", "The optimizer.", choices=DENSE_RATES)
    lr: float | None = option(None, f"The learning rate. Left out, {_listed(DENSE_RATES)}.")

    @staticmethod
    def _rates() -> Mapping[str, float]:
        return DENSE_RATES


@dataclass
class ScheduleConfig:
    """Section [schedule]: both learning rates rise linearly during the warm-up, and then decay."""

    warmup_steps: int = option(0, "In how many steps they rise from 0.", least=0)
    decay: str = option("none", "How they decay from then to the last step.", choices=DECAYS)
    end: float = option(0.0, "The share of a learning rate that is left at the last step.", least=0)


@dataclass
class TrainConfig:
    """Section [train]: how long to train, on what batches, and when to evaluate."""

    batch_size: int | None = option(
        None,
        f"Samples per step. Left out, {BATCH_SIZE:,}, for a small log halved until an epoch has {STEPS_PER_EPOCH} "
        f"steps, but at least {SMALLEST_BATCH}.",
        least=1,
    )
    epochs: int = option(1, "Passes over the training split.", least=1)
    max_steps: int | None = option(None, "Stop after this many steps. Left out, after the last epoch.", least=1)
    eval_every: int | None = option(
        None,
        "Evaluate on the validation split each time after this many steps. Left out, "
        f"{EVALUATIONS_PER_EPOCH} times in each epoch.",
        least=1,
    )
    early_stopping: int | None = option(
        None,
        "Stop after this many evaluations on the validation split, one after the other, without a better AUC. Left "
        "out, train all epochs.",
        least=1,
    )
    keep: str = option(
        "last", "Which model is kept: the last, or the one with the best AUC on the validation split.", choices=KEPT
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
        model, settings = _split_model_options(content.get("model"), where)
        own_content = {key: value for key, value in content.items() if key in own}
        run = read_dataclass(cls, own_content | ({"model": model} if "model" in content else {}), where)
        run.model.options = settings
        run.options = {
            name: read_section(kind, content[name], name, where) for name, kind in sections.items() if name in content
        }
        return run

    def to_json(self) -> dict[str, Any]:
        """The content that `from_dict` reads. It has the options of the chosen strategy, and all that were given."""
        content = {
            each.name: _plain(getattr(self, each.name)) for each in dataclasses.fields(self) if each.name != "options"
        }
        content["model"] |= content["model"].pop("options")
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
        check_init(self.model.init)
        if self.train.keep == "best" and not self.save:
            raise ValueError("train.keep is 'best', which needs a saved model: set save = true")
        for name, betas in (("optimizer", self.optimizer.betas), ("dense_optimizer", self.dense_optimizer.betas)):
            if betas is not None and len(betas) != 2:
                raise ValueError(f"{name}.betas are {betas}, give two numbers")


def with_defaults(config: RunConfig, num_samples: int) -> RunConfig:
    """The run with numbers for what was left out and depends on other settings or on the data.

    Args:
        num_samples: those of the training split.
    """
    size = config.train.batch_size
    if size is None:
        size = BATCH_SIZE
        while size > SMALLEST_BATCH and num_samples < STEPS_PER_EPOCH * size:
            size //= 2
    every = config.train.eval_every or max(1, -(-num_samples // (size * EVALUATIONS_PER_EPOCH)))
    return dataclasses.replace(
        config,
        optimizer=dataclasses.replace(config.optimizer, lr=config.optimizer.arguments()["lr"]),
        dense_optimizer=dataclasses.replace(config.dense_optimizer, lr=config.dense_optimizer.arguments()["lr"]),
        train=dataclasses.replace(config.train, batch_size=size, eval_every=every),
    )


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


def _split_model_options(section: Any, where: str) -> tuple[Any, dict[str, Any]]:
    """The settings of [model] that every model has, and those that only this one has."""
    if not isinstance(section, Mapping):
        return section, {}
    common = {each.name for each in dataclasses.fields(ModelConfig)} - {"options"}
    settings = {key: value for key, value in section.items() if key not in common}
    name = section.get("name", ModelConfig.name)
    if settings and isinstance(name, str):
        known = options_of(name, f"{where}: [model]: name")
        refuse_unknown_keys(settings, {*common, *known}, f"{where}: [model]")
        settings = {
            key: _option_value(value, known[key].default, f"{where}: [model]: {key}") for key, value in settings.items()
        }
    return {key: value for key, value in section.items() if key in common}, settings


def _option_value(value: Any, default: Any, where: str) -> Any:
    """The value of a model's option, which has the type of its default."""
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or not value:
            raise ValueError(f"{where} is {value!r}, it must be a list of widths such as {list(default)}")
        return tuple(whole_number(each, f"{where}: a width") for each in value)
    if isinstance(default, float):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{where} is {value!r}, it must be a number")
        return float(value)
    if isinstance(default, int) and not isinstance(default, bool):
        return whole_number(value, where)
    return value  # the model checks it


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
