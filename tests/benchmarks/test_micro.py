"""benchmarks/micro: the constants that its variants set are those of the kernels."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

MICRO = Path(__file__).parents[2] / "benchmarks" / "micro"


@pytest.fixture
def micro(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.syspath_prepend(MICRO)


def load(name: str) -> ModuleType:
    """The script of this name. Names such as `unique` are short, so a module of that name may be imported already."""
    spec = importlib.util.spec_from_file_location(f"micro_{name}", MICRO / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.usefixtures("micro")
@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("backward_update", "kernel"),
        ("linear", "sums"),
        ("unique", "kernel_columns"),
        ("wide_deep_input", "kernel"),
    ],
)
def test_variants_set_constants_that_exist(name: str, kernels: str) -> None:
    script = load(name)
    known = vars(getattr(script, kernels))
    assert {constant for variant in script.VARIANTS for constant in variant} <= set(known)


@pytest.mark.usefixtures("micro")
def test_variants_of_interact_set_constants_that_exist() -> None:
    script = load("interact")
    for variant in script.VARIANTS:
        assert set(variant.constants()) <= set(vars(script.kernel))


@pytest.mark.usefixtures("micro")
@pytest.mark.parametrize("name", sorted(path.stem for path in MICRO.glob("*.py") if path.stem != "measuring"))
def test_without_a_gpu_a_script_says_that_it_needs_one(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load(name)
    monkeypatch.setattr(script.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", [name])
    try:
        code = script.main()
    except SystemExit as ended:
        code = ended.code
    assert code
    assert "PyTorch sees no CUDA device here" in capsys.readouterr().err
