"""Pictures of each view of the page, for the documentation and to be looked at.

`python -m tests.page.screenshots DIRECTORY` runs a service that has ended 1,000 rollouts and goes
on working, and writes `page-VIEW.png` there. Tests nothing.
"""

import os
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from prorl_service.client import RolloutClient
from prorl_service.net import credentials
from tests.page.chromium import browser
from tests.page.showcase import SIBLINGS, group, world
from tests.page.visit import show, sign_in, stay

VIEWS = {
    "now": ("now", "Last 15 minutes"),
    "groups": ("groups", "step8-group"),
    "rollouts": ("rollouts?state=failed", "sandbox gave up"),
    "text": ("rollouts?text=1 failed, 3 passed", "turn 2, output of bash"),
    "rollout": ("rollout/step7-group3.1", "Verdict"),
    "compare": ("compare/step7-group3?of=4,5", "first difference"),
    "tokens": ("tokens/special-rewritten.1", "segment 2"),
    "timeline": ("timeline?minutes=1", "slots"),
    "tasks": ("tasks", "Ended rollouts only"),
    "training": ("training", "Informative groups"),
}
"""Addresses behind `#/`, and a text that is shown once the view is there, by view."""

HISTORY_S = 75
"""Seconds for which the page is open before pictures are taken, so that its charts have lines."""
SETTLE_S = 2
EVERY_S = 1.5
TOOL_S = 0.6
COLOURS = 256


def shrink(file: Path) -> None:
    """Reduces the colours of a picture: those of a page are few."""
    with Image.open(file) as picture:
        # The rare ones are what matters: a dot that is green.
        few = picture.convert("RGB").quantize(
            COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
    few.save(file, optimize=True)


@contextmanager
def at_work(url: str) -> Iterator[None]:
    """Submits a group now and then, until the block ends."""
    stop = threading.Event()

    def work() -> None:
        rng = random.Random(2)
        with RolloutClient(url) as client:
            number = 0
            while not stop.wait(EVERY_S * rng.uniform(0.4, 1.6)):
                level = rng.choice((0.0, 0.4, 0.6, 0.9, 1.0))
                rewards = [float(rng.random() < level) for _ in range(SIBLINGS)]
                tool_s = TOOL_S * rng.uniform(0.5, 1.5)
                client.submit([group(f"step8-group{number}", "plain", rewards, tool_s)])
                number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def write(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        os.environ["XDG_STATE_HOME"] = work
        workers = ("--run-workers", "32")
        with (
            world(Path(work), options=workers) as service,
            browser() as chromium,
            at_work(service.url),
        ):
            tab = chromium.tab()
            sign_in(tab, service.url, credentials.make_own_token())
            # The timeline is drawn from events since it was opened.
            show(tab, *VIEWS["timeline"])
            stay(tab, HISTORY_S)
            for view, (address, text) in sorted(
                VIEWS.items(), key=lambda one: one[0] != "timeline"
            ):
                show(tab, address, text)
                stay(tab, SETTLE_S)
                file = directory / f"page-{view}.png"
                tab.screenshot(file)
                shrink(file)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
