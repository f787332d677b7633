"""What a page prints: its blocks of code, by language, and its blocks of output."""

import re
from pathlib import Path

from scripts.documentation.markdown import Page
from scripts.documentation.pages import DOCS, ROOT

TIMES = re.compile(r"\d+\.\d\d s(, waiting \d\.\d\d s)?")


def blocks(page: str, language: str) -> list[str]:
    """Returns the blocks of a page of docs/. "" is the language of output."""
    parsed = Page.read(ROOT / DOCS / page)
    return [block.text for block in parsed.blocks if block.language == language]


def untimed(output: str) -> str:
    """Returns the output without times and without spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in TIMES.sub("T", output).splitlines())


def write(directory: Path, **files: str) -> None:
    """Writes files by name, `_` for the dot before the ending."""
    for name, text in files.items():
        stem, _, ending = name.rpartition("_")
        (directory / f"{stem}.{ending}").write_text(text)
