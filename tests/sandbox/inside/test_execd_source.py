"""Imports of the execution server: every sandbox is a fork of the process that loaded them."""

import ast
import subprocess
import sys
from pathlib import Path

import ptyprocess
import pytest

from prorl_service.sandbox.guest import execd

pytestmark = pytest.mark.unprivileged

SOURCES = sorted(Path(execd.__path__[0]).glob("*.py"))
LARGE = {
    "asyncio",
    "concurrent",
    "dataclasses",
    "inspect",
    "logging",
    "ssl",
    "subprocess",
    "urllib",
}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_execd_imports_only_stdlib_and_ptyprocess_and_only_at_the_top(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [] if node.level else [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        assert node in tree.body
        assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names, "ptyprocess"}


@pytest.mark.processes
def test_execd_loads_no_large_modules() -> None:
    paths = [str(Path(package.__path__[0]).parent) for package in (execd, ptyprocess)]
    code = f"import sys; sys.path += {paths}; import execd.zygote; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-I", "-S", "-c", code], text=True)
    assert "execd.server" in loaded.split()
    assert not LARGE & {*loaded.split()}
