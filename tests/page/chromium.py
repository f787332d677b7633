"""The process of a headless Chromium: starts it with an empty profile, ends it with its children.

What is done in it: `tests/page/browser.py`.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.page.browser import EVERY_S, WAIT_S, Browser, BrowserError, Json

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # which does not start as root; the only pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
    "--password-store=basic",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    # No other host is reached, whatever asks for it.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
MAX_MESSAGE = 256 << 20
"""Bytes of the largest answer that is read: a page may hold much text."""


def program() -> str:
    """Returns the path of the browser; raises `BrowserError` if there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise BrowserError("there is no Chromium: run scripts/setup-browser")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """Runs Chromium, with an empty profile, until the block ends."""
    path = program()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = ["setpriv", "--pdeathsig", "KILL", path, *OPTIONS, f"--user-data-dir={profile}"]
        with (Path(profile) / "output").open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            url = _address(process, Path(profile))
            options: Json = {"max_size": MAX_MESSAGE, "proxy": None, "compression": None}
            # Pings would be answered late: events wait until somebody reads them.
            with connect(url, ping_interval=None, **options) as socket:
                one = Browser(socket)
                yield one
                with suppress(ConnectionClosed, TimeoutError):
                    one.call("Browser.close")
        finally:
            _end(process)


def _address(process: "subprocess.Popen[bytes]", profile: Path) -> str:
    file = profile / "DevToolsActivePort"
    deadline = time.monotonic() + WAIT_S
    while not (file.exists() and file.read_text().count("\n")):
        if process.poll() is not None or time.monotonic() > deadline:
            output = (profile / "output").read_text(errors="replace")
            raise BrowserError(f"{process.args!r} did not start: {output[-2000:]}")
        time.sleep(EVERY_S)
    port, path = file.read_text().split("\n")[:2]
    return f"ws://127.0.0.1:{port}{path}"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends the browser and the processes that it started."""
    children: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    with suppress(subprocess.TimeoutExpired):
        process.wait(5)
    process.kill()
    process.wait()
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
