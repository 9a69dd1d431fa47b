"""Write docs/configuration.md: every setting of a run file and of the file of `hotrows prepare table`.

    python tools/configuration.py [--check]

The page is made from the dataclasses that read the files, so it says what the program does. With --check nothing is
written, and the exit code is 1 if the page is not the one that would be written.
"""

import argparse
import sys
import types
import typing
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from hotrows.cli.toml_text import as_toml
from hotrows.cli.train_help import SETTINGS
from hotrows.data.prepare.table import TableSettings
from hotrows.models import MODELS, options_of
from hotrows.options import Option, describe_options
from hotrows.strategies import STRATEGIES
from hotrows.train.config import RunConfig, sections

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false"}

HEAD = """\
# Settings

<!-- Written by tools/configuration.py: change the dataclasses it reads, and run it again. -->

A run and a log of your own are described by one TOML file each. This page lists all their settings. What is left out
has the default. An unknown setting, or a value that is not allowed, is an error that says what is.

## Run files

`hotrows train RUN.toml` trains what the file says. An option of the command line overrules the file, so
`hotrows train --data data --cache 5%` needs none. `--print-config` trains nothing and prints all settings that the run
would have as a run file, so `hotrows train --data data --cache 5% --print-config > run.toml` makes one to edit. A run
directory's `config.json` has all settings of its run.

```toml
data = "synthetic:avazu?scale=0.01&samples=20000"

[model]
name = "dlrm:rmc2"

[cache]
size = "5%"

[optimizer] # of the embedding rows
name = "adagrad"
lr = 0.05

[dense_optimizer]
name = "adam"
lr = 0.001
```
"""

TABLE_FILE = """\
## Files of `hotrows prepare table`

`hotrows prepare table LOG --config COLUMNS.toml --out DIRECTORY` reads any CSV or Parquet log. The file says which of
its columns to use. A dense value that is empty or NaN is missing, and becomes 0. One that is infinite or beyond float32
is an error, as is a time that is missing, infinite, NaN or no possible date. Fractions are allowed in all dense and
numeric time columns.

```toml
label = "is_attributed"
categorical = ["ip", "app", "device", "os", "channel"]
time = "click_time"
```
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, "### At the top of the file", table(RunConfig, "")]
    for section, kind in sections().items():
        parts += [f"### [{section}]", _about(section, kind), table(kind, section)]
        if section == "model":
            parts += ["Beside these, the section has the options of its model:", _model_options()]
    parts += [TABLE_FILE, table(TableSettings)]
    return "\n".join(part if part.endswith("\n") else part + "\n" for part in parts)


def _about(section: str, kind: type[Any]) -> str:
    """What a section is for: the docstring of its dataclass, without the words that the heading has already."""
    if section in STRATEGIES:
        return f"Used by strategy `{section}`. {STRATEGIES[section].help}"
    said = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    _, _, about = said.partition(": ")
    assert about, f"the docstring of {kind.__name__} must begin with 'Section [{section}]: '"
    return about[0].upper() + about[1:]


def _model_options() -> str:
    """The options of each model, with their defaults."""
    lines = [_row(["model", "options and their defaults"]), _row(["---"] * 2)]
    for name in MODELS:
        options = [f"`{option} = {_as_option(parameter.default)}`" for option, parameter in options_of(name).items()]
        lines.append(_row([name, ", ".join(options)]))
    return "\n".join(lines) + "\n"


def _as_option(default: Any) -> str:
    return as_toml(list(default) if isinstance(default, tuple) else default)


def table(kind: type[Any], section: str | None = None) -> str:
    """The settings of a section as a table, with the options of the command line if it has a section."""
    options = {setting: option.replace("_", "-") for option, setting in SETTINGS.items()}
    has_option = [f"{section}.{each.name}".strip(".") in options for each in describe_options(kind)]
    columns = ["setting", "default", "value", "meaning"] + (
        ["option"] if section is not None and any(has_option) else []
    )
    lines = [_row(columns), _row(["---"] * len(columns))]
    for each in describe_options(kind):
        assert each.help, f"{kind.__name__}.{each.name} has no help"
        cells = [f"`{each.name}`", _default(each), _value(each), each.help]
        if len(columns) > len(cells):
            option = options.get(f"{section}.{each.name}".strip("."))
            cells.append(f"`--{option}`" if option else "")
        lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(setting: Option) -> str:
    if setting.default is MISSING:
        return "must be given"
    value = list(setting.default) if isinstance(setting.default, tuple) else setting.default
    return "left out" if value in (None, "") else f"`{as_toml(value)}`"


def _value(setting: Option) -> str:
    """The type, and what is allowed of it."""
    named = [f"`{choice}`" for choice in setting.choices]
    if named or setting.also:
        return " or ".join(part for part in (", ".join(named), setting.also) if part)
    kind = _type_name(setting.kind)
    return f"{kind}, {setting.allowed}" if setting.allowed else kind


def _type_name(kind: Any) -> str:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_type_name(each) for each in typing.get_args(kind) if each is not types.NoneType)
    if typing.get_origin(kind) in (list, tuple):
        return f"list of {_type_name(typing.get_args(kind)[0])}s"
    return TYPES[kind]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page is not current")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE.name} is not current: run python tools/configuration.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
