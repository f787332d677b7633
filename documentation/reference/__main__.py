"""Writes the pages of docs/reference: `python -m documentation.reference`. Commit what changes."""

from collections.abc import Callable
from pathlib import Path

from documentation.reference import command_line, errors, http, metrics, task_data, tested_with

DIRECTORY = Path(__file__).parents[2] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "command_line.md": command_line.command_line,
    "settings.md": command_line.settings,
    "http.md": http.page,
    "metrics.md": metrics.page,
    "task_data.md": task_data.page,
    "errors.md": errors.page,
    "tested_with.md": tested_with.page,
}


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, made in PAGES.items():
        (DIRECTORY / name).write_text(made(), encoding="utf-8")
        print(f"written: docs/reference/{name}")


if __name__ == "__main__":
    main()
