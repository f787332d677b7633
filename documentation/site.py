"""Lays out what the site is built of: `python -m documentation.site`, which `scripts/docs` runs.

Pages are copied with the files that they link to; links that leave `docs/` are rewritten. Adds what
exists in the site only: the notebook as a page, `llms.txt` and `llms-full.txt`.
"""

import posixpath
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from documentation import machine_readable, notebook, results
from documentation.markdown import Page
from documentation.pages import ROOT, in_repository, navigation, place_in_site, target_of

SOURCE = ROOT / "outputs" / "docs" / "source"
STYLE = Path(__file__).with_name("site.css")
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=[)\s])")
FENCE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)[ ]*$)", re.MULTILINE | re.DOTALL)


def main() -> None:
    shutil.rmtree(SOURCE, ignore_errors=True)
    for path in sorted(_needed()):
        _copy(path)
    notebook.convert(ROOT / "docs" / "trl.ipynb", SOURCE / "trl_notebook.md")
    shutil.copyfile(STYLE, SOURCE / STYLE.name)
    (SOURCE / "results.md").write_text(results.page(), encoding="utf-8")
    machine_readable.write(navigation(), SOURCE)


def _needed() -> set[str]:
    """Returns the pages and all that they link to, relative to the repository."""
    found = {str(path) for path in in_repository()}
    found |= {"CHANGELOG.md", "CONTRIBUTING.md"}
    found |= {str(one.relative_to(ROOT)) for path in results.files() for one in _pair(path)}
    waiting = sorted(found)
    while waiting:
        page = waiting.pop()
        if not page.endswith(".md"):
            continue
        links = {link.target for link in Page.read(ROOT / page).links}
        linked = {target for one in links if (target := target_of(page, one)) is not None}
        waiting += sorted(linked - found)
        found |= linked
    return found


def _pair(result: Path) -> list[Path]:
    """Returns a file of results, and its figure if there is one."""
    return [path for path in (result, result.with_suffix(".png")) if path.exists()]


def _copy(path: str) -> None:
    target = SOURCE / place_in_site(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.endswith(".md"):
        target.write_text(moved((ROOT / path).read_text(encoding="utf-8"), path), encoding="utf-8")
    else:
        shutil.copyfile(ROOT / path, target)


def moved(text: str, page: str) -> str:
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


if __name__ == "__main__":
    main()
