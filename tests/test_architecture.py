"""The house of the package: imports run downwards, heavy libraries stay in their rooms, files stay short."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "nccl_bench"
STEPS = (
    ("errors",),
    ("units", "inputs"),
    ("collectives", "dtypes", "groups"),
    ("records",),
    ("fabric", "launch", "results"),
    ("measure",),
    ("verdict", "training"),
    ("flows", "report"),
    ("cli",),
)
"""Who may import whom: only rooms on an earlier step, or its own. flows and report are one step and never meet."""
STEP = {room: number for number, rooms in enumerate(STEPS) for room in rooms}
TORCH_HOMES = {
    "measure.world",
    "measure.ops",
    "measure.clocks",
    "measure.sweep",
    "measure.data",
    "measure.events",
    "measure.pairs",
    "measure.gemm",
    "measure.overlap",
}

pytestmark = pytest.mark.pure


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, without the package's own."""
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path for path in PACKAGE.rglob("*.py")}


def imports_of(path: Path, name: str) -> set[str]:
    """The package's modules that a file imports, in every spelling: absolute, relative, in functions, under TYPE_CHECKING."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = ["nccl_bench", *name.split(".")][: -node.level or None]
                base = ".".join([*parents, base]).rstrip(".")
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in ("import_module", "__import__"):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    known = set(modules())
    inside = {module.removeprefix("nccl_bench.") for module in found if module.startswith("nccl_bench.")}
    return {module for module in inside if module in known}


def room(module: str) -> str:
    """The first part of a dotted name."""
    return module.split(".", 1)[0]


@pytest.mark.parametrize("name", sorted(set(modules()) - {"__init__", "__main__"}))
def test_imports_run_downwards(name):
    for imported in imports_of(modules()[name], name):
        same = room(imported) == room(name)
        assert same or STEP[room(imported)] < STEP[room(name)], f"{name} imports {imported}"


def test_the_page_on_the_structure_names_every_room_in_this_order():
    page = (ROOT / "docs" / "explanation" / "structure.md").read_text()
    cells = {word.strip("`/ ") for line in page.splitlines() if line.startswith("| `") for word in line.split("|")[1].split(",")}
    order = next(line for line in page.splitlines() if line.startswith("errors < "))

    assert cells == {room(name) for name in modules()} - {"__init__", "__main__"}
    assert order == " < ".join(" ".join(step) for step in STEPS)


def test_every_room_says_what_it_answers():
    for folder in (path for path in PACKAGE.iterdir() if any(path.glob("*.py"))):
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_no_module_imports_itself_through_others():
    graph = {name: imports_of(path, name) for name, path in modules().items()}

    def reach(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            for following in graph[todo.pop()] - seen:
                seen.add(following)
                todo.append(following)
        return seen

    type_only = {("measure.ops", "measure.world"), ("measure.world", "measure.ops")}
    cycles = {name for name in graph if name in reach(name)}
    assert not cycles or cycles == {pair[0] for pair in type_only}


def test_only_the_measuring_homes_load_torch():
    free = sorted(set(modules()) - TORCH_HOMES - {"__main__"})
    code = (
        "import importlib, sys\n"
        f"for name in {free!r}:\n"
        "    importlib.import_module('nccl_bench' if name == '__init__' else 'nccl_bench.' + name)\n"
        "    assert 'torch' not in sys.modules, name\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("library", "homes"),
    [("pandas", ("verdict.", "report.")), ("matplotlib", ("report.charts",)), ("torch", (*TORCH_HOMES, "measure.", "launch.facts"))],
)
def test_heavy_libraries_stay_in_their_rooms(library, homes):
    for name, path in modules().items():
        loaded = {
            word.split(".", 1)[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for word in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        }
        if library in loaded:
            assert name.startswith(homes), f"{name} imports {library}"
            assert name != "report.terminal"


def test_no_module_is_longer_than_400_lines():
    assert {name: n for name, path in modules().items() if (n := len(path.read_text().splitlines())) > 400} == {}
