"""Models of the user's own, named by module and class: what is checked, and with which message."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hotrows.cli.main import app
from hotrows.models import make_model

GOOD = """
import torch
from torch import nn
from hotrows.models import Model

class Good(nn.Module):
    def __init__(self, num_dense, num_features, dim=4):
        super().__init__()
        self.embedding_dim = dim
        self.layer = nn.Linear(num_dense + num_features * dim, 1)
        self.norm = nn.BatchNorm1d(1)

    def forward(self, dense, embedded):
        return self.norm(self.layer(torch.cat([dense, embedded.flatten(1)], dim=1))).squeeze(1)

class NoDim(Good):
    def __init__(self, num_dense, num_features):
        super().__init__(num_dense, num_features)

class NeedsMore(Good):
    def __init__(self, num_dense, num_features, hidden):
        super().__init__(num_dense, num_features)

class NoWidth(Good):
    def __init__(self, num_dense, num_features, dim=4):
        super().__init__(num_dense, num_features, dim)
        del self.embedding_dim

class TwoLogits(Good):
    def forward(self, dense, embedded):
        return super().forward(dense, embedded).unsqueeze(1)

class OneInput(Good):
    def forward(self, dense):
        return dense.sum(1)

class Picky(Good):
    def __init__(self, num_dense, num_features, dim=4):
        raise ValueError("I want 7 dense features")

class ReadsValues(Good):
    def __init__(self, num_dense, num_features, dim=4):
        super().__init__(num_dense, num_features, dim)
        self.scale = self.layer.weight.abs().max().item()

class NoParameters(nn.Module):
    embedding_dim = 4
    def __init__(self, num_dense, num_features):
        super().__init__()

    def forward(self, dense, embedded):
        return embedded.sum((1, 2))

class Outer:
    Inner = Good

class NoModel:
    pass

