"""Pictures of each view of the page, for the documentation and to be looked at.

`python -m tests.page.screenshots DIRECTORY` runs a service with 1,000 rollouts and writes
`page-VIEW.png` there. Tests nothing.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from prorl_service.net import credentials
from tests.page.browser import Tab, browser
from tests.page.showcase import world

SIGNED_IN = "document.querySelector('nav.top')"
VIEWS = {
    "now": ("now", "Last 15 minutes"),
    "groups": ("groups", "step7-group"),
    "rollouts": ("rollouts?state=failed", "sandbox gave up"),
    "rollout": ("rollout/step7-group4.1", "Verdict"),
    "compare": ("compare/step7-group4", "first difference"),
    "tokens": ("tokens/special-rewritten.1", "segment 2"),
    "timeline": ("timeline?minutes=1", "slots"),
    "training": ("training", "Informative groups"),
}
"""Addresses behind `#/`, and a text that is shown once the view is there, by view."""

SETTLE_S = 3
HISTORY_S = 60
"""Seconds for which the page stays open before the view of what is now, whose charts it fills."""

COLOURS = 64


def sign_in(tab: Tab, url: str, token: str) -> None:
    """Opens the page, and enters the token that it asks for."""
    tab.open(url)
    tab.wait("document.querySelector('form.token input')")
    tab.click("form.token input")
    tab.type(token)
    tab.press("Enter")
    tab.wait(SIGNED_IN)


def show(tab: Tab, view: str, text: str) -> str:
    """Goes to the address behind `#/`; returns what is shown once `text` is a part of it."""
    tab.evaluate(f"location.hash = {f'#/{view}'!r}")
    return tab.wait_for(text, "main")


def shrink(file: Path) -> None:
    """Reduces the colours of a picture: those of a page are few."""
    with Image.open(file) as picture:
        few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


def write(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        os.environ["XDG_STATE_HOME"] = work
        with world(Path(work)) as service, browser() as chromium:
            tab = chromium.tab()
            sign_in(tab, service.url, credentials.make_own_token())
            # What is open stays: the timeline is drawn from events, the charts from samples.
            for view, (address, text) in reversed(VIEWS.items()):
                show(tab, address, text)
                time.sleep(HISTORY_S if view == "now" else SETTLE_S)
                file = directory / f"page-{view}.png"
                tab.screenshot(file)
                shrink(file)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
