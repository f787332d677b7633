"""Finds links between pages that lead nowhere: a file or an anchor that is not there."""

from collections.abc import Iterator
from functools import cache
from urllib.parse import urlsplit

from documentation.markdown import Page
from documentation.pages import ROOT, in_repository, target_of

MORE = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "examples/README.md",
    "recipes/swebench/README.md",
    "recipes/math_code/README.md",
)


def broken() -> Iterator[str]:
    """Yields each broken link, with its place."""
    for path in [*map(str, in_repository()), *MORE]:
        for link in page(path).links:
            problem = _problem(path, link.target)
            if problem:
                yield f"{path}:{link.line}: {link.target}: {problem}"


def _problem(where: str, link: str) -> str:
    target = target_of(where, link)
    if target is None:
        return ""
    if not (ROOT / target).is_file():
        return "there is no such file"
    anchor = urlsplit(link).fragment
    if anchor and target.endswith(".md") and anchor not in page(target).anchors:
        return "there is no such heading"
    return ""


@cache
def page(path: str) -> Page:
    return Page.read(ROOT / path)