a_function = len
"""
DATA = ("--data", "synthetic:avazu?scale=0.001&samples=2000", "--device", "cpu")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with modules of models, which are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    package = tmp_path / "my_package"
    package.mkdir()
    (tmp_path / "my_models.py").write_text(GOOD)
    (package / "__init__.py").touch()
    (package / "deep.py").write_text("from my_models import Good as Deep")
    (tmp_path / "needs_other.py").write_text("\nimport no_such_thing")
    (tmp_path / "no_python.py").write_text("x = 1\nclass:")
    (tmp_path / "fails.py").write_text("x = 1\ny = x / 0")
    yield tmp_path
    for name in ("my_models", "my_package", "my_package.deep", "needs_other", "no_python", "fails"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "name", ["my_models:Good", "my_package.deep:Deep", "my_models:Outer.Inner", "my_models:ReadsValues"]
)
def test_a_class_is_imported_from_the_current_directory_and_trained(name: str) -> None:
    arguments = ["train", *DATA, "--model", name, "--max-steps", "2", "--out", "run"]
    trained = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert trained.exit_code == 0, trained.output
    evaluated = CliRunner().invoke(app, ["evaluate", "run"], catch_exceptions=False)
    assert f"{name} on test of" in evaluated.output


def test_the_check_leaves_running_statistics_and_random_numbers_as_they_are() -> None:
    torch.manual_seed(1)
    from hotrows.models.own import check_logits

    model = make_model("my_models:Good", 2, 3)
    before, state = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    check_logits("my_models:Good", model, 2, 3)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_modelz:Good", "there is no module my_modelz in {here} or among the installed ones: start hotrows in"),
        ("my_package.shallow:Deep", "there is no module my_package.shallow in {here}"),
        ("my_models:Bad", "{here}/my_models.py has no Bad, its models are Good, NoDim, NeedsMore"),
        ("my_package:Bad", "{here}/my_package/__init__.py has no Bad, its models are none"),
        ("my_models:NoModel", "NoModel is <class 'my_models.NoModel'>, it must be a class of torch.nn.Module"),
        ("my_models:a_function", "it must be a class of torch.nn.Module"),
        ("my_models.py:Good", "write a class of your own as my_package.my_module:MyModel, with dots and without .py"),
        ("models/my_models:Good", "write a class of your own as my_package.my_module:MyModel"),
        ("my_models:", "write a class of your own as my_package.my_module:MyModel"),
        (":Good", "write a class of your own as my_package.my_module:MyModel"),
        ("..my_models:Good", "write a class of your own as my_package.my_module:MyModel"),
        ("my_models", "known are dlrm, dlrm:freqcache"),
        ("dlrm:mine", "dcn-v2, or a class of your own as my_package.my_module:MyModel"),
        (
            "needs_other:M",
            "importing needs_other failed: No module named 'no_such_thing', {here}/needs_other.py, line 2",
        ),
        ("no_python:M", "importing no_python failed: SyntaxError: "),
        ("no_python:M", "{here}/no_python.py, line 2"),
        ("fails:M", "importing fails failed: ZeroDivisionError: division by zero, {here}/fails.py, line 2"),
        ("my_models:NoDim", "got an unexpected keyword argument 'dim'; it takes (num_dense, num_features)"),
        ("my_models:NeedsMore", "must be made from num_dense and num_features: "),
        ("my_models:NoWidth", "its embedding_dim is None; its constructor must set it to the width of the rows"),
        ("my_models:TwoLogits", "its forward returns [2, 1] of torch.float32 for 2 samples, it must return one logit"),
        ("my_models:OneInput", "its forward must take dense and embedded: too many positional arguments"),
        ("my_models:Picky", "refuses num_dense 8, num_features 13, dim 8: I want 7 dense features"),
    ],
)
def test_what_is_no_model_is_refused_and_nothing_is_left(name: str, message: str, directory: Path) -> None:
    before = sorted(directory.glob("*"))
    result = CliRunner().invoke(app, ["train", *DATA, "--model", name, "--dim", "8", "--out", "run"])
    assert result.exit_code == 2, result.output
    assert message.format(here=directory) in result.stderr
    assert "Traceback" not in result.output
    assert sorted(path for path in directory.glob("*") if path.name != "__pycache__") == before


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="NoParameters' has no parameters"):
        make_model("my_models:NoParameters", 2, 3)


def test_options_of_an_own_model_are_those_of_its_constructor() -> None:
    make_model("my_models:NeedsMore", 2, 3, hidden=3)
    with pytest.raises(ValueError, match="model 'my_models:NeedsMore' has no option 'width': it has hidden"):
        make_model("my_models:NeedsMore", 2, 3, width=3)


def test_evaluating_where_the_class_is_not_says_so(directory: Path) -> None:
    """A program of its own, in which the class was not imported before."""
    train = [*DATA, "--model", "my_models:Good", "--max-steps", "1", "--out", "run"]
    assert CliRunner().invoke(app, ["train", *train], catch_exceptions=False).exit_code == 0
    (directory / "elsewhere").mkdir()
    program = [sys.executable, "-c", "from hotrows.cli.main import app; app()", "evaluate"]
    there = subprocess.run([*program, "../run"], cwd=directory / "elsewhere", capture_output=True, text=True)
    assert (there.returncode, there.stdout) == (2, "")
    assert "there is no module my_models in" in there.stderr
    here = subprocess.run([*program, "run"], cwd=directory, capture_output=True, text=True)
    assert here.returncode == 0, here.stderr


def test_options_in_the_run_file(directory: Path) -> None:
    run_file = directory / "run.toml"
    run_file.write_text('[model]\nname = "my_models:NeedsMore"\nhidden = 3\n')
    arguments = ["train", str(run_file), *DATA, "--max-steps", "2", "--out", "run"]
    trained = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert trained.exit_code == 0, trained.output
    run_file.write_text('[model]\nname = "my_models:NeedsMore"\nwidth = 3\n')
    refused = CliRunner().invoke(app, ["train", str(run_file), *DATA, "--out", "other"])
    assert refused.exit_code == 2
    assert "[model]: unknown 'width'; known are dim, hidden, init, name" in refused.stderr
