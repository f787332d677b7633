"""`llms.txt`, a list of all pages with a line on each, and `llms-full.txt`, all in one file."""

from itertools import groupby
from pathlib import Path

from documentation.markdown import Page
from documentation.pages import Entry

NAME = "ProRL rollout service"
SUMMARY = (
    "Runs the rollouts of LLM agents for reinforcement learning as a service: a trainer sends "
    "tasks over HTTP and gets token-exact trajectories with rewards."
)
LONGEST = 200
"""Most characters of a page's first sentence that the list shows."""


def write(entries: list[Entry], site: Path) -> None:
    """Writes both files into `site`, where the pages are."""
    pages = {one.path: Page.read(site / one.path) for one in entries}
    lines = [f"# {NAME}", "", f"> {SUMMARY}"]
    for section, group in groupby(entries, key=lambda one: one.section):
        lines += ["", f"## {section}" if section else "## Overview", ""]
        for one in group:
            page = pages[one.path]
            first = page.sentences[0].text[:LONGEST] if page.sentences else ""
            lines.append(f"- [{one.title or page.title}]({one.path}): {first}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    whole = [f"<!-- {path} -->\n\n{page.text.strip()}\n" for path, page in pages.items()]
    (site / "llms-full.txt").write_text("\n\n".join(whole), encoding="utf-8")
