"""Bad inputs of the program: one clear message, exit code 2, no traceback, and nothing left on disk."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from typer.testing import CliRunner, Result

from hotrows.cli.main import app
from hotrows.data.sample import write_criteo_log
from hotrows.train import run as run_module
from hotrows.train.directory import run_directory

SETTINGS = """
data = "{data}"
device = "cpu"
out = "out"
{top}
[model]
name = "dlrm:rmc2"
dim = 4
[train]
batch_size = 128
{train}
{sections}
"""


class Made(NamedTuple):
    """What the tests of this file share: a prepared data set, and a finished run on it."""

    data: Path
    run: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = tmp_path_factory.mktemp("made")
    write_criteo_log(directory / "log.txt", 2000, seed=1)
    data, run = directory / "data", directory / "run"
    call("prepare", "criteo", directory / "log.txt", "--out", data, code=0)
    call("train", "--data", data, "--model", "dlrm:rmc2", "--dim", 4, "--device", "cpu", "--max-steps", 2, "--out", run,
         code=0)  # fmt: skip
    return Made(data, run)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def call(*arguments: object, code: int = 2) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "1000"})
    raised = None if isinstance(result.exception, SystemExit) else result.exception
    assert (result.exit_code, raised) == (code, None), result.output
    assert "Traceback" not in result.output
    return result


def found(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def refused(message: str, *arguments: object) -> None:
    """The message is on stderr, and the files of the working directory are those that were there before."""
    before = found(Path.cwd())
    assert message in call(*arguments).stderr
    assert found(Path.cwd()) == before


TRAIN_OPTIONS = [
    ("--max-steps", "0", "train.max_steps is 0, it must be 1 or more"),
    ("--max-steps", "-1", "train.max_steps is -1, it must be 1 or more"),
    ("--max-steps", "x", "Invalid value for '--max-steps'"),
    ("--max-steps", "1.5", "Invalid value for '--max-steps'"),
    ("--batch-size", "0", "train.batch_size is 0, it must be 1 or more"),
    ("--batch-size", "-3", "train.batch_size is -3"),
    ("--epochs", "0", "train.epochs is 0, it must be 1 or more"),
    ("--epochs", "", "Invalid value for '--epochs'"),
    ("--dim", "0", "model.dim is 0, it must be from 1 to 2147483647"),
    ("--dim", "-8", "model.dim is -8"),
    ("--dim", str(2**63), "model.dim is 9223372036854775808, it must be from 1 to 2147483647"),
    ("--model", "bert", "model.name is 'bert': known are dlrm, "),
    ("--model", "", "model.name is '': known are"),
    ("--strategy", "magic", "strategy is 'magic': known are lookahead, freqcache"),
    ("--strategy", "", "strategy is '': known are"),
    ("--cache", "", "cache is '': give a number of rows"),
    ("--cache", "0", "cache is '0': give a number of rows"),
    ("--cache", "-5", "cache is '-5': give a number of rows"),
    ("--cache", "nan", "cache is 'nan': give a number of rows"),
    ("--cache", "200%", "at most 100%"),
    ("--cache", "0.000001KB", "but one row with its optimizer state takes"),
    ("--policy", "mru", "cache.policy is 'mru': known are lru, lfu"),
    ("--policy", "", "policy is '': known are"),
    ("--optimizer", "lamb", "optimizer.name is 'lamb': known are sgd, adagrad"),
    ("--optimizer", "", "optimizer.name is '': known are"),
    ("--lr", "-1", "[optimizer]: Adagrad: lr is -1.0, it must be 0 or more"),
    ("--dense-lr", "-1", "[dense_optimizer]: 'adam': Invalid learning rate: -1.0"),
    ("--dense-optimizer", "lamb", "dense_optimizer.name is 'lamb': known are sgd, adagrad, adam, adamw"),
    ("--early-stopping", "0", "train.early_stopping is 0, it must be 1 or more"),
    ("--keep", "all", "train.keep is 'all': known are last, best"),
    ("--lr", "nan", "lr is nan, it must be a finite number"),
    ("--lr", "inf", "lr is inf, it must be a finite number"),
    ("--lr", "1e40", "lr is 1e+40, it must be from -3.4e38 to 3.4e38"),
    ("--lr", "x", "Invalid value for '--lr'"),
    ("--device", "tpu", "device is 'tpu': known are auto, cpu, cuda"),
    ("--device", "", "device is '': known are auto, cpu, cuda"),
    ("--device", "cpu:7", "device is 'cpu:7': known are"),
    ("--device", "meta", "device is 'meta': known are"),
    ("--device", "cuda:x", "device is 'cuda:x': known are"),
    ("--seed", "x", "Invalid value for '--seed'"),
    ("--seed", "9" * 30, "seed is 9999"),
    ("--out", "", "out is empty: name a directory"),
    ("--data", "", "data: name a prepared directory or synthetic:"),
    ("--data", "nowhere", "there is no data set 'nowhere'"),
    ("--data", ".", "is not a prepared data set"),
    ("--data", "synthetic:", "there is no data set synthetic:: give one of"),
    ("--data", "synthetic:netflix", "there is no data set synthetic:netflix: give one of"),
    ("--data", "synthetic:avazu?samples=0", "samples is 0, it must be 10 or more"),
    ("--data", "synthetic:avazu?samples=-5", "samples is -5"),
    ("--data", "synthetic:avazu?samples=1.5", "samples is '1.5', give a whole number"),
    ("--data", "synthetic:avazu?samples=", "samples is '', give a whole number"),
    ("--data", "synthetic:avazu?scale=0", "scale is 0, it must be more than 0"),
    ("--data", "synthetic:avazu?scale=2", "scale is 2, it must be more than 0 and at most 1"),
    ("--data", "synthetic:avazu?scale=nan", "scale is nan"),
    ("--data", "synthetic:avazu?scale=big", "scale is 'big', give a number"),
    ("--data", "synthetic:avazu?drift=2", "drift is 2, it must be from 0 to 1"),
    ("--data", "synthetic:avazu?drift=nan", "drift is nan"),
    ("--data", "synthetic:avazu?seed=x", "seed is 'x', give a whole number"),
    ("--data", "synthetic:avazu?size=3", "there is no parameter 'size', the known ones are samples"),
    ("--lamp", "1", "No such option: --lamp"),
]


@pytest.mark.parametrize(("option", "value", "message"), TRAIN_OPTIONS)
def test_options_of_train(option: str, value: str, message: str, made: Made) -> None:
    given = {"--data": made.data, "--device": "cpu", "--model": "dlrm:rmc2", "--dim": 4, "--out": "out", option: value}
    refused(message, "train", *(part for pair in given.items() for part in pair))


RUN_FILES: list[tuple[dict[str, str], str]] = [
    ({"top": "eval_every = 0"}, "unknown 'eval_every'; known are cache, data"),
    ({"top": 'seed = "a"'}, "seed is 'a', it must be int"),
    ({"top": "seed = 1.5"}, "seed is 1.5, it must be int"),
    ({"top": 'save = "no"'}, "save is 'no', it must be bool"),
    ({"top": "strategy = 5"}, "strategy is 5, it must be str"),
    ({"top": "cache = 5"}, "cache is 5, it must be a section, [cache]"),
    ({"top": 'data = "twice"'}, "this is not TOML: Cannot overwrite a value"),
    ({"train": "eval_every = 0"}, "train.eval_every is 0, it must be 1 or more"),
    ({"train": "eval_every = -2"}, "train.eval_every is -2"),
    ({"train": "eval_batch_size = 0"}, "train.eval_batch_size is 0"),
    ({"train": "log_every = 0"}, "train.log_every is 0"),
    ({"train": "max_steps = true"}, "max_steps is True, it must be int"),
    ({"train": "epochs = 1.0"}, "epochs is 1.0, it must be int"),
    ({"train": "shuffle = 1"}, "shuffle is 1, it must be bool"),
    ({"train": 'precision = "fp8"'}, "train.precision is 'fp8': known are fp32, tf32, bf16"),
    ({"train": 'precision = "bf16"'}, "train.precision is 'bf16', which is for CUDA"),
    ({"train": "batchsize = 2"}, "[train]: unknown 'batchsize'; known are batch_size"),
    ({"sections": "[train]"}, "this is not TOML: Cannot declare ('train',) twice"),
    ({"sections": "[[optimizer]]"}, "optimizer is [{}], it must be a section"),
    ({"sections": "[magic]\nx = 1"}, "unknown 'magic'; known are"),
    (
        {"sections": '[optimizer]\nname = "sgd"\neps = 0.1'},
        "[optimizer]: optimizer 'sgd' has no eps: it has lr, weight_decay",
    ),
    ({"sections": '[optimizer]\nname = "adam"\nweight_decay = 0.1'}, "optimizer 'adam' has no weight_decay"),
    ({"sections": '[optimizer]\nname = "adam"\nbetas = [0.9]'}, "optimizer.betas are [0.9], give two numbers"),
    ({"sections": '[optimizer]\nname = "adam"\nbetas = [0.9, 1.5]'}, "each at least 0 and less than 1"),
    ({"sections": '[optimizer]\nname = "adam"\nbetas = [0.9, "x"]'}, "betas[1] is 'x', it must be float"),
    ({"sections": '[optimizer]\nname = "adagrad"\neps = -1'}, "Adagrad: eps is -1.0, it must be 0 or more"),
    ({"sections": '[optimizer]\nlr = "fast"'}, "lr is 'fast', it must be float"),
    ({"sections": "[optimizer]\nlr = inf"}, "lr is inf, it must be a finite number"),
    ({"sections": '[dense_optimizer]\nname = "lion"'}, "dense_optimizer.name is 'lion': known are sgd"),
    (
        {"sections": '[dense_optimizer]\nname = "sgd"\neps = 0.1'},
        "[dense_optimizer]: 'sgd' has no eps: it has lr, weight_decay",
    ),
    ({"sections": '[dense_optimizer]\nname = "adam"\nbetas = []'}, "dense_optimizer.betas are [], give two numbers"),
    ({"sections": '[dense_optimizer]\nname = "adam"\nbetas = [2, 2]'}, "[dense_optimizer]: 'adam': Invalid beta"),
    ({"sections": "[dense_optimizer]\nlr = -1"}, "[dense_optimizer]: 'adam': Invalid learning rate"),
    ({"sections": "[schedule]\nwarmup_steps = -1"}, "schedule.warmup_steps is -1, it must be 0 or more"),
    ({"sections": "[schedule]\nend = -0.5"}, "schedule.end is -0.5, it must be 0 or more"),
    ({"sections": "[schedule]\nend = nan"}, "end is nan, it must be a finite number"),
    ({"sections": '[schedule]\ndecay = "exp"'}, "schedule.decay is 'exp': known are none, linear, cosine"),
    ({"sections": "[cache]\nsize = 0"}, "cache is 0: give a number of rows"),
    ({"sections": "[cache]\nsize = 1.5"}, "size is 1.5, it must be int or str"),
    ({"sections": "[cache]\nwindow = 0"}, "cache.window is 0, it must be from 1 to 64"),
    ({"sections": "[cache]\nwindow = 65"}, "cache.window is 65"),
    ({"sections": "[cache]\ndepth = -1"}, "cache.depth is -1, it must be 0 or more"),
    ({"sections": '[cache]\nindex = "tree"'}, "index is 'tree': known are auto, direct, hash, set-associative"),
    ({"sections": "[cache]\npolicy = 5"}, "policy is 5, it must be str"),
    ({"sections": '[heca]\nhot = "x"'}, "heca.hot is 'x': give a count"),
    ({"sections": "[heca]\nhot = 0"}, "heca.hot is 0: give a count"),
    ({"sections": "[heca]\nhot = 1" + "0" * 40}, "a count is 9223372036854775807 or less"),
    ({"sections": "[heca]\nhot = true"}, "hot is True, it must be int or str"),
    ({"sections": "[heca]\nsample = 0"}, "heca.sample is 0.0, it must be more than 0 and at most 1"),
    ({"sections": "[heca]\ndynamic = nan"}, "dynamic is nan, it must be a finite number"),
    ({"sections": '[heca]\nvictims = "oldest"'}, "heca.victims is 'oldest': known are lfu, lru"),
    ({"sections": '[heca]\nconsistency = "loose"'}, "heca.consistency is 'loose': known are exact, stale"),
    ({"sections": "[freqcache]\nwarmup_ratio = 2"}, "freqcache.warmup_ratio is 2.0, it must be from 0 to 1"),
    ({"sections": "[freqcache]\nbuffer_rows = 0"}, "freqcache.buffer_rows is 0, it must be 1 or more"),
    ({"sections": "[freqcache]\nsample = -1"}, "freqcache.sample is -1.0, it must be more than 0"),
]


@pytest.mark.parametrize(("lines", "message"), RUN_FILES, ids=[" ".join(lines.values()) for lines, _ in RUN_FILES])
def test_run_files(lines: dict[str, str], message: str, made: Made, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(SETTINGS.format(data=made.data, **{"top": "", "train": "", "sections": "", **lines}))
    refused(message, "train", path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "data: name a prepared directory"),
        (b"data = [", "this is not TOML"),
        (b"data = ['x']", "data is ['x'], it must be str"),
        (b"\xff\xfe", "this run file is not UTF-8, at byte 0"),
        (b'data = "a\x00b"', "this is not TOML: Illegal character"),
        (b"PK\x03\x04", "this is not TOML"),
        (b"\xef\xbb\xbfcolour = 1", "unknown 'colour'"),  # a byte order mark is no error
        (b"a = " + b"[" * 5000, "this is no run file: its values are nested too deeply"),
    ],
)
def test_files_that_are_no_run_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    refused(f"{path}: {message}" if content else message, "train", path)


def test_run_files_that_are_not_files(directory: Path) -> None:
    refused("here: this run file cannot be read: Is a directory", "train", directory)
    refused("missing.toml: there is no such file", "train", "missing.toml")
    refused("this run file cannot be read", "train", "")


@pytest.mark.parametrize("out", ["file", "file/below", "full"])
def test_out_that_cannot_be(out: str, made: Made) -> None:
    Path("file").touch()
    Path("full").mkdir()
    Path("full/something").touch()
    message = "exists and is not empty: choose another --out" if out == "full" else "file is a file: choose another"
    refused(message, "train", "--data", made.data, "--device", "cpu", "--out", out)


LONG = "x" * 300
OUTS = [
    ("", "out is empty: name a directory"),
    ("a\0b", "out is 'a\\x00b', and a path cannot have a NUL character: choose another --out"),
    (
        "dangling",
        "dangling is a symbolic link to nowhere, which is not there: choose another --out, or remove the link",
    ),
    ("dangling/below", "dangling is a symbolic link to nowhere, which is not there: choose another --out"),
    (LONG, "out: the name 'xxxxxxxxxxxxxxxxxxxx'… has 300 bytes, at most 255 are allowed: choose another --out"),
    (f"new/{LONG}/below", "the name 'xxxxxxxxxxxxxxxxxxxx'… has 300 bytes, at most 255 are allowed"),
    ("é" * 130, "has 260 bytes, at most 255 are allowed"),
    ("deep/" * 1000, "out: the path 'deep/deep/deep/deep/'… has 4,999 bytes, at most 3,840 are allowed"),
]


@pytest.mark.parametrize(("out", "message"), OUTS, ids=[message for _, message in OUTS])
@pytest.mark.parametrize("command", ["train", "profile", "prepare", "reproduce"])
def test_names_that_no_directory_can_have(command: str, out: str, message: str, made: Made) -> None:
    Path("dangling").symlink_to("nowhere")
    Path("log").write_text("1\n")
    arguments = {
        "train": ("--data", made.data, "--device", "cpu"),
        "profile": (made.data,),
        "prepare": ("criteo", "log"),
        "reproduce": ("freqcache", "table1", "--device", "cpu"),
    }[command]
    refused(message, command, *arguments, "--out", out)


def test_a_run_file_with_a_nul_character_in_its_out(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    content = SETTINGS.format(data=made.data, top="", train="", sections="")
    path.write_text(content.replace('out = "out"', 'out = "a\\u0000b"'))
    refused("out is 'a\\x00b', and a path cannot have a NUL character", "train", path)


def test_a_data_set_whose_name_leaves_no_room_for_the_temporary_one(made: Made) -> None:
    write_criteo_log(Path("log"), 20, seed=1)
    refused("File name too long", "prepare", "criteo", "log", "--out", "x" * 240)


@pytest.mark.parametrize("out", ["out", "new/deep/out", "empty"])
def test_a_run_that_fails_before_its_first_step_leaves_nothing(
    out: str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("empty").mkdir()

    def fails(*_: Any) -> None:
        raise ValueError("no step today")

    monkeypatch.setattr(run_module.Trainer, "_train", fails)
    refused(
        "no step today",
        "train", "--data", made.data, "--device", "cpu", "--model", "dlrm:rmc2", "--dim", 4, "--out", out,
    )  # fmt: skip


def test_a_run_that_fails_later_keeps_its_metrics(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_module, "save_model", fails)
    assert (
        "No space left on device"
        in call(
            "train", "--data", made.data, "--device", "cpu", "--model", "dlrm:rmc2", "--dim", 4, "--out", "out"
        ).stderr
    )
    assert Path("out/metrics.jsonl").read_text()


def test_a_directory_belongs_to_one_run() -> None:
    """The second run finds the directory empty, and loses it between that moment and its own beginning."""
    with run_directory("out") as directory:
        with pytest.raises(ValueError, match="out exists and is not empty"), run_directory("out"):
            pytest.fail("two runs have one directory")
        assert found(directory) == ["config.json"]


def test_of_two_runs_that_see_an_empty_directory_one_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotrows.train import directory as module

    monkeypatch.setattr(module, "check_free", lambda out: None)
    with run_directory("out"):
        with pytest.raises(ValueError, match="another run has just begun here"), run_directory("out"):
            pytest.fail("two runs have one directory")
        assert found(Path("out")) == ["config.json"]


def test_runs_of_the_same_second_get_directories_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda _: "20260101-000000")
    with run_directory(None) as first, run_directory(None) as second:
        assert [path.name for path in (first, second)] == ["20260101-000000", "20260101-000000-2"]


class Damage(NamedTuple):
    file: str
    content: bytes | dict[str, Any] | None  # None removes the file
    message: str


DAMAGES = [
    Damage("config.json", None, "is not a run directory: it has no config.json"),
    Damage("config.json", b"", "config.json is damaged"),
    Damage("config.json", b"{", "config.json is damaged"),
    Damage("config.json", b"\xff\xfe", "config.json is damaged"),
    Damage("config.json", b"[" * 100_000, "config.json is damaged"),
    Damage("config.json", b"[1]", "config.json is not the configuration of a run"),
    Damage("config.json", b"{}", "data: name a prepared directory"),
    Damage("config.json", b'{"colour": 1}', "unknown 'colour'; known are"),
    Damage("config.json", b'{"data": "x", "train": {"eval_batch_size": 0}}', "train.eval_batch_size is 0"),
    Damage("config.json", b'{"data": "x", "optimizer": {"lr": NaN}}', "lr is nan, it must be a finite number"),
    Damage("model.pt", None, "has no model.pt: train with save = true"),
    Damage("model.pt", b"", "model.pt is damaged, or not a model that hotrows has saved"),
    Damage("model.pt", b"PK\x03\x04 no archive", "model.pt is damaged"),
    Damage("model.pt", b"\x80\x04\x95 no pickle", "model.pt is damaged"),
    Damage("model.pt", {"weights": torch.zeros(2)}, "model.pt is not a model that hotrows has saved, it must have"),
    Damage(
        "model.pt", {"model": {}, "bags": {}, "tables": {}, "columns": [], "dense": ["I1"]}, "1 dense and 0 categorical"
    ),
    *(
        Damage(
            "model.pt",
            {"model": {}, "bags": {}, "tables": {}, "columns": [], "dense": [], **wrong},
            "model.pt is not a model that hotrows has saved",
        )
        for wrong in (
            {"model": {1: torch.zeros(2)}},
            {"bags": {1: torch.zeros(2)}},
            {"tables": {1: 2}},
            {"tables": {"C1": "2"}},
            {"columns": [1]},
            {"dense": [1]},
        )
    ),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.message)
def test_damaged_runs(damage: Damage, made: Made, directory: Path) -> None:
    shutil.copytree(made.run, "run")
    path = Path("run") / damage.file
    path.unlink()
    if isinstance(damage.content, bytes):
        path.write_bytes(damage.content)
    elif damage.content is not None:
        torch.save(damage.content, path)
    refused(damage.message, "evaluate", "run")


@pytest.mark.parametrize("num_rows", [0, -1])
def test_a_model_with_a_table_that_cannot_be(num_rows: int, made: Made) -> None:
    shutil.copytree(made.run, "run")
    saved = torch.load("run/model.pt", weights_only=True)
    saved["tables"]["C7"] = num_rows
    torch.save(saved, "run/model.pt")
    refused(f"run/model.pt is damaged: its table 'C7' has {num_rows} rows, not 1 or more", "evaluate", "run")


def test_a_run_on_a_relative_path_that_is_evaluated_elsewhere(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(made.run, "run")
    shutil.copytree(made.data, "data")
    path = Path("run/config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": "data"}))
    call("evaluate", "run", code=0)
    Path("elsewhere/data").mkdir(parents=True)
    monkeypatch.chdir("elsewhere")
    refused(
        f"there is no data set 'data' in {Path.cwd()}: the run was trained on it in the directory", "evaluate", "../run"
    )
    refused("so evaluate from there, or give its path with --data", "evaluate", "../run")
    call("evaluate", "../run", "--data", "../data", code=0)


def test_a_truncated_model(made: Made) -> None:
    shutil.copytree(made.run, "run")
    path = Path("run/model.pt")
    path.write_bytes(path.read_bytes()[:-1000])
    refused("model.pt is damaged", "evaluate", "run")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_model_with_one_wrong_bit(share: float, made: Made) -> None:
    shutil.copytree(made.run, "run")
    path = Path("run/model.pt")
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)
    refused("model.pt is damaged", "evaluate", "run")


def test_a_model_of_another_configuration(made: Made) -> None:
    shutil.copytree(made.run, "run")
    path = Path("run/config.json")
    config = json.loads(path.read_text())
    config["model"]["dim"] = 8
    path.write_text(json.dumps(config))
    refused("is not the model that run/config.json describes", "evaluate", "run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere is not a run directory"),
        (("",), "is not a run directory"),
        (("RUN", "--split", "holdout"), "split is 'holdout': known are train, valid, test"),
        (("RUN", "--split", ""), "split is '': known are"),
        (("RUN", "--data", "nowhere"), "there is no data set 'nowhere'"),
        (("RUN", "--data", ""), "is not a prepared data set"),
        (("RUN", "--data", "synthetic:avazu?samples=x"), "samples is 'x', give a whole number"),
    ],
)
def test_options_of_evaluate(arguments: tuple[str, ...], message: str, made: Made) -> None:
    refused(message, "evaluate", *(made.run if argument == "RUN" else argument for argument in arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch-size", "0"), "batch_size is 0"),
        (("--batch-size", "x"), "Invalid value for '--batch-size'"),
        (("--samples", "0"), "num_samples is 0"),
        (("--hit-rate", "2"), "hit_rate is 2.0, it must be between 0 and 1"),
        (("--hit-rate", "nan"), "hit_rate is nan, it must be between 0 and 1"),
        (("--memory", "lots"), "memory is 'lots', give bytes"),
        (
            ("--memory", "0GB"),
            """memory is '0GB', give bytes (2_000_000_000) or a text such as "2GB", more than nothing""",
        ),
        (("--memory", "-1GB"), "memory is '-1GB', give bytes"),
        (("--memory", "0.1KB"), "memory is 0.1KB, which is too little for a single row of 512 bytes"),
        (("--memory", "9" * 400 + "GB"), "999GB', give bytes"),
        (("--out", "file"), "file is a file: choose another --out"),
        (("--out", "file/below"), "file is a file: choose another --out"),
    ],
)
def test_options_of_profile(arguments: tuple[str, ...], message: str, made: Made) -> None:
    Path("file").touch()
    refused(message, "profile", made.data, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nobody",), "paper is 'nobody': known are"),
        (("heca", "fig99"), "heca has no 'fig99' to reproduce"),
        (("heca", "--scale", ""), "scale is '': known are small, full"),
        (("heca", "--steps", "-1"), "steps is -1, it must be 2 or more"),
        (("heca", "--device", "tpu"), "device is 'tpu': known are auto, cpu, cuda"),
        (("heca", "--device", ""), "device is '': known are"),
        (("heca", "--precision", "", "--device", "cpu"), "precision is '': allowed is fp32 on a CPU"),
        (("freqcache", "table1", "--data", "nowhere"), "there is no data set 'nowhere'"),
        (("freqcache", "table1", "--out", "file"), "file is a file: choose another --out"),
    ],
)
def test_options_of_reproduce(arguments: tuple[str, ...], message: str) -> None:
    Path("file").touch()
    refused(message, "reproduce", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("netflix", "log"), "netflix"),
        (("criteo", "nowhere"), "nowhere"),
        (("criteo", "log", "--min-count", "-1"), "min_count is -1, it must be from 1 to 2147483647"),
        (("criteo", "log", "--min-count", "x"), "Invalid value for '--min-count'"),
        (("criteo", "log", "--min-count", "9" * 30), "min_count is 999999999999999999999999999999, it must be from 1"),
        (("criteo", "log", "--seed", "9" * 30), "seed is 999999999999999999999999999999, it must be from -2147483647"),
        (("criteo", "log", "--memory-limit", "0GB"), "memory_limit='0GB': write a size such as"),
        (("criteo", "log", "--memory-limit", "1KB"), "the engine needs more memory"),
        (("criteo", "log", "--split", "alphabet"), "split is 'alphabet': known are time, day, random"),
        (("criteo", "log", "--valid", "-0.5"), "valid is -0.5, it must be from 0 to less than 1"),
        (("criteo", "log", "--valid", "nan"), "valid is nan, it must be from 0 to less than 1"),
        (("criteo", "log", "--valid", "0.5", "--test", "0.5"), "they must leave something for training"),
        (("criteo", "log", "--test", "2"), "test is 2.0, it must be from 0 to less than 1"),
        (("criteo", "log", "--engine", "abacus"), "engine is 'abacus': known are duckdb, spark"),
        (("criteo", "log", "--on-error", "pray"), "on_error is 'pray': known are stop, skip"),
        (("table", "log"), "config"),
        (("table", "log", "--config", "missing.toml"), "missing.toml"),
    ],
)
def test_options_of_prepare(arguments: tuple[str, ...], message: str) -> None:
    write_criteo_log(Path("log"), 20, seed=1)
    refused(message, "prepare", *arguments, "--out", "out")


def test_prepare_with_too_little_memory() -> None:
    write_criteo_log(Path("log"), 20_000, seed=1)
    message = "the engine needs more memory for this log than memory_limit=10MB allows: give a larger one, such as 1GB"
    refused(message, "prepare", "criteo", "log", "--memory-limit", "10MB", "--out", "out")


@pytest.mark.parametrize("phase", ["reading", "counting", "writing"])
def test_prepare_that_is_interrupted_leaves_nothing(phase: str) -> None:
    """The interrupt arrives while a query of this phase runs."""
    write_criteo_log(Path("log"), 20_000, seed=1)
    code = f"""if True:
        import os, signal, threading
        from hotrows.cli.main import app
        from hotrows.cli.show import Steps
        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests were started with it ignored
        show, seen = Steps.__call__, set()
        def interrupting(steps, step, done):
            show(steps, step, done)
            if step == {phase!r} and step not in seen:
                threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
            seen.add(step)
        Steps.__call__ = interrupting
        app(["prepare", "criteo", "log", "--out", "out"])
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Traceback" not in ended.stderr
    assert (ended.returncode, found(Path())) == (130, ["log"]), ended.stderr
    assert "hotrows: interrupted: out was not written" in ended.stderr
