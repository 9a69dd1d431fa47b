"""The program's commands. Each parses its options, builds what it needs and runs it."""

import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

import hotrows
from hotrows.cli.errors import nothing_written, reported_plainly
from hotrows.cli.reproduce import ReproduceCommand, reproduce
from hotrows.cli.toml_text import as_run_file
from hotrows.cli.train_help import SETTINGS, TrainCommand
from hotrows.cli.verify import verify
from hotrows.data.prepare_defaults import DEFAULTS, PrepareDefaults
from hotrows.data.shapes import SHAPES
from hotrows.data.synthetic import PREFIX
from hotrows.json_text import json_text
from hotrows.options import find_option

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

T = TypeVar("T")
Setting = Annotated[T | None, typer.Option()]  # a setting of a run file, whose help `TrainCommand` adds
SYNTHETIC = ", ".join(PREFIX + name for name in SHAPES)
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line, for machines.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hotrows {hotrows.__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Train click models whose embedding tables are far larger than the device's memory, exactly."""


def _prepare_help(name: str) -> str:
    return find_option(PrepareDefaults, name).full_help


@app.command()
def prepare(
    kind: Annotated[str, typer.Argument(help="What the log is: criteo, avazu, taobao, or table (any CSV or Parquet).")],
    input: Annotated[Path, typer.Argument(help="The log: a file (plain or .gz), or a directory of days.")],
    out: Annotated[str, typer.Option(help="Where the data set goes; must not exist.")],
    config: Annotated[Path | None, typer.Option(help="For table: a TOML file that names the columns.")] = None,
    vocabulary: Annotated[
        Path | None,
        typer.Option(help="A prepared data set, whose vocabulary is used: for logs to evaluate its models on."),
    ] = None,
    min_count: Annotated[int, typer.Option(help=_prepare_help("min_count"))] = DEFAULTS.min_count,
    split: Annotated[str, typer.Option(help=_prepare_help("split"))] = DEFAULTS.split,
    valid: Annotated[float, typer.Option(help=_prepare_help("valid"))] = DEFAULTS.valid,
    test: Annotated[float, typer.Option(help=_prepare_help("test"))] = DEFAULTS.test,
    seed: Annotated[int, typer.Option(help=_prepare_help("seed"))] = DEFAULTS.seed,
    engine: Annotated[str, typer.Option(help=_prepare_help("engine"))] = DEFAULTS.engine,
    memory_limit: Annotated[str, typer.Option(help=_prepare_help("memory_limit"))] = DEFAULTS.memory_limit,
    on_error: Annotated[str, typer.Option(help=_prepare_help("on_error"))] = DEFAULTS.on_error,
    as_json: JsonFlag = False,
) -> None:
    """Turn a click log into a data set: Parquet shards, a vocabulary and counts."""
    from hotrows.cli.show import Steps, show_prepared
    from hotrows.data.prepare import prepare as run_prepare

    with reported_plainly(), nothing_written(out), Steps() as steps:
        report = run_prepare(
            kind, input, out, config=config, min_count=min_count, split=split, valid=valid, test=test, seed=seed,
            engine=engine, memory_limit=memory_limit, on_error=on_error, vocabulary=vocabulary,
            progress=steps,
        )  # fmt: skip
    show_prepared(report)
    _print_json(as_json, report.to_json())


app.command()(verify)


@app.command()
def profile(
    data: Annotated[str, typer.Argument(help=f"A prepared directory, or {SYNTHETIC}.")],
    batch_size: Annotated[int, typer.Option(help="Samples per batch, for the miss-ratio curve.")] = 2048,
    samples: Annotated[int, typer.Option(help="Samples to read.")] = 1_000_000,
    hit_rate: Annotated[float | None, typer.Option(help="Suggest a cache for this hit rate, such as 0.9.")] = None,
    memory: Annotated[str | None, typer.Option(help="Suggest a cache for this much device memory: 2GB.")] = None,
    out: Annotated[str | None, typer.Option(help="Also write profile.json and profile.png here.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Show what the data looks like: frequencies, duplicates in a batch, misses by cache size."""
    from hotrows.cli.show import Steps
    from hotrows.data.dataset import open_dataset
    from hotrows.data.directories import check_directory
    from hotrows.profile import plot, show
    from hotrows.profile import profile as run_profile

    with reported_plainly():
        directory = None if out is None else check_directory(out)
        with Steps() as steps:
            found = run_profile(
                open_dataset(data), batch_size=batch_size, num_samples=samples, seed=seed, hit_rate=hit_rate,
                memory=memory, progress=steps,
            )  # fmt: skip
        show(found)
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "profile.json").write_text(json_text(found.to_json(), indent=2) + "\n")
            plot(found, directory / "profile.png")
            typer.echo(f"written: {directory / 'profile.json'}, {directory / 'profile.png'}")
    _print_json(as_json, found.to_json())


@app.command(cls=TrainCommand)
def train(
    run: Annotated[Path | None, typer.Argument(help="A run file (TOML). The options below overrule it.")] = None,
    data: Setting[str] = None,
    model: Setting[str] = None,
    dim: Setting[int] = None,
    strategy: Setting[str] = None,
    cache: Setting[str] = None,
    policy: Setting[str] = None,
    optimizer: Setting[str] = None,
    lr: Setting[float] = None,
    dense_optimizer: Setting[str] = None,
    dense_lr: Setting[float] = None,
    batch_size: Setting[int] = None,
    epochs: Setting[int] = None,
    max_steps: Setting[int] = None,
    early_stopping: Setting[int] = None,
    keep: Setting[str] = None,
    device: Setting[str] = None,
    seed: Setting[int] = None,
    out: Setting[str] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Write trace.json, a timeline for Perfetto.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings of this run as a run file, and train nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a model, evaluate it, and write a run directory with a report."""
    with reported_plainly():
        given = {
            "data": data, "model": model, "dim": dim, "strategy": strategy, "cache": cache, "policy": policy,
            "optimizer": optimizer, "lr": lr, "dense_optimizer": dense_optimizer, "dense_lr": dense_lr,
            "batch_size": batch_size, "epochs": epochs, "max_steps": max_steps, "early_stopping": early_stopping,
            "keep": keep, "device": device, "seed": seed, "out": out,
        }  # fmt: skip
        config = _configured(run, {SETTINGS[name]: value for name, value in given.items()})
        if print_config:
            _print_config(config, as_json)
            return
        from hotrows.train.run import run as run_training

        finished = run_training(config, trace=trace)
    from hotrows.cli.show import show_run

    show_run(finished)
    _print_json(as_json, finished.summary)
    if finished.summary["interrupted"]:
        raise typer.Exit(130)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    data: Annotated[
        str | None, typer.Option(help=f"Another data set of the same columns: a prepared directory, {SYNTHETIC}.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    as_json: JsonFlag = False,
) -> None:
    """Measure a trained model again, on its own data or on another data set."""
    from hotrows.report.units import fixed
    from hotrows.train.run import evaluate_run

    with reported_plainly():
        found = evaluate_run(run, data, split)
    metrics = found[split]
    typer.echo(
        f"{found['model']} on {split} of {found['data']}: AUC {fixed(metrics['auc'], 5)}, "
        f"log loss {metrics['logloss']:.5f}, accuracy {metrics['accuracy']:.4f}"
    )
    _print_json(as_json, found)


app.command(cls=ReproduceCommand)(reproduce)


@app.command()
def doctor(as_json: JsonFlag = False) -> None:
    """Show what this machine has, and which parts of it hotrows will use."""
    from hotrows.cli.doctor import examine, show

    found = examine()
    show(found)
    _print_json(as_json, found)


def _configured(path: Path | None, overrules: dict[str, Any]) -> Any:
    """The run of a run file, with the options of the command line in place of the file's."""
    from hotrows.train.config import RunConfig, read_run

    content = (RunConfig() if path is None else read_run(path)).to_json()
    for key, value in overrules.items():
        if value is not None:
            section, _, name = key.rpartition(".")
            (content[section] if section else content)[name] = value
    return RunConfig.from_dict(content, "options")


def _print_config(config: Any, as_json: bool) -> None:
    """Print a run file, or one JSON object with the same settings, if they are allowed."""
    from hotrows.train.optimizers import check_optimizers

    config.check()
    check_optimizers(config)
    content = config.to_json()
    sys.stdout.write(json_text(content) + "\n" if as_json else as_run_file(content))


def _print_json(wanted: bool, content: dict[str, Any]) -> None:
    if wanted:
        sys.stdout.flush()
        print(json_text(content))


if __name__ == "__main__":
    app()
