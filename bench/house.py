"""The shape of the code: rooms, import contracts, lengths of functions and files, docstrings.

`python -m bench.house` takes seconds. Options give the times of the test suites.
"""

import ast
import re
import statistics
import subprocess
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from bench import result
from prorl_service.cli.program import run

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "prorl_service"
SOURCES = ("prorl_service", "plugins", "recipes", "bench", "tests")
AT_TOP = {"__init__", "errors", "metrics", "testing", "local"}
"""Modules that may stand at the top of the package."""
FRAGMENTS = re.compile(r"(Of|By|As|In|For|To|With|From|At|If|Until|Whether|Where)[ ,]", re.ASCII)
"""Beginnings of docstrings that do not stand alone."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (*FUNCTIONS, ast.ClassDef, ast.Module)


def main(*, test_fast_s: float | None = None, test_minutes_root: float | None = None) -> None:
    """Measure the shape of the code.

    Parameters
    ----------
    test_fast_s
        Seconds that `make test-fast` took.
    test_minutes_root
        Minutes that `make test` took as root.
    """
    texts = {path: path.read_text() for path in _files()}
    trees = [ast.parse(text) for text in texts.values()]
    lengths = sorted(chain.from_iterable(map(_lengths, trees)))
    kept, broken = _contracts()
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    rooms = [path for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    headline = {
        "rooms_at_top": len(rooms),
        "loose_modules_at_top": len(modules - AT_TOP),
        "import_contracts_kept": kept,
        "import_contracts_broken": broken,
        "function_median_lines": statistics.median(lengths),
        "function_p95_lines": lengths[round(0.95 * len(lengths)) - 1],
        "function_max_lines": lengths[-1],
        "file_max_lines": max(len(text.splitlines()) for text in texts.values()),
        "docstrings_beginning_with_of": sum(
            FRAGMENTS.match(text) is not None for tree in trees for text in _docstrings(tree)
        ),
        "test_fast_s": test_fast_s,
        "test_minutes_root": test_minutes_root,
    }
    result.write(
        "house", [{"measure": name, "value": value} for name, value in headline.items()], headline
    )


def _files() -> Iterable[Path]:
    return chain.from_iterable((ROOT / source).rglob("*.py") for source in SOURCES)


def _lengths(tree: ast.Module) -> Iterator[int]:
    """Yields the lines of each function, decorators and docstring included."""
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            yield (node.end_lineno or first) - first + 1


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Yields docstrings of modules, classes and functions, and strings below attributes."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            yield ast.get_docstring(node) or ""
            pairs = zip(node.body, node.body[1:], strict=False)
            for before, after in pairs:
                if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                    text = after.value
                    if isinstance(text, ast.Constant) and isinstance(text.value, str):
                        yield text.value


def _contracts() -> tuple[int, int]:
    """Returns the numbers of kept and of broken contracts."""
    command = [".venv/bin/lint-imports", "--no-logo"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    verdicts = [line.rsplit(" ", 1)[-1] for line in said.splitlines()]
    return verdicts.count("KEPT"), verdicts.count("BROKEN")


if __name__ == "__main__":
    run(main)
