"""The program's commands. Each parses its options, builds what it needs and runs it."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hotrows.cli.errors import reported_plainly
from hotrows.cli.reproduce import reproduce
from hotrows.cli.strategy_help import TrainCommand
from hotrows.cli.verify import verify
from hotrows.data.prepare_defaults import DEFAULTS

app = typer.Typer(
    help="Train click models whose embedding tables are far larger than the device's memory, exactly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line, for machines.")]


@app.command()
def prepare(
    kind: Annotated[str, typer.Argument(help="What the log is: criteo, avazu, taobao, or table (any CSV or Parquet).")],
    input: Annotated[Path, typer.Argument(help="The log: a file (plain or .gz), or a directory of days.")],
    out: Annotated[str, typer.Option(help="Where the data set goes; must not exist.")],
    config: Annotated[Path | None, typer.Option(help="For table: a TOML file that names the columns.")] = None,
    min_count: Annotated[
        int, typer.Option(help="Values seen less often in training share one id, 'rare'.")
    ] = DEFAULTS.min_count,
    split: Annotated[
        str, typer.Option(help="How to split: time (the last part is the test), day (the last day is), or random.")
    ] = DEFAULTS.split,
    valid: Annotated[float, typer.Option(help="Share of the samples for validation.")] = DEFAULTS.valid,
    test: Annotated[float, typer.Option(help="Share of the samples for the test.")] = DEFAULTS.test,
    seed: Annotated[int, typer.Option(help="Seed of a random split.")] = DEFAULTS.seed,
    engine: Annotated[str, typer.Option(help="duckdb, or spark for logs that outgrow one machine.")] = DEFAULTS.engine,
    memory_limit: Annotated[
        str, typer.Option(help="Memory the engine may take; the rest goes to disk.")
    ] = DEFAULTS.memory_limit,
    on_error: Annotated[
        str, typer.Option(help="What to do with bad lines: stop, or skip and count them.")
    ] = DEFAULTS.on_error,
    as_json: JsonFlag = False,
) -> None:
    """Turn a click log into a data set: Parquet shards, a vocabulary and counts."""
    from hotrows.cli.show import Steps, show_prepared
    from hotrows.data.prepare import prepare as run_prepare

    with reported_plainly(), Steps() as steps:
        report = run_prepare(
            kind, input, out, config=config, min_count=min_count, split=split, valid=valid, test=test, seed=seed,
            engine=engine, memory_limit=memory_limit, on_error=on_error, progress=steps,
        )  # fmt: skip
    show_prepared(report)
    _print_json(as_json, report.to_json())


app.command()(verify)


@app.command()
def profile(
    data: Annotated[str, typer.Argument(help="A prepared directory, or synthetic:criteo-kaggle and the like.")],
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
            (directory / "profile.json").write_text(json.dumps(found.to_json(), indent=2) + "\n")
            plot(found, directory / "profile.png")
            typer.echo(f"written: {directory / 'profile.json'}, {directory / 'profile.png'}")
    _print_json(as_json, found.to_json())


@app.command(cls=TrainCommand)
def train(
    run: Annotated[Path | None, typer.Argument(help="A run file (TOML). The options below overrule it.")] = None,
    data: Annotated[str | None, typer.Option(help="A prepared directory, or synthetic:criteo-kaggle.")] = None,
    model: Annotated[str | None, typer.Option(help="dlrm, dlrm:freqcache, wide-deep, deepfm, dcn, dcn-v2, …")] = None,
    dim: Annotated[int | None, typer.Option(help="Width of the embedding rows.")] = None,
    strategy: Annotated[str | None, typer.Option(help="How rows get to the device.")] = None,
    cache: Annotated[str | None, typer.Option(help="Rows on the device: 500000, 1.5% or 2GB.")] = None,
    policy: Annotated[str | None, typer.Option(help="Which rows stay: lookahead, lru, lfu, frequency, random.")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="Optimizer of the rows: sgd, adagrad, row-wise-adagrad, adam.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the rows and of the dense part.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per step.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training split.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop after this many steps.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, or auto.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything that is random.")] = None,
    out: Annotated[str | None, typer.Option(help="The run directory; by default a new one in runs/.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Write trace.json, a timeline for Perfetto.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a model, evaluate it, and write a run directory with a report."""
    with reported_plainly():
        config = _configured(
            run,
            {
                "data": data, "strategy": strategy, "device": device, "seed": seed, "out": out, "model.name": model,
                "model.dim": dim, "cache.size": cache, "cache.policy": policy, "optimizer.name": optimizer,
                "optimizer.lr": lr, "dense_optimizer.lr": lr, "train.batch_size": batch_size, "train.epochs": epochs,
                "train.max_steps": max_steps,
            },
        )  # fmt: skip
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
    data: Annotated[str | None, typer.Option(help="Another data set of the same columns.")] = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    as_json: JsonFlag = False,
) -> None:
    """Measure a trained model again, on its own data or on another data set."""
    from hotrows.train.run import evaluate_run

    with reported_plainly():
        found = evaluate_run(run, data, split)
    metrics = found[split]
    typer.echo(
        f"{found['model']} on {split} of {found['data']}: AUC {metrics['auc']:.5f}, log loss {metrics['logloss']:.5f}, "
        f"accuracy {metrics['accuracy']:.4f}"
    )
    _print_json(as_json, found)


app.command()(reproduce)


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


def _print_json(wanted: bool, content: dict[str, Any]) -> None:
    if wanted:
        sys.stdout.flush()
        print(json.dumps(content))


if __name__ == "__main__":
    app()
