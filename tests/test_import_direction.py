"""Imports between the folders of the package go one way, so that each can be read without those above it.

    ops ← stores ← optim ← cache ← loop ← nn ← graphs ← strategies ← report ← train ← reproduce ← cli

`runtime` is below all of them. What makes a dense model fast (`dense`) is optional. Therefore no module of the core
imports it, and only a function that a user asks to use it may.
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1] / "src" / "hotrows"

# Each unit (a folder or a module of the package) may import the units of the layers before its own.
CORE = [
    {"runtime", "errors", "json_text", "batch", "table"},
    {"options"},
    {"ops"},
    {"stores"},
    {"optim"},
    {"cache"},
    {"loop", "simulate"},
    {"nn"},
    {"graphs"},
    {"hotrows"},  # the package itself: what `import hotrows` loads
]
# Beside the core, each unit may import only what it names here.
BESIDE = {
    "dense": {"runtime"},
    "models": {"dense"},
    "data": {"hotrows", "batch", "table", "errors", "json_text", "options", "ops", "stores"},
    "profile": {"batch", "cache", "data"},
}
# A function of these may import what is optional, when a user asks for it.
OPTIONAL = {("graphs", "dense")}
# Above the core, each unit may import the core, what is beside it, and the units before its own.
ABOVE = ["strategies", "report", "train", "reproduce", "cli"]


class Import(NamedTuple):
    importer: str  # a module
    imported: str
    kind: str  # "module", "function" or "typing": where the statement is
    line: int


def unit_of(module: str) -> str:
    """The folder or module of the package that a module belongs to."""
    return module.split(".")[1] if "." in module else module


def allowed_for(unit: str) -> set[str]:
    below: set[str] = set()
    for layer in CORE:
        if unit in layer:
            return below
        below |= layer
    if unit in BESIDE:
        return BESIDE[unit]
    return below | BESIDE.keys() | set(ABOVE[: ABOVE.index(unit)])


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports_of(module: str) -> Iterator[Import]:
    """What a module imports from the package, wherever in its file."""
    yield from _imports_in(ast.parse(MODULES[module].read_text(encoding="utf-8")), module, "module")


def _imports_in(node: ast.AST, module: str, kind: str) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inner = kind
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = "function"
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            inner = "typing"
        names: list[str] = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{module}, line {child.lineno}: imports within the package are absolute"
            given = child.module or ""
            inside = [f"{given}.{alias.name}" for alias in child.names]
            names = [name if name in MODULES else given for name in inside]  # a module of a package, or a name in it
        for name in names:
            if name == "hotrows" or name.startswith("hotrows."):
                assert name in MODULES, f"{module}, line {child.lineno}: there is no module {name}"
                yield Import(module, name, kind, child.lineno)
        yield from _imports_in(child, module, inner)


def test_every_unit_has_its_layer() -> None:
    known = set().union(*CORE) | BESIDE.keys() | set(ABOVE)
    assert {unit_of(module) for module in MODULES} == known


@pytest.mark.parametrize("kind", ["module", "function", "typing"])
def test_imports_go_one_way(kind: str) -> None:
    wrong = [
        f"{each.importer}, line {each.line}: imports {each.imported}"
        for module in MODULES
        for each in imports_of(module)
        if each.kind == kind
        and unit_of(each.imported) != unit_of(module)
        and unit_of(each.imported) not in allowed_for(unit_of(module))
        and not (kind == "function" and (unit_of(module), unit_of(each.imported)) in OPTIONAL)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_through_others() -> None:
    graph = {
        module: {each.imported for each in imports_of(module) if each.kind == "module" and each.imported != module}
        for module in MODULES
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules
