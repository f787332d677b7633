"""One page of the documentation, parsed: its title, first sentence, code blocks and links.

Knows Markdown, not what a page is about.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

MARKER = re.compile(r"<!-- (tested|not run): (.+?) -->")
END = re.compile(r"(?<=[.!?])\s")
"""Where one sentence ends and the next begins."""


@dataclass(frozen=True, slots=True)
class Block:
    """Fenced code. `marker`: what the comment before it says of it, such as `tested`."""

    line: int
    language: str
    text: str
    marker: str
    note: str


class Page:
    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = MarkdownIt("commonmark").enable("table").parse(text)

    @classmethod
    def read(cls, path: Path) -> "Page":
        return cls(path.read_text(encoding="utf-8"))

    @property
    def title(self) -> str:
        return next(self._texts("heading_open"), "")

    @property
    def first_sentence(self) -> str:
        return END.split(next(self._texts("paragraph_open"), ""))[0]

    @cached_property
    def blocks(self) -> list[Block]:
        found = []
        for before, token in zip([None, *self._tokens], self._tokens, strict=False):
            if token.type == "fence":
                line = token.map[0] + 1 if token.map else 0
                marker = _marker(before)
                found.append(Block(line, token.info.strip(), token.content, *marker))
        return found

    @cached_property
    def links(self) -> set[str]:
        """Targets of links and pictures, also of those in tables and headings."""
        children = [child for token in self._tokens for child in token.children or []]
        places = {"link_open": "href", "image": "src"}
        return {str(one.attrs[places[one.type]]) for one in children if one.type in places}

    def _texts(self, parent: str) -> Iterator[str]:
        for before, token in pairwise(self._tokens):
            if token.type == "inline" and before.type == parent:
                yield "".join(one.content or " " for one in token.children or [] if _is_text(one))


def _is_text(child: Token) -> bool:
    return child.type in ("text", "code_inline", "softbreak", "hardbreak")


def _marker(before: Token | None) -> tuple[str, str]:
    found = MARKER.search(before.content) if before and before.type == "html_block" else None
    return (found[1], found[2]) if found else ("", "")
