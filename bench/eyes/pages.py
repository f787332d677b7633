"""The page in a browser, on a service with 1,000 rollouts of every kind: size, views, errors."""

from pathlib import Path

import httpx

from prorl_service.net import credentials
from prorl_service.page.files import STATIC
from tests.page.browser import Browser
from tests.page.chromium import browser
from tests.page.screenshots import VIEWS
from tests.page.showcase import world
from tests.page.visit import show, sign_in

SHOWN = {**VIEWS, "groups": ("groups", "step7-group")}
"""Addresses and texts by view; here no rollouts of another step follow."""

Row = dict[str, object]


def measure(directory: Path) -> list[Row]:
    """Returns the size of what a browser loads, then a row for each view."""
    token = credentials.make_own_token()
    with world(directory) as service, browser() as chromium:
        return [_size(service.url), *(_open(chromium, service.url, token, one) for one in SHOWN)]


def _size(url: str) -> Row:
    """Adds up all files of the page, as they are sent and as they are."""
    static = Path(str(STATIC))
    names = [
        str(file.relative_to(static))
        for kind in ("js", "css")
        for file in static.rglob(f"*.{kind}")
    ]
    sent, whole, vendor = 0, 0, 0
    with httpx.Client(base_url=url) as http:
        for path in ("/", *(f"/page/{name}" for name in names)):
            answer = http.get(path).raise_for_status()
            sent += answer.num_bytes_downloaded
            whole += len(answer.content)
            vendor += len(answer.content) if "/vendor/" in path else 0
    return {
        "what": "page",
        "files": len(names) + 1,
        "transferred_kb": round(sent / 1e3, 1),
        "kb": round(whole / 1e3, 1),
        "third_party_kb": round(vendor / 1e3, 1),
    }


def _open(chromium: Browser, url: str, token: str, name: str) -> Row:
    tab = chromium.tab()
    sign_in(tab, url, token)
    tab.problems.clear()  # the answer that asked for the token
    address, text = SHOWN[name]
    shown = show(tab, address, text)
    return {
        "what": f"view {name}",
        "shows": text in shown,
        "console_errors": len(tab.problems),
        "other_hosts": len(tab.hosts - {url.removeprefix("http://")}),
    }
