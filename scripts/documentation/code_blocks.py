"""What is known of the code blocks of pages: run by which test, or why not.

A comment before a block says it: `<!-- tested: tests/... -->` or `<!-- not run: reason -->`.
A block without a language is output or a drawing.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.documentation.markdown import Block, Page
from scripts.documentation.pages import ROOT, in_repository

SHELL = ("sh", "console")


@dataclass(frozen=True, slots=True)
class Code:
    page: Path
    block: Block

    @property
    def place(self) -> str:
        return f"{self.page}:{self.block.line}"


def code() -> list[Code]:
    return [
        Code(page, block)
        for page in in_repository()
        for block in Page.read(ROOT / page).blocks
        if block.language
    ]


def run() -> list[Code]:
    """Returns those that a test runs."""
    return [one for one in code() if one.block.marker == "tested"]


def problems() -> Iterator[str]:
    """Yields blocks that nothing is said of, or that name a test that does not know their page."""
    for one in code():
        if not one.block.marker:
            yield f"{one.place}: is it run? {one.block.text.splitlines()[0]}"
        elif one.block.marker == "tested":
            test = ROOT / one.block.note
            if not test.is_file() or one.page.name not in test.read_text(encoding="utf-8"):
                yield f"{one.place}: {one.block.note} does not run it"


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yields the words of each `prorl` command in the shell's blocks, with its place."""
    for one in code():
        if one.block.language in SHELL:
            joined = one.block.text.replace("\\\n", " ")
            for line in joined.splitlines():
                yield from ((one.place, words) for words in _commands(line))


def _commands(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=";|&()<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";|&()<>"):
                yield from _command(words)
                words = []
            else:
                words.append(word)
    except ValueError:  # a quotation that goes on in the next line
        return
    yield from _command(words)


def _command(words: list[str]) -> Iterator[list[str]]:
    while words and "=" in words[0]:
        words = words[1:]
    if words[:1] == ["prorl"]:
        yield words[1:]
