"""The models that train on top of the embedding bags. None of them depends on the cache."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from hotrows.models.base import Model as Model
from hotrows.models.dcn import DCN as DCN
from hotrows.models.dcn import DCNv2 as DCNv2
from hotrows.models.deepfm import DeepFM as DeepFM
from hotrows.models.dlrm import DLRM as DLRM
from hotrows.models.dlrm import SIZES
from hotrows.models.own import FORM, build_model, import_model
from hotrows.models.wide_deep import WideDeep as WideDeep

# Each entry is called with num_dense, num_features, and optionally dim and the options of the model.
MODELS: dict[str, Callable[..., Model]] = {
    "dlrm": DLRM,
    **{f"dlrm:{name}": partial(DLRM, **sizes._asdict()) for name, sizes in SIZES.items()},
    "wide-deep": WideDeep,
    "deepfm": DeepFM,
    "dcn": DCN,
    "dcn-v2": DCNv2,
}


def make_model(name: str, num_dense: int, num_features: int, dim: int | None = None, **options: Any) -> Model:
    """Make a model by its name in MODELS, or by the module and class of one of your own.

    Its initial weights are drawn from torch's global generator, so call `torch.manual_seed` first.

    Args:
        name: such as "dcn-v2", or "my_package.my_module:MyModel".
        num_dense: the number of columns of `Batch.dense`.
        num_features: the number of columns of `Batch.ids`.
        dim: the width of the model's vectors; None for its default. The embedding bags must have the width
            `model.embedding_dim`, which may be larger.
        options: options of this model, such as `top=(512, 256)`.

    Example::

        torch.manual_seed(0)
        model = make_model("dlrm:freqcache", num_dense=13, num_features=26)
        bags = hotrows.EmbeddingBagCollection(tables, dim=model.embedding_dim)
        logits = model(batch.dense, bags(batch.ids))
    """
    build, known = find_model(name), options_of(name)
    for option in options:
        if option not in known:
            raise ValueError(f"model {name!r} has no option {option!r}: it has {', '.join(known) or 'none'}")
    if dim is not None:
        if not isinstance(dim, int) or dim < 1:
            raise ValueError(f"dim is {dim!r}, it must be a whole number from 1 up")
        options["dim"] = dim
    return (
        build(num_dense, num_features, **options)
        if name in MODELS
        else build_model(name, build, num_dense, num_features, options)
    )


def find_model(name: str, setting: str = "model") -> Callable[..., Model]:
    """What makes the model of this name: an entry of MODELS, or a class that is imported.

    Args:
        setting: what the name was given as, for error messages.
    """
    if name in MODELS:
        return MODELS[name]
    if ":" in name and name.partition(":")[0] not in MODELS:
        return import_model(name, setting)
    raise ValueError(f"{setting} is {name!r}: known are {', '.join(MODELS)}, or a class of your own as {FORM}")


def options_of(name: str, setting: str = "model") -> dict[str, inspect.Parameter]:
    """The options of a model, in the order of its constructor. The defaults of a preset are its own.

    Args:
        setting: what the name was given as, for error messages.
    """
    parameters = inspect.signature(find_model(name, setting)).parameters
    return {option: parameter for option, parameter in parameters.items() if option not in _SHAPES}


_SHAPES = ("num_dense", "num_features", "dim")
