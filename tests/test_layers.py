"""What may import what, and that every module says what it exports."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("analysis", "calibration", "probe")  # each may import those before it
PURE = {"aiortc", "aioice", "pylibsrtp", "asyncio", "socket", "subprocess", "sounddevice", "httpx", "websockets"}

MODULES = sorted(path.relative_to(ROOT) for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield node.module or ""


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def is_empty(path: Path) -> bool:
    """A package's `__init__.py` of nothing but its docstring exports nothing."""
    body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    return path.name == "__init__.py" and all(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body
    )


def test_there_is_something_to_look_at() -> None:
    assert {path.parts[0] for path in MODULES} == set(LAYERS)
    assert Path("analysis/audibility.py") in MODULES


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_every_name_that_a_module_exports_exists(path: Path) -> None:
    if is_empty(path) or path.name == "__main__.py":  # which is there to be run
        return
    module = importlib.import_module(module_name(path))
    exported = getattr(module, "__all__", None)
    assert exported is not None, f"{path}: no __all__"
    assert len(set(exported)) == len(exported), f"{path}: a name twice in __all__"
    for name in exported:
        assert not name.startswith("_"), f"{path}: {name} is private"
        assert hasattr(module, name), f"{path}: {name} is in __all__ and not in the module"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_point_towards_purity(path: Path) -> None:
    layer = path.parts[0]
    above = set(LAYERS[LAYERS.index(layer) + 1 :])
    found = {name.split(".")[0] for name in imports(path)}
    assert not found & above
    if layer == "analysis":
        assert not found & PURE


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_only_the_clock_module_reads_a_clock(path: Path) -> None:
    if path != Path("probe/clock.py"):
        assert "time" not in set(imports(path))
        text = (ROOT / path).read_text(encoding="utf-8")
        assert "datetime.now(" not in text
        assert "perf_counter" not in text
