"""Lays out what the site is built of, for `scripts/docs`: `python -m scripts.documentation.site`.

Pages are copied with the files that they link to; links that leave `docs/` are rewritten. Adds what
exists in the site only: the notebook as a page, all measurements at the end of `results.md`,
`llms.txt` and `llms-full.txt`.
"""

import base64
import json
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat

from scripts.documentation.markdown import Page
from scripts.documentation.pages import (
    ELSEWHERE,
    RESULTS,
    ROOT,
    Entry,
    in_repository,
    navigation,
    place_in_site,
    target_of,
)

SOURCE = ROOT / "outputs" / "docs" / "source"
STYLE = Path(__file__).with_name("site.css")
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=[)\s])")
FENCE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)[ ]*$)", re.MULTILINE | re.DOTALL)
NUMBERS = """
## All measurements

Every figure of these pages comes from a measurement in the repository. Here is each with its
command, the machine it ran on, and its headline. The linked file has all rows. Figures of different
days are not to be compared: machine and load are in each file.
"""
SUMMARY = """\
# ProRL rollout service

> Runs the rollouts of LLM agents for reinforcement learning as a service: a trainer sends tasks \
over HTTP and gets token-exact trajectories with rewards.
"""
LONGEST = 200
"""Most characters of a page's first sentence that `llms.txt` shows."""


def main() -> None:
    shutil.rmtree(SOURCE, ignore_errors=True)
    results = sorted((ROOT / RESULTS).glob("*.json"))
    for path in sorted(_needed(results)):
        _copy(path)
    _write_notebook(ROOT / "docs" / "trl.ipynb", SOURCE / "trl_notebook.md")
    shutil.copyfile(STYLE, SOURCE / STYLE.name)
    lines = [NUMBERS, *chain.from_iterable(map(_numbers, results))]
    with (SOURCE / "results.md").open("a", encoding="utf-8") as page:
        page.writelines(f"{line}\n" for line in lines)
    _write_for_programs(navigation())


def _needed(results: list[Path]) -> set[str]:
    """Returns the pages and all files that they link to, relative to the repository."""
    found = {str(path) for path in in_repository()} | {"CHANGELOG.md", "CONTRIBUTING.md"}
    files = [*results, *(path.with_suffix(".svg") for path in results)]
    found |= {str(path.relative_to(ROOT)) for path in files if path.exists()}
    waiting = sorted(found)
    while waiting:
        page = waiting.pop()
        if page.endswith(".md"):
            targets = {target_of(page, link) for link in Page.read(ROOT / page).links}
            linked = {target for target in targets if target is not None} - found
            if lacking := [one for one in sorted(linked) if not (ROOT / one).is_file()]:
                sys.exit(f"{page} links to files that do not exist: {', '.join(lacking)}")
            waiting += sorted(linked)
            found |= linked
    return found


def _copy(path: str) -> None:
    target = SOURCE / place_in_site(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.endswith(".md"):
        target.write_text(_moved((ROOT / path).read_text(encoding="utf-8"), path), encoding="utf-8")
    else:
        shutil.copyfile(ROOT / path, target)


def _moved(text: str, page: str) -> str:
    """Returns the text of `page` with links that are right where the page is in the site."""
    here = posixpath.dirname(place_in_site(page))

    def link(found: re.Match[str]) -> str:
        target = target_of(page, found[1])
        if target is None or found[1].startswith("#"):
            return found[1]
        anchor = urlsplit(found[1]).fragment
        place = posixpath.relpath(place_in_site(target), here or ".")
        return f"{place}#{anchor}" if anchor else place

    parts = FENCE.split(text)
    return "".join(
        part if FENCE.fullmatch(part) else LINK.sub(link, part) for part in parts if part
    )


def _write_notebook(notebook: Path, page: Path) -> None:
    """Writes a page of its text, code, and the outputs that it was committed with."""
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


def _numbers(path: Path) -> Iterator[str]:
    """Yields a section of all measurements."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    machine = result["machine"]
    yield f"### {path.stem}\n"
    yield f"`{result['command']}` on {machine['system']} with {machine['cpus']} CPUs and"
    yield f"{machine['memory_gib']} GiB, at a load of {result['load']}."
    yield f"[All rows]({ELSEWHERE}/{RESULTS}/{path.name}).\n"
    if path.with_suffix(".svg").exists():
        yield f"![{path.stem}]({ELSEWHERE}/{RESULTS}/{path.stem}.svg)\n"
    yield "| headline | |"
    yield "|---|---|"
    for name, value in result["headline"].items():
        yield f"| `{name}` | {value} |"
    yield ""


def _write_for_programs(entries: list[Entry]) -> None:
    """Writes `llms.txt`, a list of all pages, and `llms-full.txt`, all pages in one file."""
    pages = {one.path: Page.read(SOURCE / one.path) for one in entries}
    lines = [SUMMARY]
    for section, group in groupby(entries, key=lambda one: one.section):
        lines += ["", f"## {section or 'Overview'}", ""]
        for one in group:
            page = pages[one.path]
            title, first = one.title or page.title, page.first_sentence[:LONGEST]
            lines.append(f"- [{title}]({one.path}): {first}")
    (SOURCE / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    whole = [f"<!-- {path} -->\n\n{page.text.strip()}\n" for path, page in pages.items()]
    (SOURCE / "llms-full.txt").write_text("\n\n".join(whole), encoding="utf-8")


if __name__ == "__main__":
    main()
