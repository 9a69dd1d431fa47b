"""The part of `hotrows train --help` that the settings of a run and the registry of strategies decide."""

from typing import Any

import typer.core

from hotrows.cli.toml_text import as_toml

# The options that set one setting of a run file each: their help is that of the setting.
SETTINGS = {
    "data": "data", "model": "model.name", "dim": "model.dim", "strategy": "strategy", "cache": "cache.size",
    "policy": "cache.policy", "optimizer": "optimizer.name", "lr": "optimizer.lr",
    "dense_optimizer": "dense_optimizer.name", "dense_lr": "dense_optimizer.lr", "batch_size": "train.batch_size",
    "epochs": "train.epochs", "max_steps": "train.max_steps", "early_stopping": "train.early_stopping",
    "keep": "train.keep", "device": "device", "seed": "seed", "out": "out",
}  # fmt: skip


class TrainCommand(typer.core.TyperCommand):
    """A command whose help has that of the settings, and lists the registered strategies and all settings.

    The settings are read when the help is shown: importing them takes long, and a program may register strategies
    before.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from hotrows.options import find_option
        from hotrows.train.config import RunConfig, sections

        kinds: dict[str, type[Any]] = {"": RunConfig, **sections()}
        for parameter in self.params:
            if parameter.name in SETTINGS:
                section, _, name = SETTINGS[parameter.name].rpartition(".")
                parameter.help = find_option(kinds[section], name).full_help  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)
        show_strategies()
        show_settings()


def show_strategies() -> None:
    """Print every strategy."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from hotrows.strategies import STRATEGIES

    table = Table(title="Strategies", title_justify="left", title_style="bold", show_header=False, box=None)
    for name, kind in STRATEGIES.items():
        table.add_row(f"[cyan]{escape(name)}[/]", escape(kind.help))
    Console(highlight=False).print(table)


def show_settings() -> None:
    """Print all settings in the form of a run file."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from hotrows.options import describe_options
    from hotrows.train.config import RunConfig, sections

    console = Console(highlight=False)
    console.print("\nSettings in a run file, with their defaults:")
    kinds: dict[str, type[Any]] = {"": RunConfig, **sections()}
    for section, kind in kinds.items():
        title = f"\\[{section}]" if section else None
        table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None)
        table.add_column(no_wrap=True)
        table.add_column()
        for setting in describe_options(kind):
            line = f"{setting.name} = {as_toml(setting.default)}"
            table.add_row(f"[cyan]{escape(line)}[/]", escape(setting.full_help))
        console.print(table)
