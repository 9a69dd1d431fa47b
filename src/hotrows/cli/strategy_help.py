"""The part of `hotrows train --help` that the registry of strategies decides."""

import json
from typing import Any

import typer.core


class TrainCommand(typer.core.TyperCommand):
    """A command whose help lists the registered strategies and their settings.

    The registry is read when the help is shown: importing it takes long, and a program may register strategies first.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from hotrows.strategies import STRATEGIES

        for parameter in self.params:
            if parameter.name == "strategy":
                parameter.help = f"How rows get to the device: {', '.join(STRATEGIES)}."  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)
        show_strategies()


def show_strategies() -> None:
    """Print every strategy, and its settings in the form of a run file."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from hotrows.strategies import STRATEGIES, CacheSettings, option_sections
    from hotrows.strategies.options import describe_options

    console = Console(highlight=False)
    table = Table(title="Strategies", title_justify="left", title_style="bold", show_header=False, box=None)
    for name, kind in STRATEGIES.items():
        table.add_row(f"[cyan]{escape(name)}[/]", escape(kind.help))
    console.print(table)
    console.print("\nSettings in a run file, with their defaults:")
    sections: dict[str, type[Any]] = {"cache": CacheSettings, **option_sections()}
    for section, options_type in sections.items():
        table = Table(title=f"\\[{section}]", title_justify="left", title_style="bold", show_header=False, box=None)
        table.add_column(no_wrap=True)
        table.add_column()
        for setting in describe_options(options_type):
            line = f"{setting.name} = {_toml(setting.default)}"
            table.add_row(f"[cyan]{escape(line)}[/]", escape(setting.help))
        console.print(table)


def _toml(value: Any) -> str:
    """A default in the syntax of a run file. TOML has no null, so a run file leaves out a setting that is None."""
    return "(unset)" if value is None else json.dumps(value, ensure_ascii=False)
