"""Which pages the documentation has, in the order of the site's navigation, and where they lie.

A page of `docs/` is a page of the site. A file elsewhere in the repository that a page links to is
in the site under `repository/`.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

ROOT = Path(__file__).parents[2]
DOCS = "docs"
RESULTS = "bench/results"
ELSEWHERE = "repository"
MADE_FOR_THE_SITE = ("trl_notebook.md",)
"""Pages that exist in the site only."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A page in the navigation. `path` is relative to the site."""

    section: str
    path: str
    title: str


def navigation() -> list[Entry]:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return list(_entries(config["nav"], ""))


def _entries(items: list[Any], section: str) -> Iterator[Entry]:
    for item in items:
        if isinstance(item, str):
            yield Entry(section, item, "")
            continue
        for title, value in item.items():
            if isinstance(value, str):
                yield Entry(section, value, title)
            else:
                yield from _entries(value, section or title)


def in_repository() -> list[Path]:
    """Returns README.md and the pages of docs/, relative to the repository."""
    docs = sorted(path.relative_to(ROOT) for path in (ROOT / DOCS).rglob("*.md"))
    return [Path("README.md"), *docs]


def place_in_site(path: str) -> str:
    """Returns where a file of the repository is in the site."""
    inside = path.removeprefix(f"{DOCS}/")
    return inside if inside != path else f"{ELSEWHERE}/{path}"


def place_in_repository(place: str) -> str:
    outside = place.removeprefix(f"{ELSEWHERE}/")
    return outside if outside != place else f"{DOCS}/{place}"


def target_of(page: str, link: str) -> str | None:
    """Returns the file of the repository that a link on `page` leads to; None for other links.
    A link to an anchor of the page itself leads to the page."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    if not parts.path:
        return page
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path)))
