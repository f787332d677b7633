"""Turns a notebook into a page: text, code, and the outputs that it was committed with."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat


def convert(notebook: Path, page: Path) -> None:
    """Pictures are written next to `page`."""
    cells = nbformat.read(notebook, as_version=4).cells
    parts = [part for number, cell in enumerate(cells) for part in _cell(cell, number, page)]
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _cell(cell: Any, number: int, page: Path) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield cell.source
        return
    yield f"```python\n{cell.source}\n```"
    for count, output in enumerate(cell.outputs):
        data = output.get("data", {})
        if "image/png" in data:
            picture = page.with_name(f"{page.stem}-{number}-{count}.png")
            picture.write_bytes(base64.b64decode(data["image/png"]))
            yield f"![output of the cell above]({picture.name})"
        elif text := output.get("text") or data.get("text/plain"):
            yield f"```\n{text.rstrip()}\n```"
