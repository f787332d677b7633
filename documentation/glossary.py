"""Checks that a page links the first use of each word of the glossary to its meaning.

Only words that mean nothing else here are looked for: a turn, a run, a draw, a stage, a candidate,
a lease and a front are also plain English. Headings, tables and code are left out. A page whose
group or gateway is another says so: `<!-- not of the glossary: group gateway -->`.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from documentation.pages import DOCS, ROOT
from documentation.prose import written

GLOSSARY = Path(DOCS) / "glossary.md"
WORDS = {
    "task": r"tasks?",
    "rollout": r"rollouts?",
    "group": r"groups?",
    "trajectory": r"trajector(?:y|ies)",
    "segment": r"segments?",
    "sandbox": r"sandbox(?:es)?",
    "policy-version": r"policy versions?",
    "informative-group": r"informative groups?",
    "sampler": r"samplers?",
    "harness": r"harness(?:es)?",
    "gateway": r"gateways?",
    "dialect": r"dialects?",
    "reply-format": r"reply formats?",
    "shelf": r"shelf",
    "journal": r"journals?",
}
"""Pattern of each word, by the anchor of its meaning."""
WHOLE = {
    anchor: re.compile(rf"(?<![\w-])(?:{one})(?![\w-])", re.I) for anchor, one in WORDS.items()
}
"""The same as whole words."""
OTHER = re.compile(r"<!-- not of the glossary: (.+?) -->")


def unlinked() -> Iterator[str]:
    """Yields each word whose first use on a page is not linked to the glossary."""
    for page in written():
        if page != GLOSSARY:
            for anchor, text in first_uses(page):
                yield f"{page}: {anchor}: {text!r}"


def first_uses(page: Path) -> Iterator[tuple[str, str]]:
    """Yields words whose first use is no link, with the text around it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    exempt = OTHER.search(text)
    known = set(exempt[1].split()) if exempt else set()
    for token in _paragraphs(text):
        target = ""
        for child in token.children or []:
            if child.type == "link_open":
                target = str(child.attrs["href"])
            elif child.type == "link_close":
                target = ""
            elif child.type == "text":
                for anchor in sorted(_in(child.content, target) - known):
                    known.add(anchor)
                    if not target:
                        yield anchor, child.content


def _in(text: str, target: str) -> set[str]:
    """Returns the words in the text. Within a link to the glossary, it is the link's own word; any
    other link explains its words."""
    _, _, linked = target.partition("glossary.md#")
    found = {anchor for anchor, pattern in WHOLE.items() if pattern.search(text)}
    if "informative-group" in found:
        found -= {"group"}
    return found | ({linked} & set(WORDS))


def _paragraphs(text: str) -> Iterator[Token]:
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in pairwise(tokens):
        if token.type == "inline" and before.type == "paragraph_open":
            yield token
