import ast
import sys
from pathlib import Path

import pytest

from prorl_service.sandbox.guest import execd

SOURCES = sorted(Path(execd.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_it_is_self_contained_and_reads_as_python_3_8(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names, "ptyprocess"}
