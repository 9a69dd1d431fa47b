"""Models of the user's own: a class that is named by its module, `my_package.my_module:MyModel`."""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, cast

import torch
from torch import nn

from hotrows.models.base import Model

FORM = "my_package.my_module:MyModel"


def import_model(name: str, setting: str = "model") -> type[Model]:
    """Import the class of a name such as `my_package.my_module:MyModel`, also from the current directory.

    Args:
        setting: what the name was given as, for error messages.
    """
    module_name, _, class_name = name.partition(":")
    parts = [*module_name.split("."), *class_name.split(".")]
    if not all(part.isidentifier() for part in parts) or module_name.endswith(".py"):
        raise ValueError(f"{setting} is {name!r}: write a class of your own as {FORM}, with dots and without .py")
    module = _import_module(module_name, f"{setting} is {name!r}")
    found: Any = module
    for part in class_name.split("."):
        if not hasattr(found, part):
            models = [key for key, value in vars(module).items() if _is_model(value) and value is not Model]
            raise ValueError(
                f"{setting} is {name!r}: {module.__file__} has no {class_name}, its models are "
                f"{', '.join(models) or 'none'}"
            )
        found = getattr(found, part)
    if not _is_model(found):
        raise ValueError(f"{setting} is {name!r}: {class_name} is {found!r}, it must be a class of torch.nn.Module")
    return cast(type[Model], found)


def build_model(
    name: str, kind: Callable[..., Model], num_dense: int, num_features: int, options: Mapping[str, Any]
) -> Model:
    """Make a model of the user's own, and check that it has what others rely on."""
    about = f"model {name!r}"
    _check_call(kind, (num_dense, num_features), options, f"{about} must be made from num_dense and num_features")
    try:
        model = kind(num_dense, num_features, **options)
    except ValueError as error:
        given = "".join(f", {key} {value!r}" for key, value in options.items())
        raise ValueError(
            f"{about} refuses num_dense {num_dense}, num_features {num_features}{given}: {error}"
        ) from error
    width = getattr(model, "embedding_dim", None)
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise ValueError(
            f"{about}: its embedding_dim is {width!r}; its constructor must set it to the width of the rows that "
            "forward takes, a whole number from 1 up"
        )
    if next(model.parameters(), None) is None:
        raise ValueError(f"{about} has no parameters, so there is nothing that the dense optimizer could train")
    _check_call(model.forward, ("dense", "embedded"), {}, f"{about}: its forward must take dense and embedded")
    return model


def check_logits(name: str, model: Model, num_dense: int, num_features: int) -> None:
    """Raise ValueError if a model does not compute one logit per sample.

    It is called with two samples of zeros, in evaluation mode, so that its running statistics stay as they are.
    """
    device = next(model.parameters()).device
    was_training = model.training
    with torch.no_grad():
        dense, embedded = torch.zeros(2, num_dense), torch.zeros(2, num_features, model.embedding_dim)
        logits = model.eval()(dense.to(device), embedded.to(device))
    model.train(was_training)
    if not isinstance(logits, torch.Tensor) or logits.shape != (2,) or not logits.is_floating_point():
        found = f"{list(logits.shape)} of {logits.dtype}" if isinstance(logits, torch.Tensor) else repr(type(logits))
        raise ValueError(
            f"model {name!r}: its forward returns {found} for 2 samples, it must return one logit per sample, [2]; "
            ".squeeze(1) makes it of [2, 1]"
        )


def _import_module(name: str, about: str) -> ModuleType:
    here = os.getcwd()
    if not {here, ""} & set(sys.path):
        sys.path.insert(0, here)  # as `python -m` has it, so that what the module imports later is found as well
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"{about}: importing {name} failed: {error}, {_location(error)}") from error
        raise ValueError(
            f"{about}: there is no module {error.name} in {here} or among the installed ones: start hotrows in the "
            "directory that has it, or install it"
        ) from None
    except Exception as error:
        raise ValueError(
            f"{about}: importing {name} failed: {type(error).__name__}: {error}, {_location(error)}"
        ) from error


def _location(error: BaseException) -> str:
    """The file and the line that the error comes from."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f"{frames[-1].filename}, line {frames[-1].lineno}"


def _is_model(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, nn.Module)


def _check_call(called: Any, arguments: tuple[Any, ...], options: Mapping[str, Any], expected: str) -> None:
    """Raise ValueError if something cannot be called with these arguments."""
    signature = inspect.signature(called)
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        raise ValueError(f"{expected}: {error}; it takes {signature}") from None
