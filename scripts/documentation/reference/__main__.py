"""Writes docs/reference: `python -m scripts.documentation.reference`. Commit what changes."""

from collections.abc import Callable
from pathlib import Path

from scripts.documentation.reference import command_line, http, metrics, task_data, tested_with

DIRECTORY = Path(__file__).parents[3] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "command_line.md": command_line.command_line,
    "settings.md": command_line.settings,
    "http.md": http.page,
    "metrics.md": metrics.page,
    "task_data.md": task_data.page,
    "tested_with.md": tested_with.page,
}


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, made in PAGES.items():
        (DIRECTORY / name).write_text(made(), encoding="utf-8")
        print(f"written: docs/reference/{name}")


if __name__ == "__main__":
    main()
