"""Arguments for the SWE recipe's commands in tests."""

from pathlib import Path

from recipes.swebench.rows import write_rows
from tests.recipes.swebench.instances import instance

TINY = ("mako-1.3.5", "mistune-3.1.0", "python-dotenv-1.1.0")
QUICK = ("data.only=[mistune-3.1.0,python-dotenv-1.1.0]", "sandbox.run_workers=4")
"""Overrides for a quick run, on the instances with the fewest tests."""


def rows_of_tiny(directory: Path) -> Path:
    path = directory / "rows.jsonl"
    write_rows(path, [instance(name) for name in TINY])
    return path
