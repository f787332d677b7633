"""One page of the documentation, parsed: its sentences, code blocks, headings and links.

Knows Markdown, not what a page is about. A cell of a table is no sentence, nor is a heading.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9`])")
"""Where one sentence ends and the next begins."""
ABBREVIATIONS = ("e.g.", "i.e.", "vs.", "cf.", "et al.", "approx.")
WORD = re.compile(r"\w")
CODE = "`code`"
"""Stands for a span of code, which counts as one word."""
MARKER = re.compile(r"<!-- (tested|not run): (.+?) -->")
NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


@dataclass(frozen=True, slots=True)
class Sentence:
    line: int
    text: str

    @property
    def words(self) -> int:
        return sum(WORD.search(word) is not None for word in self.text.split())


@dataclass(frozen=True, slots=True)
class Block:
    """Fenced code. `marker`: what the comment before it says of it, such as `tested`."""

    line: int
    language: str
    text: str
    marker: str
    note: str


@dataclass(frozen=True, slots=True)
class Link:
    line: int
    target: str
    text: str


class Page:
    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = MarkdownIt("commonmark").enable("table").parse(text)

    @classmethod
    def read(cls, path: Path) -> "Page":
        return cls(path.read_text(encoding="utf-8"))

    @cached_property
    def sentences(self) -> list[Sentence]:
        return [
            Sentence(line, text)
            for token, line in self._inlines("paragraph_open")
            for text in _sentences(_prose(token))
        ]

    @cached_property
    def blocks(self) -> list[Block]:
        found = []
        for before, token in zip([None, *self._tokens], self._tokens, strict=False):
            if token.type == "fence":
                marker = _marker(before)
                found.append(Block(_line(token), token.info.strip(), token.content, *marker))
        return found

    @cached_property
    def anchors(self) -> list[str]:
        """Anchors of the headings, as forges and the site make them, and those of `<a id>`."""
        made: list[str] = []
        for token, _ in self._inlines("heading_open"):
            anchor = anchor_of(_prose(token, code=None))
            again = sum(one == anchor or one.startswith(f"{anchor}-") for one in made)
            made.append(f"{anchor}-{again}" if anchor in made else anchor)
        return made + re.findall(r'<a id="([^"]+)">', self.text)

    @cached_property
    def title(self) -> str:
        return next((_prose(token) for token, _ in self._inlines("heading_open")), "")

    @cached_property
    def links(self) -> list[Link]:
        """Links and pictures, also those in tables and headings."""
        return [
            link
            for token in self._tokens
            if token.type == "inline"
            for link in _links(token.children or [], _line(token))
        ]

    def _inlines(self, parent: str) -> Iterator[tuple[Token, int]]:
        for before, token in pairwise(self._tokens):
            if token.type == "inline" and before.type == parent:
                yield token, _line(token)


def anchor_of(heading: str) -> str:
    return NOT_IN_ANCHORS.sub("", heading.lower()).strip().replace(" ", "-")


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 0


def _marker(before: Token | None) -> tuple[str, str]:
    found = MARKER.search(before.content) if before and before.type == "html_block" else None
    return (found[1], found[2]) if found else ("", "")


def _prose(inline: Token, code: str | None = CODE) -> str:
    """Returns the text that is read. `code` stands for a span of code; None: the span itself."""
    parts = []
    for child in inline.children or []:
        if child.type == "text":
            parts.append(child.content)
        elif child.type == "code_inline":
            parts.append(child.content if code is None else code)
        elif child.type in ("softbreak", "hardbreak"):
            parts.append(" ")
    return "".join(parts)


def _sentences(text: str) -> Iterator[str]:
    begun = ""
    for part in END.split(text.strip()):
        begun = f"{begun} {part}".strip()
        if not begun.endswith(ABBREVIATIONS):
            if WORD.search(begun):
                yield begun
            begun = ""
    if WORD.search(begun):
        yield begun


def _links(children: list[Token], line: int) -> Iterator[Link]:
    target, text = "", ""
    for child in children:
        if child.type == "link_open":
            target, text = str(child.attrs["href"]), ""
        elif child.type == "link_close":
            yield Link(line, target, text)
            target = ""
        elif child.type == "image":
            yield Link(line, str(child.attrs["src"]), child.content)
        elif target:
            text += child.content
