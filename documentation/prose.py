"""Counts the sentences of pages. Generated pages of the reference are not counted."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from documentation.markdown import Page, Sentence
from documentation.pages import ROOT, in_repository

README = Path("README.md")
MAX_MEAN_README = 16.0
MAX_MEAN = 18.0
MAX_WORDS = 40


@dataclass(frozen=True, slots=True)
class Count:
    sentences: int
    mean: float
    longest: int


def written() -> list[Path]:
    """Returns the pages that people wrote, README.md first."""
    return [path for path in in_repository() if path.parts[1:2] != ("reference",)]


def count(pages: Iterable[Path]) -> Count:
    words = [one.words for page in pages for one in sentences(page)]
    return Count(len(words), sum(words) / max(len(words), 1), max(words, default=0))


def sentences(page: Path) -> list[Sentence]:
    return Page.read(ROOT / page).sentences


def too_long() -> list[str]:
    return [
        f"{page}:{one.line}: {one.words} words: {one.text}"
        for page in written()
        for one in sentences(page)
        if one.words > MAX_WORDS
    ]
